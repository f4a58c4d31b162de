"""Persons: which of a client's rows belong to the same person, where the unit of privacy is a person.

A plan samples persons as it otherwise samples rows. A person in a batch contributes `per_batch` of its rows, chosen at
random, and the mean of their gradients is clipped as one. What a step releases is then, for persons, exactly what the
analysis of rows assumes: each person enters with the public probability, and moves the sum by at most one clip
(Theorem 10 of docs/proofs.md).

Guarantees:
    - `drawn` takes from each person of a batch rows of that person alone, as many whoever else is in the batch.
    - The weights of a person's rows add up to one. A sum over rows, each in a ball (or any convex set) and weighted so,
      has for persons the bound that the plain sum has for rows.

Edge cases:
    - A person with fewer rows than `per_batch` contributes all of them, in random order and over again.
    - Which of its rows a person contributes costs nothing: the bound of a person holds for any choice.
    - A row alone is a person of one row; a client whose persons all have one row is a client without persons.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from hush.privacy.source import Source


@dataclass(frozen=True, eq=False)
class Persons:
    """The persons of a client, whose rows lie one person after the other.

    Attributes:
        sizes: The number of rows of each person.
        per_batch: The number of rows that a person contributes to a batch.
    """

    sizes: Tensor
    per_batch: int = 1

    def __len__(self) -> int:
        return len(self.sizes)

    @cached_property
    def rows(self) -> int:
        """The number of rows of all persons."""
        return int(self.sizes.sum())

    @cached_property
    def starts(self) -> Tensor:
        """Where the rows of each person begin."""
        return self.sizes.cumsum(0) - self.sizes

    @cached_property
    def weights(self) -> Tensor:
        """The weight of each row, in float64: one over the number of rows of its person."""
        return (1.0 / self.sizes.double()).repeat_interleave(self.sizes)

    def drawn(self, persons: Tensor, source: Source) -> Tensor:
        """Rows of these persons, chosen at random: persons, or persons x `per_batch` if that is more than one."""
        sizes, starts = self.sizes[persons], self.starts[persons]
        if self.per_batch == 1:
            uniform = source.uniform(len(persons))
            return starts + torch.minimum((uniform * sizes).long(), sizes - 1)
        whose = np.repeat(np.arange(len(persons)), sizes.numpy())
        order = torch.from_numpy(np.lexsort((source.uniform(len(whose)).numpy(), whose)))
        first = (sizes.cumsum(0) - sizes)[:, None]
        # Positions among all rows of these persons, in random order within each person.
        mixed = order[first + torch.arange(self.per_batch) % sizes[:, None]] if len(persons) else first
        return (mixed - first + starts[:, None]).reshape(len(persons), self.per_batch)

    def only(self, first: int) -> Persons:
        """As many of these persons, the first ones."""
        return Persons(self.sizes[:first], self.per_batch)


def sum_weights(persons: Persons | None) -> Tensor | None:
    """The weights of rows in a sum over all of a client's rows; None if all are one."""
    return None if persons is None else persons.weights
