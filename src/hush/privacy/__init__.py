"""What a client promises, how training keeps the promise, and what it has cost so far."""
