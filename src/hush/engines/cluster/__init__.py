"""Simulations and sweeps on a cluster of Ray workers. Only `ray_workers` imports Ray."""
