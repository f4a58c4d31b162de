# %% [markdown]
# # Your own data and model
# Three clinics hold tables of the same form: numbers, categories and blanks. They want one model that predicts a
# readmission, with a network of their own, and each clinic has a budget of its own.

# %% [markdown]
# ## Tables as they come
# Each clinic has one CSV file. The files here are drawn at random; with your own, start at the next step.

# %%
import csv
from pathlib import Path

import numpy as np

draw = np.random.default_rng(7)
Path("sites").mkdir()


def table(rows: int) -> list[list[object]]:
    """Rows of one clinic: age, ward, a blood value that is sometimes blank, and the outcome."""
    age, ward, blood = draw.uniform(18, 95, rows), draw.integers(0, 3, rows), draw.normal(5.0, 1.5, rows)
    risk = 0.05 * (age - 56) + np.array([-1.2, 0.0, 1.2])[ward] + 0.8 * (blood - 5.0) + draw.normal(0, 0.8, rows)
    blank = draw.random(rows) < 0.1
    names = ["surgery", "medicine", "cardiology"]
    return [
        [round(a), names[w], "" if gone else round(b, 2), "yes" if r > 0 else "no"]
        for a, w, b, gone, r in zip(age, ward, blood, blank, risk, strict=True)
    ]


for clinic, rows in (("coast", 250), ("hills", 400), ("city", 1200)):
    with Path(f"sites/{clinic}.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["age", "ward", "blood", "readmitted"], *table(rows)])

# %% [markdown]
# ## A public schema in place of private statistics
# Bounds and categories are declared, never computed from private rows, so that preprocessing costs no privacy. Values
# outside of the bounds are clipped; a blank gets a column of its own that says so.

# %%
import hush

schema = {
    "classes": ["no", "yes"],
    "scale": "signed",
    "columns": {
        "age": {"low": 18, "high": 95},
        "ward": {"categories": ["surgery", "medicine", "cardiology"]},
        "blood": {"low": 0, "high": 10, "missing": "indicator"},
    },
}
data = hush.data.clients("sites/*.csv", label="readmitted", schema=schema)
data.sizes

# %% [markdown]
# ## A module of your own
# Any `nn.Module` is accepted if Hush can keep the examples of a batch apart, since differential privacy of rows rests
# on that. Batch normalisation mixes examples, and is refused with the reason:

# %%
from torch import nn

budgets = {"coast": 4.0, "hills": 1.0, "city": 2.0}


def simulation(network: nn.Module) -> hush.Simulation:
    """Return a simulation of the three clinics with this network."""
    return hush.Simulation(data, network, epsilon=budgets, delta=1e-5, recipe="hush", rounds=15, seed=1)


inputs = data.dataset.x.shape[1]
try:
    simulation(nn.Sequential(nn.Linear(inputs, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))).fit()
except hush.HushError as error:
    print(error)

# %%
sim = simulation(nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, 2)))
sim.preview()

# %%
result = sim.fit()
result.metrics_table

# %% [markdown]
# ## Is it worth joining?
# Each clinic could also train alone, with its own budget. Three seeds of each:


# %%
def alone(clinic: str, seed: int) -> float:
    """The accuracy of a model that one clinic trains by itself."""
    x, y = data.dataset.x, data.dataset.y
    names = list(data.sizes)
    ends = np.cumsum(list(data.sizes.values()))
    rows = slice(ends[names.index(clinic)] - data.sizes[clinic], ends[names.index(clinic)])
    network = nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, 2))
    own = hush.Simulation(
        {clinic: (x[rows], y[rows])}, network, epsilon=budgets[clinic], delta=1e-5, recipe="hush", rounds=15, seed=seed
    )
    return float(own.fit().accuracy["mean"])


def together(seed: int) -> dict[str, float]:
    """The accuracy of the common model at each clinic."""
    network = nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, 2))
    run = hush.Simulation(data, network, epsilon=budgets, delta=1e-5, recipe="hush", rounds=15, seed=seed).fit()
    return {str(name): value for name, value in run.accuracy_per_client.items()}


seeds = (1, 2, 3)
common = [together(seed) for seed in seeds]
rows_of = {
    clinic: (np.mean([alone(clinic, seed) for seed in seeds]), np.mean([run[clinic] for run in common]))
    for clinic in budgets
}

# %%
# Accuracy of each clinic with a model of its own and with the common model, as pairs of bars.
import matplotlib.pyplot as plt

figure, axes = plt.subplots(figsize=(6.4, 2.8))
places = np.arange(len(rows_of))
for shift, index, name, colour in ((-0.2, 0, "alone", "#8a96a3"), (0.2, 1, "together", "#0b5cad")):
    bars = axes.bar(places + shift, [100 * pair[index] for pair in rows_of.values()], 0.38, label=name, color=colour)
    axes.bar_label(bars, fmt="%.0f")
axes.set(xticks=places, ylabel="accuracy (%)", ylim=(0, 118))
axes.set_xticklabels([f"{name}\nepsilon {budgets[name]:g}" for name in rows_of])
axes.legend(frameon=False, ncols=2, loc="upper left")
axes.spines[["top", "right"]].set_visible(False)
figure.tight_layout()

# %% [markdown]
# ## New patients
# The saved model holds the weights and how rows are read, never your code: give the network again to load it.

# %%
result.save("readmission")
network = nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, 2))
model = hush.load("readmission", model=network)
model.predict("sites/coast.csv")[:5]

# %% [markdown]
# More on [data](../data.md), [models](../models.md), and [regression and losses of your own](../objectives.md).
