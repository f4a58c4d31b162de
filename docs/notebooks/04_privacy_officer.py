# %% [markdown]
# # A privacy officer's view
# You answer for the data of one participant. Before anything runs you want to know what a budget buys; while it runs,
# that it cannot be exceeded; afterwards, what was spent, and whether the claim survives an attack.

# %% [markdown]
# ## Before: what does a budget buy?
# `plan` needs public facts only: the number of rows, the batch size, the number of rounds. It spends nothing.

# %%
import hush

answer = hush.plan(epsilon=1.0, delta=1e-5, samples=2000, batch=64, rounds=40)
{key: answer[key] for key in ("noise_multiplier", "epsilon", "steps", "sample_rate", "relation", "affordable_rounds")}

# %%
# Epsilon spent after each round of the plan, as a curve that ends below the budget of 1.
import matplotlib.pyplot as plt

spent = {int(round_): value for round_, value in answer["epsilon_by_round"].items()}
figure, axes = plt.subplots(figsize=(6.2, 2.6))
axes.plot(list(spent), list(spent.values()), color="#0b5cad", linewidth=2.5)
axes.axhline(1.0, color="#59636e", linestyle="--", linewidth=1)
axes.annotate("budget", (1, 1.0), xytext=(0, -12), textcoords="offset points", color="#59636e")
axes.set(xlabel="round", ylabel="epsilon spent", ylim=(0, 1.1))
axes.spines[["top", "right"]].set_visible(False)
figure.tight_layout()

# %% [markdown]
# ## While it runs: the ledger
# With `ledgers=`, every round is charged to a file on disk before anything is computed, and noise comes from keys that
# nobody has. The budget holds across runs on the same rows.

# %%
import numpy as np

draw = np.random.default_rng(3)
x = draw.normal(size=(1500, 6))
y = (x @ np.array([1.0, -1.0, 0.5, 0.0, 0.0, 0.0]) > 0).astype(int)
data = {"us": (x[:500], y[:500]), "them": (x[500:], y[500:])}
sim = hush.Simulation(data, "logreg", epsilon={"us": 1.0, "them": 4.0}, delta=1e-5, recipe="hush", rounds=10)
result = sim.fit(ledgers="ledgers")
result.guarantees

# %% [markdown]
# The command line reads a ledger and verifies its hash chain. The file holds the mechanisms that were executed, from
# which epsilon is computed again.

# %%
# !hush ledger show ledgers/client-us.ledger

# %%
# !hush ledger verify ledgers/client-us.ledger

# %% [markdown]
# The budget is spent. A second run on the same rows trains nothing, whatever its config says, and says so:

# %%
try:
    sim.fit(ledgers="ledgers")
except hush.NothingTrainedError as error:
    print(error)

# %% [markdown]
# ## What the epsilon does not cover
# Every result lists it. With ledgers the noise is secure, so that it is no longer on the list.

# %%
for line in result.not_covered:
    print("-", line)

# %% [markdown]
# ## Afterwards: does the claim survive an attack?
# An audit attacks the training that was planned, with a row made to be recognised, thousands of times with and without
# that row, and derives a lower bound on epsilon at a stated confidence. A bound above the claim would refute it; one
# below proves nothing, but a wrong noise scale or a missing clip would show. The result says what it means.

# %%
audited = hush.Simulation(
    data, "logreg", epsilon={"us": 1.0, "them": 4.0}, delta=1e-5, recipe="dp-fedavg", rounds=1,
    batch_size={"us": 400, "them": 800},
)  # fmt: skip
audit = audited.audit(client="them", runs=2000)
for sentence in audit.facts["meaning"]:
    print("-", sentence)

# %% [markdown]
# [The privacy guarantee](../privacy-promise.md) is the specification behind these numbers;
# [audits](../audit.md) shows which attack finds which bug; [security](../security.md) lists attacks and defences.
