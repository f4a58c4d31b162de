"""What no guarantee covers about persons: who has rows at several clients, and who has several rows if rows are
protected.

Each client's guarantee is about its own releases alone. What a person loses in all is at most the sum over the clients
that have rows of this person. A simulation knows the keys of all clients and says what that is; the coordinator of a
federation does not see them and says that it does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hush.types import Policy

if TYPE_CHECKING:
    from hush.engines.setup import Federation

_UNKNOWN = (
    "persons at several clients: each guarantee covers the releases of one client, and keys of persons are not "
    "compared between clients; for a person with rows at several of them, their epsilons and deltas add up"
)


def uncovered_persons(federation: Federation) -> tuple[str, ...]:
    """Return what to list as not covered, in words; nothing where persons are not known and rows are protected."""
    data, unit = federation.data, federation.config.privacy.unit
    if unit == "person" and not data.train:
        return (_UNKNOWN,)
    if data.dataset.person is None or not federation.recipe.protect.private:
        return ()
    found = _shared([data.dataset.person[rows] for rows in data.train], federation.policies)
    return (*(_several_rows(data.persons) if unit == "row" else ()), *found)


def _several_rows(persons: Sequence[np.ndarray]) -> tuple[str, ...]:
    most = max((int(sizes.max()) for sizes in persons if len(sizes)), default=1)
    if most < 2:
        return ()
    text = f"persons: the guarantee protects rows, and a person has up to {most} at a client; by group privacy epsilon "
    return (f'{text}grows about {most}-fold for such a person; privacy.unit = "person" protects persons',)


def _shared(keys: Sequence[np.ndarray], policies: Sequence[Policy]) -> tuple[str, ...]:
    """Persons with training rows at several clients, and what they lose at most."""
    names, epsilons, deltas = np.empty(0, np.str_), np.empty(0), np.empty(0)
    for own, policy in zip(keys, policies, strict=True):
        here = np.unique(own).astype(np.str_)
        names = np.concatenate([names, here])
        epsilons = np.concatenate([epsilons, np.full(len(here), policy.epsilon)])
        deltas = np.concatenate([deltas, np.full(len(here), policy.delta)])
    _, who, clients = np.unique(names, return_inverse=True, return_counts=True)
    several = int((clients > 1).sum())
    if not several:
        return ()
    sums = np.bincount(who, epsilons), np.bincount(who, deltas)
    worst = int(np.where(clients > 1, sums[0], 0.0).argmax())
    return (
        f"persons at several clients: {several} of {len(clients)} have training rows at up to {int(clients.max())} "
        f"clients, and each guarantee covers the releases of one client; together up to epsilon {sums[0][worst]:.4g} "
        f"at delta {sums[1][worst]:.3g}, the sum of the budgets",
    )
