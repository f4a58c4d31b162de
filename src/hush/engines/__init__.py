"""Engines: they run the clients' side of a round, in a simulation or on a member's machine."""
