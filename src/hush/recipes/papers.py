"""Every algorithm by name, as a choice for each slot."""

from __future__ import annotations

from collections.abc import Mapping

from hush.recipes.frame import Recipe
from hush.recipes.protect import DpSgd, Nothing
from hush.recipes.weigh import Epsilon, EstimatedNoise

RECIPES: Mapping[str, Recipe] = {
    # McMahan et al. 2017, https://arxiv.org/abs/1602.05629
    "fedavg": Recipe(protect=Nothing()),
    # The same under each client's own budget
    "dp-fedavg": Recipe(),
    # Liu et al. 2022 (PFA), https://arxiv.org/abs/2110.15252
    "weiavg": Recipe(weigh=Epsilon()),
    "minimum": Recipe(protect=DpSgd(budget="minimum")),
    "maximum": Recipe(protect=DpSgd(budget="maximum")),
    # Malekmohammadi et al. 2024, https://arxiv.org/abs/2406.03519
    "robust-hdp": Recipe(weigh=EstimatedNoise(estimator="rpca")),
}

# As their papers ran them: Robust-HDP and its baselines with an accountant that stops at Renyi order 64.
FAITHFUL: Mapping[str, Recipe] = {
    "dp-fedavg": Recipe(protect=DpSgd(accountant="rdp-64")),
    "weiavg": Recipe(protect=DpSgd(accountant="rdp-64"), weigh=Epsilon()),
    "minimum": Recipe(protect=DpSgd(budget="minimum", accountant="rdp-64")),
    "maximum": Recipe(protect=DpSgd(budget="maximum", accountant="rdp-64")),
    "robust-hdp": Recipe(protect=DpSgd(accountant="rdp-64"), weigh=EstimatedNoise(estimator="rpca")),
}

SUMMARIES: Mapping[str, str] = {
    "fedavg": "no privacy, weights by amount of data",
    "dp-fedavg": "each client's own budget, weights by amount of data",
    "weiavg": "each client's own budget, weights by declared budget",
    "minimum": "everyone at the smallest budget, weights by amount of data",
    "maximum": "everyone at the largest budget (breaks the others' promise), weights by amount of data",
    "robust-hdp": "each client's own budget, weights by the noise the server estimates in each update",
}
