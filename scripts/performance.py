"""Writes docs/performance.md from the measurements under results/bench, one file for each machine.

python scripts/performance.py
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hush.bench.found import TARGETS, met

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"
RESULTS = ROOT / "results" / "bench"

HEAD = """# Performance

This page is written by `python scripts/performance.py` from `results/bench/*.json`, one file for each machine; what is
in those files is what `hush bench --json` found there, or a part of it where the command says so.
Rivals are measured in the same run on the same tensors, warm,
taking turns, and the best of several turns counts. A ratio is worth more than a time: other work on a machine slows
both sides.

W1 is a round of 20 clients x 2,400 MNIST-shaped samples, five clients at each batch size 16, 32, 64 and 128, one epoch,
the CNN of 28,938 parameters, clip 3. W2 is a round of logistic regression 40 -> 10 with control variates: 20 users, 50
local steps of 800 of 4,000 samples. The plain loop is PyTorch without any privacy; Opacus uses its own Poisson sampler,
hooks and optimiser.
"""

HOW = """## How the speed is got

- **One backward pass.** The input and the output gradient of each layer are kept; norms of per-example gradients follow
  from them, and the clipped sum is one more product for each layer. Gradients of linear layers are never formed.
- **Clients side by side.** The model's own code sees one batch with the examples of all clients; only layers with
  parameters know whose example is whose. On an accelerator, one launch serves all clients of about the same batch size.
- **Softmax regression in closed form.** The norm of an example's gradient is that of (softmax - label) times that of
  its input, and the latter is computed once a round. A step is a gather, two batched products and a softmax.
- **Batches that fit the cache.** On a processor, convolutions work on 32 examples at a time, channels last, whatever
  the size of the batch; each thread trains its own share of the clients.
- **Rows in bulk.** A row is in a batch if a uniform number of 53 bits is below the rate. Its first 16 bits decide
  nearly always, and several batches are decided on at a time. The probability is met exactly as before.
- **Recorded steps.** On an accelerator a step is a CUDA graph, replayed with new rows and noise; convolutions, their
  per-example weight gradients with norms, and rectified pooling are kernels of their own (`hush.local.kernels`).
- **Chains.** A network that is a chain of 2 x 2-pooled convolutions and a linear layer, as the product's `cnn` is, has
  kernels of its own (`hush.local.chain_kernels`): a program for an example or a part of it, whosever it is. So clients
  of all batch sizes share a launch and nothing is padded. A convolution and its pooling are one kernel; what a
  position sees lies at one address for the position plus one for the tap, between zeros, so that no edge is asked for;
  on the way back what is read once serves a row or a column of taps. Clients with many steps do not wait for those with
  few.
- **Draws on the device.** Replayable noise, and for chains all Poisson batches of a round at once, are drawn on the
  device from generators of each client's own: 53 fair bits against the plan's rate, as on the host.
- **Float32 means float32.** `engine.precision = "tf32"` or `"bf16"` is faster on an accelerator. Norms, clip factors
  and clipped sums stay in full precision, so the clip holds in each; the tests measure what each costs.
- **Server arithmetic.** RPCA shrinks singular values through the n x n Gram matrix, over-relaxed, with a growing
  penalty. It and the pairwise estimator read runs of columns of a large model (200,000 and half a million of them),
  which give energies to half a per cent and a fifth. Of RPCA's many columns one in six goes ahead while the penalty is
  small; the others follow through those 18 iterations at once, within the cache, and the last half a dozen are of all
  together. In five trials (200,000 columns, signals of rank one to three) every weight was within 1.3% of the exact
  solution's; it was 1.2% when all went together from the start. It is over when M - L - S no longer changes, asked of
  every fourth block after each iteration.
- **No warm start.** RPCA starts afresh every round. What the last round leaves was tried on six successive rounds of
  robust-hdp (MNIST, iid, 20 clients, the CNN, budgets and batches of the paper's second distribution). From nothing, 14
  to 16 iterations bring the weights within a per cent, in sum, of the exact solution's. Starting at the penalty of the
  12th iteration with the last round's low-rank subspace takes 10 to 12; at that of the 16th it takes 10 or 11, and the
  weights are 1.1% to 1.5% off where the pursuit usually ends. The last state as a linear map of M, at the eighth, takes
  11 or 12. The last dual saves up to three iterations at the fourth, one at most at the eighth, and spoils the weights
  later on (3%, 7%); a higher penalty alone takes 15 at the fourth, 18 to 22 at the eighth, and spoils them too (6%,
  30%). The last round's n x n products in place of fresh ones take 14 to 18 and would spare the Gram matrix alone. The
  reason: 98% of the energy in these updates is noise, which is new every round; the subspace is found early, and what
  takes the iterations is to find anew how far each entry is from it. Two to four iterations of 2 ms in a round of
  seconds are not worth weights that depend on who took part before.
- **Memory against arithmetic.** `server.resnet18.rpca_over_mean` sets one against the other: the mean took from 0.043
  to 0.078 s on this machine at different times, while RPCA's own part, before columns went ahead, took 0.39 s whether
  the mean was fast or slow. Now that part takes 0.29 s, which would be 7.8 by the fastest mean ever seen here.
"""


def page() -> str:
    """The page."""
    records = {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}
    return "\n".join([HEAD, *_targets(records), *(_machine(name, record) for name, record in records.items()), HOW])


def _targets(records: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield "## What was aimed at"
    yield ""
    yield "| figure | target | measured | where |"
    yield "|---|---:|---:|---|"
    for key, (sense, bound) in TARGETS.items():
        found = {name: record["figures"][key] for name, record in records.items() if key in record["figures"]}
        cells = ", ".join(_number(value) + ("" if met(key, value) else " (short)") for value in found.values())
        yield f"| `{key}` | {sense} {_number(bound)} | {cells or 'not measured'} | {', '.join(found)} |"
    yield ""


def _machine(name: str, record: Mapping[str, Any]) -> str:
    machine = record["machine"]
    versions = ", ".join(f"{part} {number}" for part, number in record["versions"].items())
    where = f"{machine['cores']} cores, {machine['threads']} threads, GPU: {machine['gpu']}"
    load = f", load {machine['load']} when it ended" if "load" in machine else ""
    lines = [
        f"## {name}",
        "",
        f"`{record['command']}` on {record['measured']}: {machine['system']}; {where}{load}. {versions}.",
        "",
        *_table(record["figures"], record.get("notes", {})),
        *_notes(record),
        *(line for key, rows in record.get("profiles", {}).items() for line in _profile(key, rows, record["figures"])),
    ]
    return "\n".join(lines)


def _table(figures: Mapping[str, float], notes: Mapping[str, str]) -> Iterator[str]:
    yield "| figure | measured | target | |"
    yield "|---|---:|---:|---|"
    for key, value in figures.items():
        target = " ".join([TARGETS[key][0], _number(TARGETS[key][1])]) if key in TARGETS else ""
        verdict = ("met" if met(key, value) else "**short**") if key in TARGETS else ""
        yield f"| `{key}` | {_number(value)} | {target} | {verdict} |"
    for key in notes:
        if key in TARGETS and key not in figures:
            yield f"| `{key}` | - | {TARGETS[key][0]} {_number(TARGETS[key][1])} | not measured |"
    yield ""


def _notes(record: Mapping[str, Any]) -> Iterator[str]:
    for key, note in record.get("notes", {}).items():
        yield f"- `{key}`: {note}"
    if record.get("notes"):
        yield ""


def _profile(key: str, rows: Sequence[Sequence[Any]], figures: Mapping[str, float]) -> Iterator[str]:
    yield f"### Where the time goes: {key}"
    yield ""
    ours, floor = figures.get(f"{key}.ours_seconds"), figures.get(f"{key}.floor_seconds")
    if ours and floor:
        yield f"Ours takes {ours:.3g} s a round; the arithmetic (or the memory) alone would take {floor:.3g} s."
        yield ""
    yield "| operator or kernel | share |"
    yield "|---|---:|"
    for name, share in rows:
        yield f"| `{name[:80]}` | {share:.1%} |"
    yield ""


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


if __name__ == "__main__":
    PAGE.write_text(page())
