"""The binding between ledgers and training rows: a row permanently belongs to the ledger that covered it first.

Guarantees:
    - Rows covered by another ledger are refused as soon as any of the ledgers has been charged.
    - Changed rows under a charged ledger (some are missing and others are new) are refused. Additional rows are
      registered: nothing was spent on them, and the ledger's epsilon is an upper bound for them too. Missing rows are
      accepted.
    - All ledgers are checked before any of them changes.
    - If several runs replace each other's rows before the first charge, only the run whose rows remain can charge.

Edge cases:
    - The same row at several clients is accepted if they register it together, or before any of their ledgers has been
      charged; each of these ledgers then covers it for its own releases.
    - Until its first charge a ledger's rows can be replaced, because nothing was released about them.
    - Fingerprints under the key of another machine cannot be compared. After `adopt` the rows are registered again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from hush.privacy.ledger import fingerprints, ledger, witness
from hush.privacy.ledger.fingerprints import Prints, Rows
from hush.privacy.ledger.ledger import Ledger
from hush.types import HushError


def bind(ledgers: Sequence[Ledger], rows: Sequence[Rows], beside: Iterable[Path] = ()) -> None:
    """Bind the rows of each client to its ledger, or raise a `HushError`; `beside` are other ledgers to check."""
    here = witness.here()
    with here.locked():
        key = here.key().rows
        covered = {each.where: each.coverage() for each in ledgers}
        found: list[tuple[Ledger, Prints, Prints]] = []
        for each, data in zip(ledgers, rows, strict=True):
            prints, now = fingerprints.of(data, key), covered[each.where].now
            found.append((each, prints - now, now - prints))
        if any(added for _, added, _ in found):
            covered |= {str(path): ledger.coverage(path) for path in beside if str(path) not in covered}
            if any(each.charged for each in covered.values()):
                _check_unclaimed(found, {where: each.ever for where, each in covered.items()})
        for each, added, removed in found:
            if added and removed and covered[each.where].charged:
                raise HushError(
                    f"{each.where}: its training rows were changed: {removed.total()} that it covers are gone, and "
                    f"{added.total()} are new; accepted: the same rows, additional rows, or fewer rows, but not "
                    "added and removed rows at once"
                )
        for each, added, removed in found:
            each.cover(added, removed, charged=covered[each.where].charged)


def _check_unclaimed(found: Sequence[tuple[Ledger, Prints, Prints]], claimed: dict[str, Prints]) -> None:
    for each, added, _ in found:
        for where, ever in claimed.items():
            common = 0 if where == each.where else len(added.keys() & ever.keys())
            if common:
                raise HushError(
                    f"{each.where}: {common} of its client's rows are covered by {where}; accepted: clients with the "
                    "rows that they had when these ledgers were made (the same data, seed, partition and number)"
                )
