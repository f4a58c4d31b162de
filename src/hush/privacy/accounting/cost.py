"""The cost of one release, as a record that can be stored and that corresponds to a dp_accounting event.

Guarantees:
    - A cost describes a mechanism, not an epsilon: epsilon is computed from costs and never stored instead of them.
    - `from_json` accepts the kinds below with exactly their fields and nothing else, so that a stored or received text
      cannot name any other code.

Edge cases:
    - Costs of zero steps are free; zero noise has infinite cost.
    - `fixed-gaussian` (batches of a fixed size, drawn without replacement) is defined under replace-one only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from hush.types import HushError

if TYPE_CHECKING:
    from dp_accounting import DpEvent

Kind = Literal["poisson-gaussian", "gaussian", "fixed-gaussian"]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Equal noisy steps.

    Attributes:
        what: What is released: "model update", "cluster choice", "sample count", ...
        kind: `poisson-gaussian` (each row with probability `rate`), `gaussian` (every row), or `fixed-gaussian`
            (`batch` of `samples` rows, without replacement).
        noise: Noise multiplier, in units of the clip.
        steps: How many of them.
        rate: Sampling probability, for `poisson-gaussian`.
        samples: Rows drawn from, for `fixed-gaussian`.
        batch: Rows drawn, for `fixed-gaussian`.
        groups: For rows with budgets of their own, each budget and the sampling probability of its rows; `rate` is then
            the highest of them. They say what each group spends and change no total.
    """

    what: str
    kind: Kind
    noise: float
    steps: int
    rate: float = 1.0
    samples: int = 0
    batch: int = 0
    groups: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        if any(not (budget > 0 and 0 <= rate <= self.rate) for budget, rate in self.groups):
            raise HushError(f"cost: invalid groups in {self}")
        if self.kind not in get_args(Kind):
            raise HushError(f"cost: unknown kind {self.kind!r}; accepted: {', '.join(get_args(Kind))}")
        if not (self.noise >= 0 and math.isfinite(self.noise) and self.steps >= 0 and 0 < self.rate <= 1):
            raise HushError(f"cost: invalid values in {self}")
        if self.kind == "fixed-gaussian" and not 1 <= self.batch <= self.samples:
            raise HushError(f"cost: a batch of {self.batch} from {self.samples} rows is impossible")

    def event(self) -> DpEvent:
        """Return the dp_accounting event of a cost."""
        import dp_accounting as dp

        if self.steps == 0:
            return dp.NoOpDpEvent()
        if self.noise == 0:
            return dp.NonPrivateDpEvent()
        one = dp.GaussianDpEvent(self.noise)
        if self.kind == "poisson-gaussian":
            one = dp.PoissonSampledDpEvent(self.rate, one)
        elif self.kind == "fixed-gaussian":
            one = dp.SampledWithoutReplacementDpEvent(self.samples, self.batch, one)
        return dp.SelfComposedDpEvent(one, self.steps)


def to_json(costs: Iterable[Cost]) -> str:
    """Return canonical JSON: equal costs give equal bytes."""
    return json.dumps([_words(cost) for cost in costs], sort_keys=True, separators=(",", ":"), allow_nan=False)


def _words(cost: Cost) -> dict[str, Any]:
    """The fields of a cost, without groups where there are none, as in ledgers that were made before there were any."""
    words = asdict(cost)
    if not cost.groups:
        del words["groups"]
    return words


def of_group(costs: Iterable[Cost], budget: float) -> tuple[Cost, ...]:
    """What the rows with this budget spend; costs without groups are the same for all rows."""
    return tuple(replace(c, rate=dict(c.groups).get(budget, c.rate), groups=()) if c.groups else c for c in costs)


def from_json(text: str) -> tuple[Cost, ...]:
    """Parse the output of `to_json`; any other text is an error."""
    try:
        raw = json.loads(text)
    except ValueError as error:
        raise HushError(f"cost: not JSON: {error}") from None
    if not isinstance(raw, list):
        raise HushError("cost: expected a list")
    return tuple(_one(entry) for entry in raw)


def _one(entry: Any) -> Cost:
    kinds = {
        "what": str,
        "kind": str,
        "noise": float | int,
        "steps": int,
        "rate": float | int,
        "samples": int,
        "batch": int,
    }
    if not isinstance(entry, Mapping) or set(entry) - {"groups"} != {field.name for field in fields(Cost)} - {"groups"}:
        raise HushError(f"cost: expected exactly the keys {', '.join(kinds)}, found {entry!r}")
    for name, kind in kinds.items():
        if isinstance(entry[name], bool) or not isinstance(entry[name], kind):
            raise HushError(f"cost: {name} is {entry[name]!r}")
    groups = entry.get("groups", [])
    pairs = isinstance(groups, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in groups)
    if not pairs or any(type(number) not in (int, float) for pair in groups for number in pair):
        raise HushError(f"cost: groups is {groups!r:.80}")
    return Cost(**{**entry, "groups": tuple((float(budget), float(rate)) for budget, rate in groups)})
