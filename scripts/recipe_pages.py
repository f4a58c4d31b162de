"""Write docs/recipes.md and docs/recipes.svg from results/recipes.json and the code; `--measure` measures first.

Run it from the repository: `.venv/bin/python -m scripts.recipe_pages`. Measuring takes some minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hush.recipes import RECIPES, Recipe
from hush.recipes.presets import FAITHFUL
from hush.recipes.slots.protect import NoPrivacy
from hush.types import Release
from scripts import few_rounds
from scripts import recipe_tables as tables
from scripts.recipe_figure import figure
from scripts.recipe_measure import COMMAND, SETTINGS, measure
from scripts.recipe_words import WORDS

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "recipes.json"
PAGE = ROOT / "docs" / "recipes.md"
FIGURE = ROOT / "docs" / "recipes.svg"
FEW = """
## Few rounds
The settings above have 16 to 20 rounds. With `local.lr = "auto"` the rate follows from the planned noise and the number
of rounds by one rule ([ADR 17](adr/0017-rates-for-any-number-of-rounds.md),
[ADR 60](adr/0060-rates-for-smooth-losses.md)), and the batches of `hush` from its budget and the number of steps
([ADR 51](adr/0051-batches-and-weights-in-few-rounds.md)). Accuracy in percent, mean over the seeds, of `hush` at the
automatic rate, and of the best of {others}
at the best of the rates {rates}:

{table}

The data are digits for 12 clients, with `dist2` and batches of 8 to 64 under logistic regression, and with epsilon 1
and 8 under an MLP with 32 units; {mnist} rows of MNIST for 12 clients, iid, `dist6`; and {fashion} rows of
Fashion-MNIST for 15 clients with 6 classes each, `dist4`; both with batches of 16, 64 or 128 and a linear model on
scattering features. `tabular` and `two-moons` are made data with little noise, 6 clients with epsilon 0.5 to 8 under
logistic regression and 8 with epsilon 1 to 8 under an MLP: there all recipes come close to what is possible, and the
rate decides. The rows of `mnist` and `fashion-mnist` were recorded with the distance of pixels, 9, and those of 100 and
200 rounds with the rate before ADR 60, which has figures of `hush` with the present rates.
Differences of a point on one or two seeds are within the spread. Each run is in `results/few-rounds.json`, made by

<!-- code: not executed: hours; tests/docs/test_recipes_page.py compares the page with the results -->

    {command}
"""

POINT = 0.01

HEAD = """\
# Recipes

This page and its figure are written by `scripts/recipe_pages.py` from `results/recipes.json` and the code; the tests
check that they are up to date.

A recipe selects one option for each of six slots: the privacy mechanism (`protect`), the local training step
(`local`), the assignment of clients to models (`assign`), the projection of updates (`project`), the aggregation
weights (`weight`) and the server step (`step`). A recipe name stands for all six, and each of them can be overridden:

```toml
[recipe]
name = "robust-hdp"
local = "control-variates"
step = {{ rule = "ema", decay = 0.9 }}
```

[Adding your own recipe](extending.md) takes one file. Coloured cells differ from the defaults, which are `dp-fedavg`:

![Every recipe as a row of its six slots; the sections below contain the same information as text.](recipes.svg)

## Measurements
Digits, logistic regression, {clients} clients, one learning rate for all, {seeds} seeds, in four settings, each
with one pronounced difference between clients. The results show which recipe suits which difference. They are not a
ranking: with another size, budget or learning rate the order can change, so compare recipes on your own setting
(`hush compare FILE.toml --recipes a,b --seeds 5`).

{settings}

Accuracy in percent on clients' held-out rows after the last round, mean ± sample standard deviation over the seeds,
for the clients reported in each setting:

{table}

`fedsgd` and `dp-fedsgd` were run with `{changes}`, `hush` with `{own}`.
Below, a recipe is called better or worse than another if all {seeds} seeds agree and the means differ by at least one
point. The worst client is the minimum over all clients. All results are produced by

<!-- code: not executed: hours; tests/docs/test_recipes_page.py compares the page with the results -->

    {command}
"""


def papers() -> dict[str, tuple[str, str, list[str]]]:
    """By short title: the citation, the link and the recipes of each paper, from the comments in papers.py."""
    source = (ROOT / "src" / "hush" / "recipes" / "presets.py").read_text(encoding="utf-8")
    found: dict[str, tuple[str, str, list[str]]] = {}
    title = ""
    for line in source.partition("}\n")[0].splitlines():
        if paper := re.match(r"\s*# (.+ \d{4}(?: \((.+?)\))?), (https://\S+?)(?:;.*)?$", line):
            title = paper[2] or paper[1]
            found[title] = (paper[1], paper[3], [])
        elif re.match(r"\s*# Hush's own", line):
            title = "Hush"
            found[title] = ("", "", [])
        elif title and (entry := re.match(r'\s*"([\w-]+)": Recipe\(', line)):
            found[title][2].append(entry[1])
    return found


def page(results: Mapping[str, Any]) -> str:
    """The whole page."""
    settings = results["settings"]
    config = next(iter(settings.values()))["config"]
    described = [
        f"- **{each.title}**, {each.where}. {each.words} "
        f"{settings[key]['config']['rounds']} rounds. Reported: {settings[key]['looked_at']}."
        for key, each in SETTINGS.items()
    ]
    rows = [["recipe", *(each.title for each in SETTINGS.values())]]
    rows += [[f"[`{name}`](#{name})", *(_cell(settings[key], name) for key in SETTINGS)] for name in RECIPES]
    head = HEAD.format(
        clients=config["data"]["clients"],
        seeds=_seeds(results),
        settings="\n".join(_wrapped(line, "  ") for line in described),
        table=_table(rows),
        changes="`, `".join(results["overrides"]["fedsgd"]),
        own="`, `".join(results["overrides"]["hush"]),
        command=COMMAND,
    )
    return head + few() + "".join(_section(name, results) for name in RECIPES) + tables.options() + tables.pairs()


def few() -> str:
    """The section about few rounds."""
    content = json.loads(few_rounds.RESULTS.read_text(encoding="utf-8"))
    return FEW.format(
        others=_listed([f"`{name}`" for name in few_rounds.OTHERS]),
        rates=_listed([str(rate) for rate in few_rounds.RATES]),
        table=few_rounds.table(content),
        mnist=f"{content['rows']['mnist']:,}",
        fashion=f"{content['rows']['fashion-mnist']:,}",
        command=content["command"],
    )


def _section(name: str, results: Mapping[str, Any]) -> str:
    words, recipe = WORDS[name], RECIPES[name]
    citation, link = next((cited, url) for cited, url, names in papers().values() if name in names)
    parts = [
        f"\n## {name}",
        _wrapped(words.idea),
        "",
        "```toml\n[recipe]",
        *(f"{slot} = {tables.toml(getattr(recipe, slot))}" for slot in _slots()),
        "```",
        "",
        _wrapped(f"**When to use.** {verdict(name, results)}{' ' + words.caution if words.caution else ''}"),
        "",
        _figures(name, results),
        "",
        "**Releases.**",
        *(_wrapped(line, "  ") for line in map(_released, recipe.releases())),
        "",
        _wrapped(f"**Faithful mode.** {_faithful(name)}{' ' + words.paper if words.paper else ''}"),
        "",
        *((f"**Paper.** [{citation}]({link})", "") if link else ("**Paper.** None: developed in this project.", "")),
    ]
    return "\n".join(parts)


def baseline(name: str) -> str:
    """What a recipe is compared with: the plain one with as much privacy, or with none."""
    if name == "fedavg":
        return "dp-fedavg"
    return "fedavg" if name == "dp-fedavg" or type(RECIPES[name].protect) is NoPrivacy else "dp-fedavg"


def judged(name: str, results: Mapping[str, Any], what: str = "accuracy") -> dict[str, str]:
    """By setting: better, worse, equal or unclear against the baseline."""
    found = {}
    for key, setting in results["settings"].items():
        own, other = (setting["recipes"][each][what]["by_seed"] for each in (name, baseline(name)))
        gains = [a - b for a, b in zip(own, other, strict=True)]
        mean = sum(gains) / len(gains)
        if not any(gains):
            found[key] = "equal"
        elif min(gains) > 0 and mean >= POINT:
            found[key] = "better"
        elif max(gains) < 0 and mean <= -POINT:
            found[key] = "worse"
        else:
            found[key] = "unclear"
    return found


def verdict(name: str, results: Mapping[str, Any]) -> str:
    """When to use a recipe and when not, in sentences whose numbers are measured."""
    other, by_setting = f"`{baseline(name)}`", judged(name, results)

    def listed(kind: str) -> str:
        keys = [key for key, found in by_setting.items() if found == kind]
        figures = [_against(name, key, results) for key in keys]
        if kind == "equal":
            return _listed([SETTINGS[key].where for key in keys])
        return _listed([f"{SETTINGS[key].where} ({figure})" for key, figure in zip(keys, figures, strict=True)])

    bound = WORDS[name].bound
    sentences = []
    if better := listed("better"):
        sentences.append(f"Above {other} {better}." if bound else f"Use it {better}: better than {other}.")
    elif not bound:
        sentences.append(f"No measured setting favours it over {other}.")
    if worse := listed("worse"):
        sentences.append(f"Below {other} {worse}." if bound else f"Do not use it {worse}.")
    if unclear := listed("unclear"):
        sentences.append(f"No clear difference {unclear}.")
    if equal := listed("equal"):
        sentences.append(f"Identical to {other} {equal}.")
    lows = [key for key, found in judged(name, results, "worst_client").items() if found == "worse"]
    hidden = [
        f"{SETTINGS[key].where} ({_against(name, key, results, 'worst_client')})"
        for key in lows
        if by_setting[key] != "worse"
    ]
    if hidden:
        sentences.append(f"Lower accuracy of the worst client {_listed(hidden)}.")
    return " ".join(sentences)


def _against(name: str, key: str, results: Mapping[str, Any], what: str = "accuracy") -> str:
    recipes = results["settings"][key]["recipes"]
    own, other = (recipes[each][what]["mean"] for each in (name, baseline(name)))
    return f"{_percent(own)} against {_percent(other)} %"


def _figures(name: str, results: Mapping[str, Any]) -> str:
    rows = [["", name, baseline(name), "worst client", f"{baseline(name)}, worst client"]]
    for key, setting in results["settings"].items():
        own, other = setting["recipes"][name], setting["recipes"][baseline(name)]
        cells = [_spread(figures[what]) for what in ("accuracy", "worst_client") for figures in (own, other)]
        rows.append([SETTINGS[key].title, *cells])
    return _table(rows)


def _faithful(name: str) -> str:
    if name not in FAITHFUL:
        return '`mode = "faithful"` changes nothing for this recipe.'
    sound, printed = RECIPES[name], FAITHFUL[name]
    slots = [slot for slot in _slots() if getattr(sound, slot) != getattr(printed, slot)]
    changed = [f"`{slot} = {tables.toml(getattr(printed, slot))}`" for slot in slots]
    bare = [r.what for r in printed.releases() if not r.covered and r not in sound.releases()]
    text = f'`mode = "faithful"` sets {_listed(changed)}.'
    return text + (f" Not covered in this mode: {_listed(bare)}." if bare else "")


def _released(release: Release) -> str:
    cover = "covered" if release.covered else "**not covered**"
    event = f" ({release.event})" if release.event else ""
    return f"- {release.what}, {cover}{event}: {release.why}"


def _slots() -> list[str]:
    return list(Recipe().options)


def _seeds(results: Mapping[str, Any]) -> int:
    return len(next(iter(results["settings"].values()))["seeds"])


def _cell(setting: Mapping[str, Any], name: str) -> str:
    return _spread(setting["recipes"][name]["accuracy"])


def _spread(figure: Mapping[str, Any]) -> str:
    return f"{_percent(figure['mean'])} ± {_percent(figure['std'])}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _listed(items: Sequence[str]) -> str:
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def _table(rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def drawing() -> str:
    """The figure."""
    return figure({title: names for title, (_, _, names) in papers().items()}, RECIPES, Recipe())


def _joined(known: dict[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The known figures with the newly measured recipes put in, in the order of the recipes."""
    for key, setting in new["settings"].items():
        both = {**known["settings"][key]["recipes"], **setting["recipes"]}
        known["settings"][key]["recipes"] = {name: both[name] for name in RECIPES if name in both}
    return {**known, "overrides": new["overrides"]}


def main() -> None:
    """Measure if asked to, and write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--measure", nargs="*", metavar="RECIPE", help="measure these recipes again, or all (takes minutes)"
    )
    asked = parser.parse_args().measure
    if asked is not None:
        found = measure(asked or list(RECIPES))
        if asked:
            found = _joined(json.loads(RESULTS.read_text(encoding="utf-8")), found)
        text = json.dumps(found, indent=2, ensure_ascii=False)
        # Lists of numbers on one line each, which is how they are read.
        text = re.sub(r"\[\s+([-\d.,\s]+?)\s+\]", lambda match: f"[{' '.join(match[1].split())}]", text)
        RESULTS.write_text(text + "\n", encoding="utf-8")
    PAGE.write_text(page(json.loads(RESULTS.read_text(encoding="utf-8"))), encoding="utf-8")
    FIGURE.write_text(drawing(), encoding="utf-8")


if __name__ == "__main__":
    main()
