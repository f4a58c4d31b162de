"""From the `[recipe]` table of a config to a Recipe: a name, slots, or a name with some of its slots replaced.

A rule with a colon, `module:Class`, is an option of the user's own. In Python an option itself can stand in place of
its table, and a whole `Recipe` in place of all (`as_table`).
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from hush.config import Config, check_renamed
from hush.recipes.evaluation import Evaluation
from hush.recipes.interfaces import Assign, LocalRule, Option, Project, Protect, ServerStep, Weight
from hush.recipes.presets import FAITHFUL, RECIPES
from hush.recipes.recipe import Recipe
from hush.recipes.slots import assign, closed_form, clusters, local, project, protect, step, weight
from hush.types import HushError, unknown
from hush.user_code import user_code


def _by_rule(*options: Any) -> dict[str, Any]:
    return {option.rule: option for option in options}


SLOTS: Mapping[str, Mapping[str, Any]] = {
    "protect": _by_rule(protect.NoPrivacy, protect.DpSgd, protect.OutputPerturbation),
    "local": _by_rule(local.PlainSgd, local.Proximal, local.ControlVariates),
    "assign": _by_rule(
        assign.SingleModel,
        clusters.ByInputMean,
        clusters.GmmThenLoss,
        clusters.KMeansEachRound,
        clusters.ByLoss,
        clusters.Oracle,
    ),
    "project": _by_rule(
        project.Identity, project.PublicSubspace, project.DelayedPublicSubspace, project.RandomSubspace
    ),
    "weight": _by_rule(
        weight.Samples,
        weight.Uniform,
        weight.Epsilon,
        weight.EstimatedNoise,
        weight.Balanced,
        weight.Precision,
        weight.Impact,
    ),
    "step": _by_rule(
        step.Add,
        step.Momentum,
        step.Adam,
        step.Noisy,
        step.TwoSided,
        step.Ema,
        step.Recent,
        step.Tail,
        closed_form.ClosedForm,
    ),
}

BASES: Mapping[str, type[Option]] = {
    "protect": Protect,
    "local": LocalRule,
    "assign": Assign,
    "project": Project,
    "weight": Weight,
    "step": ServerStep,
}


# Algorithms that are one option of a slot here.
SYNONYMS = {
    "fedadam": 'step = "adam" (FedAdam is an option of the slot step, beside any name)',
    "fedopt": 'step = "adam" (an option of the slot step, beside any name)',
    "fedavgm": 'step = "momentum" (FedAvgM is an option of the slot step, beside any name)',
    "fedmomentum": 'step = "momentum" (an option of the slot step, beside any name)',
    "dp-fedadam": 'name = "dp-fedavg" with step = "adam"',
    "dp-fedavgm": 'name = "dp-fedavg" with step = "momentum"',
}


def as_table(recipe: object) -> dict[str, Any]:
    """The table of a config for a recipe given in Python: a name, a table, or a `Recipe`."""
    if isinstance(recipe, str):
        return {"name": recipe}
    if isinstance(recipe, Recipe):
        return dict(recipe.options)
    if not isinstance(recipe, Mapping):
        raise HushError(f"recipe: found {type(recipe).__name__}; accepted: a name, a table or a Recipe", "recipe")
    return dict(recipe)


def parse(table: Mapping[str, Any], mode: Literal["sound", "faithful"] = "sound") -> tuple[str, Recipe]:
    """The recipe and the name to show for it; in faithful mode as its paper ran it, where that differs."""
    check_renamed({"recipe": table})
    name = table.get("name")
    if name is not None and (not isinstance(name, str) or name not in RECIPES):
        meant = SYNONYMS.get(name.lower(), "") if isinstance(name, str) else ""
        raise unknown("recipe.name", "recipe", name, RECIPES, meant=meant)
    known = {**RECIPES, **FAITHFUL} if mode == "faithful" else RECIPES
    base = known[name] if name is not None else Recipe()
    slots = {key: value for key, value in table.items() if key != "name"}
    for key in slots:
        if key not in SLOTS:
            raise unknown(f"recipe.{key}", "key", key, ["name", *SLOTS])
    if not slots:
        return str(name or "custom"), base
    built = {key: _option(key, value, f"recipe.{key}") for key, value in slots.items()}
    return f"{name} (modified)" if name else "custom", dataclasses.replace(base, **built)


def configured(config: Config) -> tuple[str, Recipe]:
    """The recipe of a config with the evaluation that it asks for, and the name to show for it."""
    name, recipe = parse(config.recipe, config.mode)
    return name, _with_evaluation(recipe.participating(config.participation), config)


def _with_evaluation(recipe: Recipe, config: Config) -> Recipe:
    """Return the recipe with the evaluation that a config asks for, or raise a `HushError` if it cannot be charged."""
    asked = config.evaluation
    if asked.share == 0:
        if asked.patience or asked.choose == "best":
            text = "early stopping and the choice of a round need a share of the budget; set evaluation.share above 0"
            raise HushError(f"evaluation: {text}", "evaluation")
        return recipe
    protect = recipe.protect
    if not protect.private or not protect.spreads_budget:
        text = "the recipe does not calibrate each client's noise to its budget, of which evaluation is a part"
        raise HushError(f"evaluation.share: {text}; accepted with this recipe: 0", "evaluation.share")
    if config.objective.task not in ("auto", "binary", "multiclass"):
        text = "the counts are of correct and incorrect classes"
        raise HushError(
            f'evaluation.share: {text}; accepted with task "{config.objective.task}": 0', "evaluation.share"
        )
    late = [number for number in asked.rounds or () if number > config.rounds]
    if late:
        raise HushError(f"evaluation.rounds: {late[0]} of {config.rounds} rounds", "evaluation.rounds")
    last = config.rounds
    at = frozenset(asked.rounds or [*range(asked.every, last, asked.every), last])
    made = Evaluation(
        part=asked.share, at=at, bins=asked.bins, metric=asked.metric, patience=asked.patience, choose=asked.choose
    )
    return dataclasses.replace(recipe, evaluation=made)


def _option(slot: str, spec: Any, key: str) -> Any:
    if isinstance(spec, BASES[slot]):
        return spec
    if isinstance(spec, Option):
        raise HushError(f"{key}: {type(spec).__name__} is not an option of {slot}; accepted: a {_base(slot)}", key)
    table = {"rule": spec} if isinstance(spec, str) else spec
    if not isinstance(table, Mapping) or "rule" not in table:
        raise HushError(f'{key}: expected a rule name or a table such as {{ rule = "..." }}, found {spec!r}', key)
    rules = SLOTS[slot]
    rule = table["rule"]
    own = isinstance(rule, str) and ":" in rule
    if not own and (not isinstance(rule, str) or rule not in rules):
        raise unknown(f"{key}.rule", "rule", rule, rules, ", or module:Class for your own")
    option = _own(slot, rule, f"{key}.rule") if own else rules[rule]
    kinds = typing.get_type_hints(option)
    known = [field.name for field in dataclasses.fields(option)]
    values: dict[str, Any] = {}
    for name, value in table.items():
        if name == "rule":
            continue
        if name not in known:
            raise unknown(f"{key}.{name}", "key", name, ["rule", *known])
        if name == "inner":
            values[name] = _option(slot, value, f"{key}.inner")
        else:
            values[name] = _typed(kinds[name], value, f"{key}.{name}")
    try:
        return option(**values)
    except ValueError as error:
        raise HushError(f"{key}.{error}", key) from None


def _own(slot: str, name: str, key: str) -> Any:
    """The user's own option, once it can be used; modules are looked for in the working directory too."""
    try:
        option = user_code(name)
        if not (isinstance(option, type) and dataclasses.is_dataclass(option)):
            raise TypeError("it is not a dataclass")
        usual = option()
    except Exception as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        wanted = "expected module:Class, a dataclass with a default for each setting"
        raise HushError(f"{key}: {name!r} cannot be used: {reason}; {wanted}", key) from None
    if not isinstance(usual, BASES[slot]):
        raise HushError(f"{key}: {name!r} is not an option of {slot}; accepted: a subclass of {_base(slot)}", key)
    return option


def _base(slot: str) -> str:
    return f"hush.{BASES[slot].__name__}"


def _typed(kind: Any, value: Any, key: str) -> Any:
    try:
        return TypeAdapter(kind).validate_python(value, strict=True)
    except ValidationError as error:
        words = error.errors()[0]["msg"].replace("Input should be", "expected")
        raise HushError(f"{key}: {words}, found {value!r}", key) from None
