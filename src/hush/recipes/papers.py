"""Every algorithm by name, as a choice for each slot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hush.recipes.clusters import ByLoss, GmmThenLoss, KMeansEachRound, Oracle
from hush.recipes.frame import Recipe
from hush.recipes.local import ControlVariates, Proximal
from hush.recipes.project import DelayedPublicSubspace, PublicSubspace
from hush.recipes.protect import DpSgd, Nothing, OutputPerturbation
from hush.recipes.step import Ema
from hush.recipes.weigh import Balanced, Epsilon, EstimatedNoise, Impact, Samples, Uniform

RECIPES: Mapping[str, Recipe] = {
    # McMahan et al. 2017, https://arxiv.org/abs/1602.05629; with each client's own budget
    "fedavg": Recipe(protect=Nothing()),
    "dp-fedavg": Recipe(),
    "fedsgd": Recipe(protect=Nothing(), weigh=Uniform()),
    "dp-fedsgd": Recipe(weigh=Uniform()),
    # Li et al. 2020, https://arxiv.org/abs/1812.06127
    "fedprox": Recipe(protect=Nothing(), local=Proximal()),
    # Liu et al. 2022 (PFA), https://doi.org/10.14778/3503585.3503592
    "weiavg": Recipe(weigh=Epsilon()),
    "pfa": Recipe(weigh=Epsilon(), project=PublicSubspace()),
    "pfa-plus": Recipe(weigh=Epsilon(), project=DelayedPublicSubspace()),
    "minimum": Recipe(protect=DpSgd(budget="minimum")),
    "maximum": Recipe(protect=DpSgd(budget="maximum")),
    # Malekmohammadi et al. 2024 (Robust-HDP), https://arxiv.org/abs/2406.03519
    "robust-hdp": Recipe(weigh=EstimatedNoise(estimator="rpca")),
    # Noble, Bellet and Dieuleveut 2022 (DP-SCAFFOLD), https://arxiv.org/abs/2111.09278
    "scaffold": Recipe(protect=Nothing(), local=ControlVariates(), weigh=Uniform()),
    "scaffold-warm": Recipe(protect=Nothing(), local=ControlVariates(warm=4), weigh=Uniform()),
    "dp-scaffold": Recipe(local=ControlVariates(), weigh=Uniform()),
    "dp-scaffold-warm": Recipe(local=ControlVariates(warm=4), weigh=Uniform()),
    # Malekmohammadi et al. 2024 (RC-DPFL), https://arxiv.org/abs/2405.19272
    "rc-dpfl": Recipe(assign=GmmThenLoss()),
    "km-cdpfl": Recipe(assign=KMeansEachRound()),
    "f-cdpfl": Recipe(assign=ByLoss()),
    "o-cdpfl": Recipe(assign=Oracle()),
    # Talaei and Izadi 2024 (PADPFL), https://arxiv.org/abs/2406.18491
    "padpfl": Recipe(local=Proximal(), weigh=Impact()),
    # Hush's own: what was best on all of the above at once (docs/results.md)
    "hush": Recipe(protect=DpSgd(steps=10, centre=0.05), weigh=Balanced(), step=Ema(decay=0.9)),
}

_DATED = DpSgd(accountant="rdp-64", sampler="even")
_FIXED = DpSgd(sampler="fixed", draws="shared")

# As their papers ran them, where that differs: what they leave uncovered is declared by the same choices.
FAITHFUL: Mapping[str, Recipe] = {
    "dp-fedavg": Recipe(protect=_DATED),
    "weiavg": Recipe(protect=_DATED, weigh=Epsilon()),
    "pfa": Recipe(protect=_DATED, weigh=Epsilon(), project=PublicSubspace()),
    "pfa-plus": Recipe(protect=_DATED, weigh=Epsilon(), project=DelayedPublicSubspace()),
    "minimum": Recipe(protect=replace(_DATED, budget="minimum")),
    "maximum": Recipe(protect=replace(_DATED, budget="maximum")),
    "robust-hdp": Recipe(protect=_DATED, weigh=EstimatedNoise(estimator="rpca")),
    "dp-fedsgd": Recipe(protect=_FIXED, weigh=Uniform()),
    "dp-scaffold": Recipe(protect=_FIXED, local=ControlVariates(), weigh=Uniform()),
    "dp-scaffold-warm": Recipe(protect=_FIXED, local=ControlVariates(warm=4), weigh=Uniform()),
    "rc-dpfl": Recipe(protect=_DATED, assign=GmmThenLoss(share=0.0, every=1, features="standardised"), weigh=Samples()),
    "f-cdpfl": Recipe(protect=_DATED, assign=ByLoss(share=0.0, every=1)),
    "km-cdpfl": Recipe(protect=_DATED, assign=KMeansEachRound()),
    "o-cdpfl": Recipe(protect=_DATED, assign=Oracle()),
    "padpfl": Recipe(protect=OutputPerturbation(), local=Proximal(), weigh=Impact()),
}

SUMMARIES: Mapping[str, str] = {
    "fedavg": "no privacy, weights by amount of data",
    "dp-fedavg": "each client's own budget, weights by amount of data",
    "fedsgd": "no privacy, equal weights; one pass of large steps (set local.steps)",
    "dp-fedsgd": "each client's own budget, equal weights; one pass of large steps (set local.steps)",
    "fedprox": "no privacy, steps pulled back to the global model",
    "weiavg": "each client's own budget, weights by declared budget",
    "pfa": "weiavg, with private updates projected on the directions of the public ones",
    "pfa-plus": "pfa with last round's directions, so that private clients send a few numbers",
    "minimum": "everyone at the smallest budget, weights by amount of data",
    "maximum": "everyone at the largest budget (breaks the others' promise), weights by amount of data",
    "robust-hdp": "each client's own budget, weights by the noise the server estimates in each update",
    "scaffold": "no privacy, steps corrected by control variates",
    "scaffold-warm": "scaffold whose first rounds only fill the control variates",
    "dp-scaffold": "each client's own budget, steps corrected by control variates",
    "dp-scaffold-warm": "dp-scaffold whose first rounds only fill the control variates",
    "rc-dpfl": "a model per cluster: found in the updates of a full-batch round, later chosen by noisy loss",
    "km-cdpfl": "a model per cluster: k-means on the updates, every round",
    "f-cdpfl": "a model per cluster: clients choose by noisy loss from the start",
    "o-cdpfl": "a model per cluster, with the true clusters known beforehand",
    "padpfl": "impact factors as weights, steps pulled back to the global model",
    "hush": "own steps for every budget, rows counted from a private centre, weights by noise and by difference",
}
