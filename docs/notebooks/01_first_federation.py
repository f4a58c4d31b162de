# %% [markdown]
# # First federation in ten minutes
# Two hospitals train one model together. North is strict (epsilon 1), south less so (epsilon 8), and neither shows
# its rows. Ten lines give a trained model, its metrics and its guarantees.

# %%
import numpy as np

import hush

draw = np.random.default_rng(0)
x = draw.normal(size=(1200, 8))
y = np.where(x[:, 0] + x[:, 1] > 0, "ill", "well")
data = hush.data.clients({"north": (x[:400], y[:400]), "south": (x[400:1000], y[400:1000])}, classes=["ill", "well"])

# %%
sim = hush.Simulation(data, "logreg", epsilon={"north": 1.0, "south": 8.0}, delta=1e-5, recipe="hush", rounds=10)
result = sim.fit()
result

# %% [markdown]
# What each hospital was promised, and what it spent: a table with one row per client. What no epsilon covers is
# listed below the result.

# %%
result.guarantees

# %% [markdown]
# ## What the model knows
# Rows that nobody has trained on, and all metrics: pooled, per client, and of the worst client.

# %%
float(np.mean(result.predict(x[1000:]) == y[1000:]))

# %%
result.metrics_table

# %% [markdown]
# ## What each budget means
# Before training, without spending anything: the stricter budget needs more noise in every step, and its updates will
# weigh less.

# %%
sim.preview()

# %% [markdown]
# The model is a plain `nn.Module` with the trained weights. `result.save(dir)` writes it; `hush.load(dir)` reads it
# back, on any machine.

# %%
result.save("model")
float(np.mean(hush.load("model").predict(x[1000:]) == y[1000:]))

# %% [markdown]
# ## Why weights matter
# With ten clients whose budgets differ by a factor of 25, it matters how the server combines updates. `minimum` gives
# everybody the strictest budget; `dp-fedavg` lets each use its own and weights by the number of rows; `robust-hdp`
# weights by the noise that the server estimates in each update; `hush` also by how much the clients' data differ.

# %%
ten = hush.Simulation("digits", clients=10, epsilon=[0.2] * 4 + [1.0] * 4 + [5.0] * 2, recipe="hush", rounds=30)
table = ten.compare(["minimum", "dp-fedavg", "robust-hdp", "hush"], seeds=3)
table

# %%
# Accuracy of the four recipes as bars, with the standard deviation over three seeds: the numbers of the table above.
import matplotlib.pyplot as plt

figure, axes = plt.subplots(figsize=(6.4, 2.6))
mean, std = ([100 * value for value in table[column]] for column in ("accuracy", "std"))
colours = ["#0b5cad" if name == "hush" else "#8a96a3" for name in table["recipe"]]
bars = axes.barh(table["recipe"], mean, xerr=std, color=colours)
axes.bar_label(bars, fmt="%.1f %%", padding=4)
axes.set(xlabel="accuracy (%), mean over three seeds", xlim=(0, 112))
axes.invert_yaxis()
axes.spines[["top", "right"]].set_visible(False)
figure.tight_layout()

# %% [markdown]
# ## What to read next
# Every result ends with what its epsilon does not cover. In this simulation that includes the noise itself, which can
# be drawn again from the seed: it is for experiments. In
# [a real federation](05_from_simulation_to_federation.py) the noise is secure.
