"""The Python API: what the command line does, in a few calls.

Imports are inside the functions, so that `import hush` and `hush --help` stay quick.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hush.types import Accountant, HushError, Policy, Relation, RoundRecord, RunResult

if TYPE_CHECKING:
    from torch import nn

    from hush.config import Config
    from hush.data.datasets import Dataset

    ConfigLike = Config | Mapping[str, Any] | str | Path

Progress = Callable[[RoundRecord], None]


def simulate(
    config: ConfigLike,
    *,
    overrides: Sequence[str] = (),
    out: str | Path | None = None,
    resume: bool = False,
    data: str | None = None,
    dataset: Dataset | None = None,
    model: nn.Module | None = None,
    command: str = "",
    progress: Progress | None = None,
) -> RunResult:
    """Run one federation.

    Args:
        config: A config, a nested mapping, or the path of a TOML file.
        overrides: `key=value` strings, as `--set` takes them.
        out: The run directory; without one nothing is written.
        resume: Go on with the run in `out`.
        data: The directory with the public dataset files; else the environment's HUSH_DATA.
        dataset: Your own arrays (`hush.data.from_arrays`) in place of a named dataset.
        model: Your own module in place of a named model.
        command: What to note in the manifest as the way to run it again.
        progress: Called after every round.
    """
    from hush.config import located

    checked = _config(config, overrides)
    try:
        return _simulate(checked, out, resume, data, dataset, model, command, progress)
    except HushError as error:
        raise (located(error, Path(config), overrides) if isinstance(config, str | Path) else error) from None


def compare(
    config: ConfigLike,
    recipes: Sequence[str],
    *,
    seeds: int = 1,
    overrides: Sequence[str] = (),
    out: str | Path | None = None,
    resume: bool = False,
    data: str | None = None,
    command: str = "",
    progress: Callable[[str, int, RoundRecord], None] | None = None,
) -> dict[str, Any]:
    """Run several recipes on the same clients, data and budgets, over several seeds.

    Returns:
        `{"command", "seeds", "recipes": {name: {"accuracy": spread over seeds, "runs": [...], "not_covered": [...]}}}`
    """
    from hush.comparison import compared

    return compared(_config(config, overrides), recipes, seeds, out, resume, data, command, progress)


def plan(
    *,
    epsilon: float,
    delta: float,
    samples: int,
    batch: int,
    rounds: int,
    epochs: int = 1,
    accountant: Accountant = "pld",
    relation: Relation = "add-remove",
) -> dict[str, Any]:
    """The noise that a client with this budget needs, and the epsilon it then spends."""
    from hush.privacy import accounting
    from hush.privacy.plan import calibrated

    for name, value in (("samples", samples), ("batch", batch), ("rounds", rounds), ("epochs", epochs)):
        if value < 1:
            raise HushError(f"{name}: expected 1 or more, found {value}")
    if not (epsilon > 0 and math.isfinite(epsilon)):
        raise HushError(f"epsilon: expected a positive number, found {epsilon}")
    if not 0 < delta < 1:
        raise HushError(f"delta: expected a number between 0 and 1 (both excluded), found {delta}")
    if batch > samples:
        raise HushError(f"batch: {batch} is more than the {samples} samples; accepted: 1 to {samples}")
    made = calibrated(
        Policy(epsilon, delta, relation), samples=samples, batch=batch, epochs=epochs, rounds=rounds, clip=1.0,
        accountant=accountant,
    )  # fmt: skip
    return {
        "noise_multiplier": made.noise_multiplier,
        "epsilon": accounting.epsilon_after(
            made.rate, made.noise_multiplier, [rounds * made.steps], delta, relation, accountant
        )[0],
        "delta": delta,
        "relation": relation,
        "accountant": accountant,
        "steps": rounds * made.steps,
        "sample_rate": made.rate,
    }


def _config(config: ConfigLike, overrides: Sequence[str]) -> Config:
    from hush.config import Config, load, overridden, parse

    if isinstance(config, str | Path):
        return load(Path(config), overrides)
    raw = config.model_dump() if isinstance(config, Config) else dict(config)
    return parse(overridden(raw, overrides))


def _simulate(
    config: Config,
    out: str | Path | None,
    resume: bool,
    data: str | None,
    dataset: Dataset | None,
    model: nn.Module | None,
    command: str,
    progress: Progress | None,
) -> RunResult:
    from hush import report
    from hush.engines import cohort
    from hush.engines.federation import prepare

    federation = prepare(config, root=data, dataset=dataset, module=model)
    path = Path(out) if out is not None else None
    result = cohort.run(federation, path, resume=resume, command=command, progress=progress)
    if path is not None:
        report.write(path)
    return result
