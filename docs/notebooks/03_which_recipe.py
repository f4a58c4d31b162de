# %% [markdown]
# # Which recipe for which difference
# Clients can differ in their budgets, in their labels, or in what they measure. Each difference has recipes that were
# made for it. Here are three small federations on handwritten digits, each with one difference, and six recipes on
# each of them.

# %%
import numpy as np

import hush

recipes = ["dp-fedavg", "robust-hdp", "dp-scaffold", "rc-dpfl", "o-cdpfl", "hush"]
common = {"clients": 12, "rounds": 20, "batch_size": 32, "seed": 1}
settings = {
    "budgets": {"epsilon": [0.2] * 5 + [1.0] * 4 + [5.0] * 3, "partition": "iid"},
    "labels": {"epsilon": [1.0, 8.0] * 6, "partition": {"name": "shards", "classes": 2}, "epochs": 4},
    "rotations": {"epsilon": 5.0, "partition": {"name": "rotation", "clusters": [8, 4]}},
}
settings["budgets"]

# %% [markdown]
# - **budgets**: rows at random, epsilon from 0.2 to 5;
# - **labels**: each client has digits of two classes;
# - **rotations**: eight clients see upright digits, four see them turned by 90 degrees.
#
# `rc-dpfl` looks for clusters of clients and trains one model for each; `o-cdpfl` is given the true clusters. Without
# clusters it is `dp-fedavg`. `compare` trains all recipes on the same clients, in lockstep, over several seeds.

# %%
tables = {
    name: hush.Simulation("digits", "logreg", **common, **setting).compare(recipes, seeds=2)
    for name, setting in settings.items()
}
tables["budgets"]

# %%
# Mean accuracy in percent as a heat map: recipes as rows, the three differences as columns.
import matplotlib.pyplot as plt

found = np.array(
    [[dict(zip(t["recipe"], t["accuracy"], strict=True))[recipe] for t in tables.values()] for recipe in recipes]
)
figure, axes = plt.subplots(figsize=(5.6, 3.4))
axes.imshow(found, cmap="Blues", vmin=0.2, vmax=1.0, aspect="auto")
for (row, column), value in np.ndenumerate(found):
    axes.text(column, row, f"{100 * value:.0f}", ha="center", va="center", color="white" if value > 0.65 else "#1b1f24")
axes.set(xticks=range(len(tables)), yticks=range(len(recipes)))
axes.set_xticklabels(list(tables))
axes.set_yticklabels(recipes)
figure.tight_layout()

# %% [markdown]
# Different budgets ask for weights by noise: `robust-hdp` and `hush`. Different labels ask for less drift:
# `dp-scaffold`, and `hush`, which takes few steps. Different rotations ask for more than one model.
#
# ## The worst client
# The mean hides who pays. `worst_client` is the accuracy of the client that fares worst, over all seeds. With
# rotations, one model for everybody sacrifices the minority; with one model per true cluster nobody is left behind.
# Clusters that must be found in noisy updates are sometimes the wrong ones.

# %%
for row in tables["rotations"]:
    print(f"{row['recipe']:12} mean {100 * row['accuracy']:.0f} %, worst client {100 * row['worst_client']:.0f} %")

# %% [markdown]
# ## Mixing slots
# A recipe is a choice for [six slots](../concepts/slots.md), so that answers to two differences can be combined. Here
# rotations meet different budgets, and `rc-dpfl` is given the weights of `robust-hdp`:

# %%
mixed = {"name": "rc-dpfl", "weight": {"rule": "estimated-noise", "estimator": "pairwise"}}
both = hush.Simulation("digits", "logreg", **common, **{**settings["rotations"], "epsilon": [1.0, 8.0] * 6})
both.compare({"rc-dpfl": "rc-dpfl", "robust-hdp": "robust-hdp", "both": mixed}, seeds=2)

# %% [markdown]
# Two seeds on small data show the pattern, not a ranking: [recipes](../recipes.md) has every recipe with its
# measurements, and your own setting decides. Comparing recipes on private data costs budget for each of them.
