"""Who takes part in which round: drawn beforehand, from public numbers, so that a client knows what it must afford."""

from __future__ import annotations

from hush.seeds import rng

Schedule = tuple[tuple[int, ...], ...]


def schedule(seed: int, clients: int, rounds: int, participation: float) -> Schedule:
    """The clients of each round: a fixed number of them, drawn without replacement, in rising order."""
    chosen = max(1, round(participation * clients))
    if chosen == clients:
        return (tuple(range(clients)),) * rounds
    return tuple(
        tuple(sorted(rng(seed, "participation", r).choice(clients, chosen, replace=False).tolist()))
        for r in range(1, rounds + 1)
    )


def rounds_of(plan: Schedule, client: int) -> int:
    """In how many rounds a client takes part."""
    return sum(client in members for members in plan)
