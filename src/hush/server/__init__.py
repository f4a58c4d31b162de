"""The coordinator: the gate for what comes in, the round loop, and the run directory."""
