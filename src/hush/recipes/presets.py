"""Presets: every algorithm by name, as a choice for each slot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hush.recipes.recipe import Recipe
from hush.recipes.slots.closed_form import ClosedForm
from hush.recipes.slots.clusters import ByInputMean, ByLoss, GmmThenLoss, KMeansEachRound, Oracle
from hush.recipes.slots.local import ControlVariates, Proximal
from hush.recipes.slots.project import DelayedPublicSubspace, PublicSubspace
from hush.recipes.slots.protect import DpSgd, NoPrivacy, OutputPerturbation
from hush.recipes.slots.step import Recent, TwoSided
from hush.recipes.slots.weight import Balanced, Epsilon, EstimatedNoise, Impact, Precision, Samples, Uniform

RECIPES: Mapping[str, Recipe] = {
    # McMahan et al. 2017, https://arxiv.org/abs/1602.05629; with each client's own budget
    "fedavg": Recipe(protect=NoPrivacy()),
    "dp-fedavg": Recipe(),
    "fedsgd": Recipe(protect=NoPrivacy(), weight=Uniform()),
    "dp-fedsgd": Recipe(weight=Uniform()),
    # Li et al. 2020, https://arxiv.org/abs/1812.06127
    "fedprox": Recipe(protect=NoPrivacy(), local=Proximal()),
    # Liu et al. 2022 (PFA), https://doi.org/10.14778/3503585.3503592
    "weiavg": Recipe(weight=Epsilon()),
    "pfa": Recipe(weight=Epsilon(), project=PublicSubspace()),
    "pfa-plus": Recipe(weight=Epsilon(), project=DelayedPublicSubspace()),
    "minimum": Recipe(protect=DpSgd(budget="minimum")),
    "maximum": Recipe(protect=DpSgd(budget="maximum")),
    # Malekmohammadi et al. 2024 (Robust-HDP), https://arxiv.org/abs/2406.03519
    "robust-hdp": Recipe(weight=EstimatedNoise(estimator="rpca")),
    # Noble, Bellet and Dieuleveut 2022 (DP-SCAFFOLD), https://arxiv.org/abs/2111.09278
    "scaffold": Recipe(protect=NoPrivacy(), local=ControlVariates(), weight=Uniform()),
    "scaffold-warm": Recipe(protect=NoPrivacy(), local=ControlVariates(visits=4), weight=Uniform()),
    "dp-scaffold": Recipe(local=ControlVariates(), weight=Uniform()),
    "dp-scaffold-warm": Recipe(local=ControlVariates(visits=4), weight=Uniform()),
    # Malekmohammadi et al. 2024 (RC-DPFL), https://arxiv.org/abs/2405.19272
    "rc-dpfl": Recipe(assign=GmmThenLoss()),
    "km-cdpfl": Recipe(assign=KMeansEachRound()),
    "f-cdpfl": Recipe(assign=ByLoss()),
    "o-cdpfl": Recipe(assign=Oracle()),
    # Talaei and Izadi 2024 (PADPFL), https://arxiv.org/abs/2406.18491
    "padpfl": Recipe(local=Proximal(), weight=Impact()),
    # Wang 2018 (AdaSSP), https://arxiv.org/abs/1803.02596; for classes, and by clients with budgets of their own
    "closed-form": Recipe(weight=Precision(), step=ClosedForm()),
    # Hush's own: what was best on all of the above at once (docs/results.md)
    "hush": Recipe(
        protect=DpSgd(steps=10, batches="large", centre=0.05),
        assign=ByInputMean(),
        weight=Balanced(),
        step=Recent(),
    ),
}

_DATED = DpSgd(accountant="rdp-64", sampler="even")
_FIXED = DpSgd(sampler="fixed", draws="shared")

# As their papers ran them, where that differs: what they leave uncovered is declared by the same choices.
FAITHFUL: Mapping[str, Recipe] = {
    "dp-fedavg": Recipe(protect=_DATED),
    "weiavg": Recipe(protect=_DATED, weight=Epsilon()),
    "pfa": Recipe(protect=_DATED, weight=Epsilon(), project=PublicSubspace()),
    "pfa-plus": Recipe(protect=_DATED, weight=Epsilon(), project=DelayedPublicSubspace()),
    "minimum": Recipe(protect=replace(_DATED, budget="minimum")),
    "maximum": Recipe(protect=replace(_DATED, budget="maximum")),
    "robust-hdp": Recipe(protect=_DATED, weight=EstimatedNoise(estimator="rpca")),
    "dp-fedsgd": Recipe(protect=_FIXED, weight=Uniform()),
    "dp-scaffold": Recipe(protect=_FIXED, local=ControlVariates(), weight=Uniform()),
    "dp-scaffold-warm": Recipe(protect=_FIXED, local=ControlVariates(visits=4), weight=Uniform()),
    "rc-dpfl": Recipe(
        protect=_DATED, assign=GmmThenLoss(share=0.0, every=1, features="standardised"), weight=Samples()
    ),
    "f-cdpfl": Recipe(protect=_DATED, assign=ByLoss(share=0.0, every=1)),
    "km-cdpfl": Recipe(protect=_DATED, assign=KMeansEachRound()),
    "o-cdpfl": Recipe(protect=_DATED, assign=Oracle()),
    "padpfl": Recipe(protect=OutputPerturbation(), local=Proximal(), weight=Impact(), step=TwoSided()),
}

SUMMARIES: Mapping[str, str] = {
    "fedavg": "no privacy, weighted by sample count",
    "dp-fedavg": "each client's own budget, weighted by sample count",
    "fedsgd": "no privacy, equal weights; one epoch of large batches (set local.steps)",
    "dp-fedsgd": "each client's own budget, equal weights; one epoch of large batches (set local.steps)",
    "fedprox": "no privacy, proximal term towards the global model",
    "weiavg": "each client's own budget, weighted by declared budget",
    "pfa": "weiavg, with private updates projected onto the subspace of the public ones",
    "pfa-plus": "pfa with the previous round's subspace, so that private clients send only a few coefficients",
    "minimum": "all clients use the smallest budget, weighted by sample count",
    "maximum": "all clients use the largest budget (violates the other budgets), weighted by sample count",
    "robust-hdp": "each client's own budget, weighted by the noise the server estimates in each update",
    "scaffold": "no privacy, drift correction by control variates",
    "scaffold-warm": "scaffold with warm-up rounds that only update the control variates",
    "dp-scaffold": "each client's own budget, drift correction by control variates",
    "dp-scaffold-warm": "dp-scaffold with warm-up rounds that only update the control variates",
    "rc-dpfl": "one model per cluster: clusters from the updates of a full-batch round, later chosen by noisy loss",
    "km-cdpfl": "one model per cluster: k-means on the updates in every round",
    "f-cdpfl": "one model per cluster: clients choose by noisy loss in every round",
    "o-cdpfl": "one model per cluster, with known true clusters",
    "padpfl": "weighted by impact factors, proximal term towards the global model",
    "closed-form": "a linear head solved from one noised release per client, for fixed features",
    "hush": "steps and batches chosen per budget, inputs centred by a privately estimated mean, one model per cluster "
    "found in these means, weighted by noise and heterogeneity",
}
