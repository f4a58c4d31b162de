"""The server side of a run: update validation, the round loop, and the run directory."""
