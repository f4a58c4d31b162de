# %% [markdown]
# # Fine-tune a transformer with DP-LoRA
# A transformer is pretrained on public sentences, and fine-tuned on private ones of three clients with budgets of their
# own. Only low-rank adapters beside its frozen layers, and its head, are trained, clipped, noised and sent.

# %% [markdown]
# ## Sentences
# Whether a film was liked depends on an adjective and on a negation in front of it. Public sentences go on to say
# whether it was liked; private ones do not, but have a label.

# %%
import numpy as np
import torch
from torch import nn

import hush

good, bad = ["great", "fine", "moving", "funny", "superb"], ["dull", "slow", "flat", "weak", "boring"]
nouns, liked, hated = ["film", "plot", "cast", "score", "ending"], ["loved", "enjoyed"], ["hated", "regretted"]
words = ["?", "[mask]", "the", "was", "not", "never", "i", "it", "and", "saw", *nouns, *good, *bad, *liked, *hated]
index = {word: number for number, word in enumerate(words)}
draw = np.random.default_rng(0)


def sentence(public):
    positive, negated = draw.integers(2), draw.integers(2)
    adjective = draw.choice(good if positive != negated else bad)
    negation = [draw.choice(["not", "never"])] if negated else []
    verb = draw.choice(liked if positive else hated) if public else "saw"
    text = ["the", draw.choice(nouns), "was", *negation, adjective, "and", "i", verb, "it"]
    return [index[word] for word in text + ["?"] * (9 - len(text))], positive


public = torch.tensor([sentence(True)[0] for _ in range(4000)])
x, y = map(np.array, zip(*(sentence(False) for _ in range(1800)), strict=True))
" ".join(words[token] for token in x[0]), int(y[0])


# %% [markdown]
# ## A pretrained transformer
# Two layers of plain PyTorch, pretrained in seconds by predicting words that are hidden from it. Your own would come
# from a file: `weights="model.safetensors"`, or a directory of Hugging Face with `"hf:sequence-classification"`.


# %%
class Transformer(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.words, self.places = nn.Embedding(len(words), width), nn.Embedding(9, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 2)

    def states(self, tokens):
        return self.layers(self.words(tokens) + self.places(torch.arange(9, device=tokens.device)))

    def forward(self, tokens):
        return self.head(self.states(tokens).mean(1))


torch.manual_seed(0)
model = Transformer()
guess = nn.Linear(32, len(words))
optimiser = torch.optim.Adam([*model.parameters(), *guess.parameters()], lr=3e-3)
for _ in range(500):
    batch = public[torch.randint(len(public), (64,))]
    hidden = (torch.rand(batch.shape) < 0.2) & (batch > 0)
    loss = nn.functional.cross_entropy(guess(model.states(batch.masked_fill(hidden, 1)))[hidden], batch[hidden])
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
model.eval()
round(loss.item(), 2)

# %% [markdown]
# ## Fine-tune it on private sentences
# `adapters="lora"` freezes the model and puts an update of low rank beside each of its layers. The learning rate
# follows from the planned noise.

# %%
budgets = [0.5, 1.0, 2.0]


def simulation(**arguments):
    return hush.Simulation(
        hush.data.clients(x, y, clients=3, classes=2), arguments.pop("model", model),
        epsilon=budgets, delta=1e-5, recipe="hush", rounds=6, batch_size=64, **arguments,
    )  # fmt: skip


tuned = simulation(adapters="lora", settings={"model.rank": 4}).fit()
tuned

# %% [markdown]
# The run compares with the model before training, and says how many parameters were trained and how far they moved.

# %%
{name: value for name, value in tuned.metrics["frozen"].items() if name != "what"}

# %% [markdown]
# ## Against the head alone
# The same with every layer frozen but the head.

# %%
head = Transformer()
head.load_state_dict(model.state_dict())
head.requires_grad_(False)
head.head.requires_grad_(True)
alone = simulation(model=head.eval()).fit()

# %%
# Accuracy after each round of LoRA and of the head alone, as two curves.
import matplotlib.pyplot as plt

figure, axes = plt.subplots(figsize=(6.2, 2.8))
for run, label, colour, mark in ((tuned, "LoRA and head", "#0b5cad", "o"), (alone, "head alone", "#59636e", "s")):
    history = run.history
    axes.plot(
        list(history["round"]), [100 * value for value in history["accuracy"]], color=colour, marker=mark, label=label
    )
axes.set(xlabel="round", ylabel="accuracy (%)", ylim=(40, 100))
axes.legend(frameon=False, loc="lower right")
axes.spines[["top", "right"]].set_visible(False)
figure.tight_layout()

# %%
assert tuned.accuracy["mean"] > alone.accuracy["mean"] > 0.5
assert max(tuned.guarantees["epsilon_spent"]) <= 2.0

# %% [markdown]
# ## Save, load, predict
# The saved model has the frozen weights too, so that it can be used without the pretrained file. Its code stays yours.

# %%
tuned.save("tuned")
loaded = hush.load("tuned", model=Transformer())
loaded.predict(x[:5]), [" ".join(words[token] for token in row if token) for row in x[:5]]

# %% [markdown]
# Next: [all settings, measured on IMDb](../fine-tuning.md), and [models](../models.md).
