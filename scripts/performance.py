"""Write docs/performance.md from the measurements under results/bench, one file per machine.

python -m scripts.performance
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hush.bench.findings import TARGETS, met

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "performance.md"
RESULTS = ROOT / "results" / "bench"

HEAD = """# Performance

This page is written by `python -m scripts.performance` from `results/bench/*.json`, one file per machine. Each file
contains the output of `hush bench --json` on that machine, or a part of it where the command says so. Baselines are
measured in the same run on the same tensors, warmed up and alternating with Hush; the best of several repetitions
counts. Ratios are more reliable than times, because other load on a machine slows down both sides.

W1 is a round of 20 clients with 2,400 MNIST-shaped samples each, five clients at each batch size of 16, 32, 64 and
128, one epoch, the CNN with 28,938 parameters, clipping norm 3. W2 is a round of logistic regression 40 -> 10 with
control variates: 20 users, 50 local steps on 800 of 4,000 samples. W3 is a round of 20 clients with 512 images of
3 x 32 x 32 each, batches of 64, one epoch, ResNet-18 with group normalisation. W4 is a round of 8 clients with 1,024
sequences of 128 tokens each, batches of 64, one epoch, a transformer of 4 layers and width 256 with learned positions
(3.26 M parameters, 2.4 GFLOP a sequence); on a CPU, 4 clients with 128 sequences of 64 tokens, batches of 32, 2 layers,
width 128. W5 is W4 with LoRA adapters of rank 8 and the head as all that is trained. Noise is seeded unless a figure
says `secure`: `secure_over_seeded` is the time of the same round with secure noise over that with seeded noise. The
plain loop is PyTorch without privacy; Opacus uses its own Poisson sampler, hooks and optimiser, or ghost clipping where
a figure says so.
"""

HOW = """## Implementation

- **One backward pass.** The input and the output gradient of each layer are stored. The norms of the per-example
  gradients follow from them, and the clipped sum takes one more matrix product per layer. Per-example gradients of
  linear layers are never materialised.
- **Clients in one batch.** The model's code processes one batch with the examples of all clients; only layers with
  parameters distinguish the clients. On a GPU, one kernel launch serves all clients of similar batch size.
- **Softmax regression in closed form.** The norm of an example's gradient is the norm of (softmax - label) times the
  norm of its input, and the latter is computed once per round. A step is a gather, two batched products and a
  softmax.
- **Cache-sized micro-batches.** On a CPU, convolutions process 32 examples at a time in channels-last format,
  regardless of the batch size; each thread trains its own share of the clients.
- **Vectorised Poisson sampling.** A row is in a batch if a uniform 53-bit number is below the sampling rate. The
  first 16 bits almost always decide, and several batches are sampled at a time. The probability is exact.
- **CUDA graphs.** On a GPU, a step is a CUDA graph that is replayed with new rows and noise. Convolutions, their
  per-example weight gradients with norms, and ReLU with max-pooling are custom kernels (`hush.training.gpu.kernels`).
- **Pooled CNNs.** A network of convolutions with 2 x 2 pooling followed by a linear layer, such as the built-in
  `cnn`, has its own kernels (`hush.training.gpu.pooled_cnn.forward_kernels`): one program per example or part of an
  example, regardless of its client. Clients of all batch sizes therefore share a launch, without padding. A
  convolution and its pooling are one kernel. Inputs are stored with zero borders, so that the address of an input is
  the address of the position plus an offset for the tap and no bounds check is needed. In the backward pass, a value
  that is read once is used for a row or a column of taps, and the first layer's weights get their gradients from the
  positions that pooling chose alone. Clipping factors, sums, noise and the update are one kernel. A counter on the
  device says which batch and noise are next, so that a step is one replay without copies. Clients with many steps do
  not wait for those with few.
- **Linear models.** A model that is one linear layer has kernels as well (`hush.training.gpu.linear.kernels`). The
  clients of all runs in lockstep share a launch; a program takes some rows of one client. A row is read once where
  the weights fit in registers, otherwise twice. Logits, norms, clipping factors and sums are float64, which an H200's
  tensor cores multiply as fast as its other units multiply float32. Nothing is added atomically.
- **Sampling on the device.** Noise and, for pooled CNNs and linear models, all batches of a round are sampled on the
  device from one generator per client: 53 random bits compared with the sampling rate of the plan, as on the host, or
  the rows with the lowest bits where batches have a fixed size. Secure noise has a ChaCha20 kernel there: a lane
  computes a block of 16 words and ten normal numbers in registers, and one launch serves all clients, each with a key
  of its own.
- **Secure noise on the CPU.** AES-256 in counter mode, which processors have instructions for, fills blocks of 32,768
  pairs that stay in the cache. The radius of the Box-Muller transform is computed in float64, where the tails are
  decided, and sine and cosine in float32. Small requests are drawn several ahead.
- **Float32 by default.** `engine.precision = "tf32"` or `"bf16"` is faster on a GPU. Norms, clipping factors and
  clipped sums remain in full precision, so the clipping bound holds in each mode; the tests measure the accuracy of
  each.
- **Server computation.** RPCA shrinks singular values through the n x n Gram matrix, with over-relaxation and a
  growing penalty. RPCA and the pairwise estimator read contiguous blocks of columns of a large model (200,000 and
  half a million columns), which yield the energies to within 0.5% and 0.2%. In RPCA, one column in six is iterated
  first while the penalty is small; the other columns then apply these 18 iterations at once, within the cache, and
  the last six or so iterations use all columns. In five trials (200,000 columns, signals of rank one to three) every
  weight was within 1.3% of the exact solution; it was 1.2% with all columns from the start. The iteration ends when M
  - L - S no longer changes, which is checked on every fourth block after each iteration.
- **No warm start.** RPCA starts from scratch in every round. Reusing the state of the previous round was tested on
  six successive rounds of robust-hdp (MNIST, iid, 20 clients, the CNN, budgets and batch sizes of the paper's second
  distribution). From scratch, 14 to 16 iterations bring the weights within 1%, in sum, of the exact solution.
  Starting at the penalty of the 12th iteration with the previous low-rank subspace takes 10 to 12; at that of the
  16th it takes 10 or 11, and the weights are 1.1% to 1.5% off where the iteration usually ends. The previous state as
  a linear map of M, at the eighth, takes 11 or 12. The previous dual variable saves up to three iterations at the
  fourth, at most one at the eighth, and degrades the weights later (3%, 7%); a higher penalty alone takes 15 at the
  fourth, 18 to 22 at the eighth, and degrades them as well (6%, 30%). The previous n x n products instead of new ones
  take 14 to 18 and would save only the Gram matrix. The reason is that 98% of the energy in these updates is noise,
  which is new in every round: the subspace is found early, and most iterations determine the distance of each entry
  from it. Saving two to four iterations of 2 ms in a round of several seconds does not justify weights that depend on
  earlier participants.
- **Memory bandwidth and arithmetic.** `server.resnet18.rpca_over_mean` is a ratio of the two: the mean took from
  0.043 to 0.078 s on this machine at different times, while RPCA's own part, before columns were iterated in advance,
  took 0.39 s whether the mean was fast or slow. That part now takes 0.29 s, which would be a ratio of 7.8 for the
  fastest mean observed on this machine.
"""


def page() -> str:
    """The page."""
    records = {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}
    return "\n".join([HEAD, *_targets(records), *(_machine(name, record) for name, record in records.items()), HOW])


def _targets(records: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield "## Targets"
    yield ""
    yield "| figure | target | measured | machine |"
    yield "|---|---:|---:|---|"
    for key, (sense, bound) in TARGETS.items():
        found = {name: record["figures"][key] for name, record in records.items() if key in record["figures"]}
        cells = ", ".join(_number(value) + ("" if met(key, value) else " (missed)") for value in found.values())
        yield f"| `{key}` | {sense} {_number(bound)} | {cells or 'not measured'} | {', '.join(found)} |"
    yield ""


def _machine(name: str, record: Mapping[str, Any]) -> str:
    machine = record["machine"]
    versions = ", ".join(f"{part} {number}" for part, number in record["versions"].items())
    where = f"{machine['cores']} cores, {machine['threads']} threads, GPU: {machine['gpu']}"
    load = f", load {machine['load']} at the end" if "load" in machine else ""
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
        verdict = ("met" if met(key, value) else "**missed**") if key in TARGETS else ""
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
    yield f"### Profile: {key}"
    yield ""
    ours, floor = figures.get(f"{key}.ours_seconds"), figures.get(f"{key}.floor_seconds")
    if ours and floor:
        yield f"Hush takes {ours:.3g} s per round; the lower bound from arithmetic or memory is {floor:.3g} s."
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
