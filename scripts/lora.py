"""LoRA against training the head alone and against training all parameters, of one pretrained transformer, with DP.

Sentences say of a film what it was ("the plot was never dull and i saw it"): whether it was liked depends on an
adjective and on a negation in front of it. Public ones have no labels, and other verbs in place of "saw": a transformer
of two layers is pretrained on them by predicting masked words, from which it learns what words go together, and not
what is good. Private ones have labels, and belong to four clients. `OMP_NUM_THREADS=1 .venv/bin/python -m scripts.lora`
writes results/lora.json, and `--table` prints it as the table of docs/fine-tuning.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from hush.seeds import rng

RESULTS = Path(__file__).parents[1] / "results" / "lora.json"
GOOD, BAD = ["great", "fine", "moving", "funny", "superb"], ["dull", "slow", "flat", "weak", "boring"]
NOUNS, LIKED, HATED = ["film", "plot", "cast", "score", "ending"], ["loved", "enjoyed"], ["hated", "regretted"]
WORDS = ["?", "[mask]", "the", "was", "not", "never", "i", "it", "and", "saw", *NOUNS, *GOOD, *BAD, *LIKED, *HATED]
INDEX = {word: number for number, word in enumerate(WORDS)}
PADDING, MASK = 0, 1
LENGTH, WIDTH, LAYERS, HEADS = 9, 32, 2, 4
PUBLIC, ROWS, CLIENTS, ROUNDS, BATCH = 4000, 6000, 4, 5, 64
EPSILONS, SEEDS = (1.0, 8.0), (0, 1, 2)
RATES: tuple[float | str, ...] = (3.0,)
ARMS: Mapping[str, Mapping[str, Any]] = {
    "LoRA": {"model.adapters": "lora", "model.rank": 4},
    "all parameters": {},
    "head alone": {},
}


class Block(nn.Module):
    """A layer of a transformer, normalised in front of its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        """Return the next states, examples x words x width; words that are not `real` are not looked at."""
        h = self.norm1(x)
        q, k, v = (f(h).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=real[:, None, None, :])
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        out: Tensor = x + self.down(functional.gelu(self.up(self.norm2(x))))
        return out


class Encoder(nn.Module):
    """States of words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(len(WORDS), WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Return the state of each word, examples x words x width."""
        h = self.words(x) + self.places(torch.arange(LENGTH, device=x.device).expand(x.shape))
        for block in self.blocks:
            h = block(h, x > PADDING)
        out: Tensor = self.norm(h)
        return out


class Classifier(nn.Module):
    """The mean state of the words of a review, and a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = Encoder(), nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return two logits for each review."""
        real = (x > PADDING)[..., None]
        out: Tensor = self.head((self.encoder(x) * real).sum(1) / real.sum(1).clamp(min=1))
        return out


def sentences(count: int, seed: int, public: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return sentences as rows of words' numbers, and whether the film was liked."""
    draw = rng(seed, "sentences", public)
    rows, labels = [], []
    for _ in range(count):
        liked, negated = draw.integers(2), draw.integers(2)
        adjective = draw.choice(GOOD if liked != negated else BAD)
        verb = draw.choice([*LIKED, *HATED]) if public else "saw"
        negation = [draw.choice(["not", "never"])] if negated else []
        text = ["the", draw.choice(NOUNS), "was", *negation, adjective, "and", "i", verb, "it"]
        rows.append([INDEX[word] for word in text] + [PADDING] * (LENGTH - len(text)))
        labels.append(liked)
    return np.array(rows), np.array(labels)


def pretrained(windows: np.ndarray, steps: int) -> dict[str, Tensor]:
    """Return the weights of an encoder that predicts a fifth of the words of public sentences."""
    from hush.models.validation import seeded

    with seeded(0):
        encoder, guess = Encoder(), nn.Linear(WIDTH, len(WORDS))
    rows = torch.from_numpy(windows)
    optimiser = torch.optim.Adam([*encoder.parameters(), *guess.parameters()], lr=3e-3)
    for step in range(steps):
        drawn = rng(0, "masked", step)
        x = rows[torch.from_numpy(drawn.integers(0, len(rows), 64))]
        hidden = torch.from_numpy(drawn.random(x.shape) < 0.2) & (x > PADDING)
        loss = functional.cross_entropy(guess(encoder(x.masked_fill(hidden, MASK))[hidden]), x[hidden])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    print(f"pretrained: {steps} steps, loss {loss.item():.2f}", flush=True)
    return {name: value.detach() for name, value in encoder.state_dict().items()}


def classifier(weights: Mapping[str, Tensor], seed: int, head_alone: bool = False) -> Classifier:
    """Return the pretrained encoder with a new head."""
    from hush.models.validation import seeded

    with seeded(seed):
        module = Classifier()
    module.encoder.load_state_dict(dict(weights))
    module.encoder.requires_grad_(not head_alone)
    return module


def run(arm: str, epsilon: float, seed: int, lr: float | str, weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return what a run reached."""
    import hush

    x, y = sentences(ROWS, seed, public=False)
    cpu = time.process_time()
    simulation = hush.Simulation(
        hush.data.clients(x, y, clients=CLIENTS, classes=2),
        classifier(weights, seed, arm == "head alone"), epsilon=epsilon, delta=1e-5, rounds=ROUNDS, recipe="hush",
        lr=lr, batch_size=BATCH, seed=seed, settings={"data.test_fraction": 0.2, **ARMS[arm]},
    )  # fmt: skip
    done = simulation.fit(progress=False)
    found = {
        "arm": arm, "epsilon": epsilon, "seed": seed, "lr": lr, "accuracy": round(done.accuracy["mean"], 4),
        "parameters": int(done.weights.shape[-1]), "spent": round(max(done.guarantees["epsilon_spent"]), 3),
        "rate": done.run.config["local"]["lr"], "cpu_seconds": round(time.process_time() - cpu, 1),
    }  # fmt: skip
    if "frozen" in done.metrics:
        found |= {
            "before": round(done.metrics["frozen"]["value"], 4),
            "moved": round(done.metrics["frozen"]["moved"], 3),
        }
    print(json.dumps(found), flush=True)
    return found


def measured(content: dict[str, Any], weights: Mapping[str, Tensor]) -> None:
    """Run what is not among the results yet, and write them after each run."""

    def once(arm: str, epsilon: float, seed: int, lr: float | str) -> dict[str, Any]:
        for each in content["runs"]:
            if (each["arm"], each["epsilon"], each["seed"], each["lr"]) == (arm, epsilon, seed, lr):
                return dict(each)
        found = run(arm, epsilon, seed, lr, weights)
        content["runs"].append(found)
        RESULTS.write_text(json.dumps(content, indent=1) + "\n")
        return found

    for seed in SEEDS:
        for epsilon in EPSILONS:
            for arm in ARMS:
                # Each gets the best of several rates with the first seed.
                tried = [once(arm, epsilon, SEEDS[0], lr) for lr in ("auto", *RATES)]
                once(arm, epsilon, seed, max(tried, key=lambda each: each["accuracy"])["lr"])


def chosen(content: Mapping[str, Any], arm: str, epsilon: float) -> list[dict[str, Any]]:
    """Return the runs of an arm at the rate that was measured with all seeds: the best with the first seed."""
    runs = [each for each in content["runs"] if (each["arm"], each["epsilon"]) == (arm, epsilon)]
    first = [each for each in runs if each["seed"] == SEEDS[0]]
    best = max(first, key=lambda each: each["accuracy"])["lr"]
    return [each for each in runs if each["lr"] == best]


def table(content: Mapping[str, Any]) -> str:
    """Return the results as a table of Markdown: mean and sample standard deviation over the seeds."""
    lines = ["| trained | parameters sent | learning rate | " + " | ".join(f"epsilon {e:g}" for e in EPSILONS) + " |"]
    lines.append("|---|---|---|" + "---|" * len(EPSILONS))
    for arm in ARMS:
        found = [chosen(content, arm, epsilon) for epsilon in EPSILONS]
        rates = [str(runs[0]["lr"]) for runs in found]
        learning_rates = f"`{rates[0]}`" if len(set(rates)) == 1 else ", ".join(f"`{rate}`" for rate in rates)
        cells = []
        for runs in found:
            values = [100 * each["accuracy"] for each in runs]
            spread = statistics.stdev(values) if len(values) > 1 else math.nan
            cells.append(f"{statistics.fmean(values):.1f} ± {spread:.1f}")
        lines.append(f"| {arm} | {found[0][0]['parameters']:,} | {learning_rates} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Pretrain, train every arm, and write the results; what the file has of the same checkpoint is kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", action="store_true", help="print the table of what was measured")
    parser.add_argument("--steps", type=int, default=500, help="steps of pretraining")
    asked = parser.parse_args()
    if asked.table:
        print(table(json.loads(RESULTS.read_text())))
        return
    from hush.engines.results import versions

    weights = pretrained(sentences(PUBLIC, 0, public=True)[0], asked.steps)
    digest = hashlib.sha256(b"".join(weights[name].numpy().tobytes() for name in sorted(weights))).hexdigest()
    content = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if content.get("checkpoint") != digest:
        content = {
            "command": "OMP_NUM_THREADS=1 python -m scripts.lora",
            "setting": {
                "clients": CLIENTS, "rows": ROWS, "rounds": ROUNDS, "recipe": "hush", "delta": 1e-5, "words": LENGTH,
                "vocabulary": len(WORDS), "width": WIDTH, "layers": LAYERS, "pretraining_steps": asked.steps,
            },
            "device": "cpu", "seeds": list(SEEDS), "versions": versions(), "checkpoint": digest, "runs": [],
        }  # fmt: skip
    measured(content, weights)
    print(table(content))


if __name__ == "__main__":
    main()
