# %% [markdown]
# # Write your own recipe
# A recipe is one option for each of [six slots](../concepts/slots.md). Most papers change one of them: this one changes
# `weight`. The idea: with strict budgets the norm of an update is mostly noise, so that a large norm deserves a small
# weight.

# %%
from dataclasses import dataclass

import hush


@dataclass(frozen=True)
class InverseNorm(hush.Weight):
    """Weights by the inverse of the norm of each update, to some power."""

    power: float = 2.0

    def __post_init__(self) -> None:
        if not self.power > 0:
            raise ValueError(f"power: expected a positive number, found {self.power}")

    def weight(self, view: hush.RoundView, state: hush.State) -> tuple[hush.Weights, hush.State]:
        """In proportion to 1 / norm^power."""
        inverse = view.updates.norm(dim=1).clamp_min(1e-12) ** -self.power
        return hush.Weights(inverse / inverse.sum()), state


# %% [markdown]
# That is all. The class is a frozen dataclass, so that its settings are recorded with the run; state would be passed in
# and returned; a `ValueError` becomes a one-line error that names the key. It sees noisy updates only, and what it
# computes from them costs no privacy.

# %%
budgets = [0.2] * 4 + [1.0] * 4 + [5.0] * 2
sim = hush.Simulation(
    "digits", "logreg", clients=10, epsilon=budgets, recipe=hush.Recipe(weight=InverseNorm()), rounds=20
)
result = sim.fit()
result

# %% [markdown]
# ## Does it beat what there is?
# The same clients and seeds for every recipe, and the same automatic rule for the learning rate.

# %%
table = sim.compare(
    {
        "inverse norm": hush.Recipe(weight=InverseNorm()),
        "inverse norm, power 1": hush.Recipe(weight=InverseNorm(power=1.0)),
        "dp-fedavg": "dp-fedavg",
        "robust-hdp": "robust-hdp",
        "hush": "hush",
    },
    seeds=3,
)
table

# %%
# Accuracy of the recipes as bars, with the standard deviation over three seeds: the numbers of the table above.
import matplotlib.pyplot as plt

figure, axes = plt.subplots(figsize=(6.4, 2.8))
mean, std = ([100 * value for value in table[column]] for column in ("accuracy", "std"))
colours = ["#0b5cad" if name.startswith("inverse") else "#8a96a3" for name in table["recipe"]]
bars = axes.barh(table["recipe"], mean, xerr=std, color=colours)
axes.bar_label(bars, fmt="%.1f %%", padding=4)
axes.set(xlabel="accuracy (%), mean over three seeds", xlim=(0, 115))
axes.invert_yaxis()
axes.spines[["top", "right"]].set_visible(False)
figure.tight_layout()

# %% [markdown]
# A few lines take most of the way from weights by sample count to weights by estimated noise. What is missing is the
# signal: a client with much to say has a large norm as well, and only an estimate of the noise can tell the two apart.
#
# ## Combine it
# An option works with every option of the other slots: here with the protection and the step of `hush`.

# %%
sim.compare({"hush with inverse norm": {"name": "hush", "weight": InverseNorm()}, "hush": "hush"}, seeds=3)

# %% [markdown]
# ## From a file
# In a file of its own, `inverse_norm.py`, the option is available to the command line and to federations as
# `weight = { rule = "inverse_norm:InverseNorm", power = 1.0 }`; members import it only if their policy lists it.
# [Adding a recipe](../extending.md) has the other slots, and how to declare what an option releases.
