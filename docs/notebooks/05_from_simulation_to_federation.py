# %% [markdown]
# # From simulation to a real federation
# The same config first as a simulation in this process, then as a federation of real processes on this machine: a
# server, three members with a ledger each, TLS and node authentication. Nothing in the recipe changes.

# %% [markdown]
# ## Simulate first

# %%
import json
import subprocess
from pathlib import Path

import hush

sim = hush.Simulation(
    "digits", "logreg", clients=3, epsilon=[0.5, 1.0, 4.0], delta=1e-4, recipe="hush", rounds=8, partition="iid",
    settings={"max_weight": 1.0},
)  # fmt: skip
sim.preview()

# %%
simulated = sim.fit()
simulated.accuracy["mean"]

# %% [markdown]
# The simulation's noise is seeded, so that it can be repeated, and it does not protect anybody. `to_toml` writes
# the config that both ways read.

# %%
sim.to_toml("run.toml")
print(Path("run.toml").read_text())

# %% [markdown]
# ## The same as real processes
# `hush federation local` makes certificates and keys, starts a server and three members with the simulation's shares
# of the data, trains, and stops them. Across machines, each of these steps is
# [a command of its own](../deploy.md). Each line is a round: who sent an update, and what every member has left.

# %%
done = subprocess.run(
    ["hush", "federation", "local", "run.toml", "--members", "3", "--dir", "study"],
    capture_output=True, text=True, check=False,
)  # fmt: skip
print("\n".join(line for line in done.stderr.splitlines() if line.startswith("round") and "warning" not in line))
assert done.returncode == 0, done.stderr

# %% [markdown]
# ## What each member keeps
# A member's folder has its keys, its policy, which decides what a run may ask of it, and its ledger, which was charged
# before each round. It trains with secure noise.

# %%
print(subprocess.run(["hush", "ledger", "show", "study/kits/m000/ledger.db"], capture_output=True, text=True).stdout)

# %%
print("\n".join(Path("study/kits/m000/policy.toml").read_text().splitlines()[:14]))

# %% [markdown]
# ## The same model, up to its noise
# Members and clients spend the same epsilon. Their accuracies differ a little: the noise was drawn anew, and the
# federation is tested on a public test set.

# %%
result = json.loads(Path("study/runs/run/result.json").read_text())
for member, (card, before) in enumerate(zip(result["guarantees"], simulated.guarantees, strict=True)):
    print(f"m{member:03d}: epsilon {card['epsilon_spent']:.4f} spent; simulated {before['epsilon_spent']:.4f}")

# %%
# Accuracy after each round of the simulation and of the federation, as two curves.
import matplotlib.pyplot as plt

rounds = [json.loads(line) for line in Path("study/runs/run/rounds.jsonl").read_text().splitlines()]
figure, axes = plt.subplots(figsize=(6.2, 2.8))
axes.plot(
    [r["round"] for r in rounds], [100 * sum(r["accuracy_per_client"]) / 3 for r in rounds],
    color="#0b5cad", marker="o", label="federation, secure noise",
)  # fmt: skip
axes.plot(
    list(simulated.history["round"]), [100 * value for value in simulated.history["accuracy"]],
    color="#59636e", linestyle="--", marker="s", label="simulation, seeded noise",
)  # fmt: skip
axes.set(xlabel="round", ylabel="accuracy (%)", ylim=(0, 100))
axes.legend(frameon=False, loc="lower right")
axes.spines[["top", "right"]].set_visible(False)
figure.tight_layout()

# %% [markdown]
# Next: [a federation across machines](../deploy.md), what members must [decide and may refuse](../security.md), and
# [Hush inside a Flower app](../flower.md).
