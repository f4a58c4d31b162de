"""GPU benchmark: the workloads against their baselines, and many runs in lockstep.

`python -m hush.bench.gpu` prints the figures as JSON and needs PyTorch and NumPy alone, but for the simulated rounds.
`python -m hush.bench.gpu w3 simulated` measures these parts.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from hush.bench import baselines
from hush.bench.findings import Findings
from hush.bench.noise import normals
from hush.bench.profiled import profiled
from hush.bench.timing import best, peak, stream, wait
from hush.bench.workloads import Workload, w1, w2, w3, w4, w5
from hush.privacy.noise import Seeded
from hush.seeds import rng
from hush.training.gpu.pooled_cnn.network import pooled_cnn_of
from hush.training.gpu.pooled_cnn.step import PooledCnnStep
from hush.training.job import Job
from hush.training.precision import Precision, triton_precision
from hush.training.train import train
from hush.types import HushError, unknown

_OPERATIONS = 16.3e6  # as in hush.bench.cpu
_RUNS = 45
_ROUNDS = 200
_PATIENCE = 20.0  # seconds of lockstep rounds
_WARM_UPS = 6  # rounds with secure noise before they are timed
_FEWER = 128  # rows of a client for slow baselines
_ROWS = 2400  # of a client in a simulation, of which four fifths are trained on
_BATCH = 60  # the mean of W1's batch sizes


def measure(parts: Sequence[str] = ()) -> Findings:
    """Measure the parts of that name, or all of them: workloads against their baselines, noise alone, and the sweep."""
    if not torch.cuda.is_available():
        raise HushError("--suite gpu: no CUDA device is available here; accepted here: cpu, server, plan, scale")
    known: dict[str, Callable[[], Findings]] = {
        "w1": _w1,
        "w2": linear,
        **{made.__name__: partial(_large, made) for made in (w3, w4, w5)},
        "simulated": simulated,
        "normals": lambda: normals("gpu", 1 << 28, "cuda"),
        "sweep": lambda: sweep(w1(device="cuda"), _RUNS, _PATIENCE),
    }
    if missing := [part for part in parts if part not in known]:
        raise unknown("part", "part", missing[0], list(known))
    found = Findings()
    for part in parts or known:
        found |= known[part]()
    if {"gpu.w4.ours_seconds", "gpu.w5.ours_seconds"} <= set(found.figures):
        over = found.figures["gpu.w4.ours_seconds"] / found.figures["gpu.w5.ours_seconds"]
        found |= Findings({"gpu.w5.over_w4": over})
    return found


def _large(made: Callable[..., Workload]) -> Findings:
    """Measure the residual network or a transformer in every precision."""
    return _precisions(made(device="cuda"), made(samples=_FEWER, device="cuda"))


def _precisions(work: Workload, fewer: Workload) -> Findings:
    """Measure one workload; the others train on fewer rows, and rates are compared, since some take minutes."""
    key = f"gpu.{work.name}"

    def ours(precision: Precision = "float32", *, secure: bool = False) -> Callable[[], object]:
        return lambda: train(work.model, work.x, work.y, work.jobs(secure=secure), precision=precision)

    contestants: dict[str, Callable[[], object]] = {
        "ours": ours(),
        "secure": ours(secure=True),
        "tf32": ours("tf32"),
        "bf16": ours("bf16"),
        "plain": baselines.plain(fewer),
    }
    rivals = {"opacus": baselines.opacus(fewer), "opacus_ghost": baselines.opacus_ghost(fewer)}
    contestants |= {name: run for name, run in rivals.items() if run is not None}
    notes = {} if "opacus" in contestants else {f"{key}.opacus_over_ours": "Not measured: Opacus is not installed."}
    seconds: dict[str, float] = {}
    failed: dict[str, str] = {}
    # One after the other where memory could not hold what all of them keep.
    for name, run in contestants.items():
        try:
            # Secure batches have other widths in every round, and each width is captured when it first occurs.
            for _ in range(_WARM_UPS if name == "secure" else 0):
                run()
            seconds |= best({name: run}, turns=2)
        except (RuntimeError, NotImplementedError, TypeError, AttributeError) as error:
            if name not in rivals:
                raise
            failed[name] = str(error).splitlines()[0] if str(error) else type(error).__name__
        torch.cuda.empty_cache()
    trained = {name: fewer if name == "plain" or name in rivals else work for name in seconds}
    rate = {name: trained[name].samples / taken for name, taken in seconds.items()}
    figures = {
        f"{key}.ours_seconds": seconds["ours"],
        f"{key}.samples_per_second": rate["ours"],
        f"{key}.tf32_samples_per_second": rate["tf32"],
        f"{key}.bf16_samples_per_second": rate["bf16"],
        f"{key}.secure_over_seeded": seconds["secure"] / seconds["ours"],
        **{f"{key}.{name}_over_ours": rate["ours"] / rate[name] for name in ("plain", *rivals) if name in seconds},
    }
    notes |= {f"{key}.{name}_over_ours": f"Not measured: {reason}" for name, reason in failed.items()}
    return Findings(figures, notes, {key: profiled(contestants["ours"])})


def simulated() -> Findings:
    """Measure rounds of W3's network through `hush.Simulation`: charges, training, estimation, weights, evaluation."""
    try:
        import hush
    except ImportError as error:
        return Findings({}, {"gpu.w3.simulated.samples_per_second": f"Not measured: {error}."})
    generator = rng(0, "bench", "simulated")
    x = generator.standard_normal((20 * _ROWS, 3, 32, 32), dtype="float32")
    y = generator.integers(0, 10, len(x))
    data = {f"client-{i:02}": (x[i::20], y[i::20]) for i in range(20)}
    figures: dict[str, float] = {}
    for precision in ("float32", "tf32", "bf16"):
        ends = [time.perf_counter()]
        simulation = hush.Simulation(
            data, "resnet18-gn", epsilon=2.0, delta=1e-4, rounds=4, batch_size=64, recipe="robust-hdp",
            device="cuda", precision=precision,
        )  # fmt: skip
        simulation.fit(progress=False, callbacks=[_stopwatch(ends)])
        fastest = min(b - a for a, b in pairwise(ends[1:]))
        rows = 20 * int(0.8 * _ROWS)
        figures[f"gpu.w3.simulated.{precision}_samples_per_second"] = rows / fastest
        figures[f"gpu.w3.simulated.{precision}_first_round_seconds"] = ends[1] - ends[0]
    return Findings(figures)


def _stopwatch(ends: list[float]) -> Callable[[object], None]:
    return lambda _: ends.append(time.perf_counter())


def _w1() -> Findings:
    work = w1(device="cuda")
    contestants: dict[str, Callable[[], object]] = {
        "ours": lambda: train(work.model, work.x, work.y, work.jobs()),
        "secure": lambda: train(work.model, work.x, work.y, work.jobs(secure=True)),
        "tf32": lambda: train(work.model, work.x, work.y, work.jobs(), precision="tf32"),
        "plain": baselines.plain(work),
        "double vmap": baselines.double_vmap(work),
    }
    notes = {"gpu.w1.double_vmap_over_ours": "The baseline uses batches of equal size and adds no noise."}
    if (hooks := baselines.opacus(work)) is not None:
        contestants["opacus"] = hooks
    else:
        notes["gpu.w1.opacus_over_ours"] = "Not measured: Opacus is not installed."
    seconds = best(contestants, turns=3)
    rate = work.samples / seconds["ours"]
    figures = {
        "gpu.w1.ours_seconds": seconds["ours"],
        "gpu.w1.samples_per_second": rate,
        "gpu.w1.tf32_samples_per_second": work.samples / seconds["tf32"],
        "gpu.w1.secure_over_seeded": seconds["secure"] / seconds["ours"],
        "gpu.w1.plain_over_ours": seconds["plain"] / seconds["ours"],
        "gpu.w1.double_vmap_over_ours": seconds["double vmap"] / seconds["ours"],
    }
    if "opacus" in seconds:
        figures["gpu.w1.opacus_over_ours"] = seconds["opacus"] / seconds["ours"]
        notes["gpu.w1.opacus_over_ours"] = "For what limits Hush, see gpu.w1.samples_per_second."
    fastest, bandwidth = peak("cuda"), stream("cuda")
    steps = max(plan.steps for plan in work.plans)
    notes["gpu.w1.samples_per_second"] = (
        f"The floor is 16.3 MFLOP a sample at {fastest / 1e12:.0f} TFLOP/s (float32, measured): "
        f"{fastest / _OPERATIONS / 1e6:.1f} M samples/s; copies run at {bandwidth / 1e12:.1f} TB/s. A client of batch "
        f"16 takes {steps} steps, one after the other; the smallest (5 clients x 16) takes "
        f"{5 * 16 / captured_step_rate(work, 5, 16) * 1e6:.0f} us alone, a dozen short kernels, and one of "
        f"20 clients x 60 reaches {captured_step_rate(work, 20, 60) / 1e6:.2f} M samples/s."
    )
    return Findings(
        figures | {"gpu.peak_tflops": fastest / 1e12, "gpu.w1.floor_seconds": work.samples * _OPERATIONS / fastest},
        notes,
        {"gpu.w1": profiled(contestants["ours"])},
    )


def linear() -> Findings:
    """Measure W2 against PyTorch without privacy, and `_RUNS` runs of it in lockstep, with seeded and secure noise."""
    work = w2(device="cuda")
    seconds = best(
        {
            "ours": lambda: train(work.model, work.x, work.y, work.jobs()),
            "secure": lambda: train(work.model, work.x, work.y, work.jobs(secure=True)),
            "plain": baselines.plain(work),
            "lockstep": lambda: _lockstep(work, _RUNS, secure=False),
            "secure lockstep": lambda: _lockstep(work, _RUNS, secure=True),
        },
        turns=3,
    )
    together = _RUNS * work.samples
    return Findings(
        {
            "gpu.w2.ours_seconds": seconds["ours"],
            "gpu.w2.samples_per_second": work.samples / seconds["ours"],
            "gpu.w2.plain_over_ours": seconds["plain"] / seconds["ours"],
            "gpu.w2.secure_over_seeded": seconds["secure"] / seconds["ours"],
            "gpu.w2.lockstep.seconds": seconds["lockstep"],
            "gpu.w2.lockstep.samples_per_second": together / seconds["lockstep"],
            "gpu.w2.lockstep.secure_samples_per_second": together / seconds["secure lockstep"],
            "gpu.w2.lockstep.secure_over_seeded": seconds["secure lockstep"] / seconds["lockstep"],
        },
        {
            "gpu.w2.lockstep.samples_per_second": (
                f"{_RUNS} runs, {_RUNS * len(work.plans)} clients in one call of train, with all that it does: "
                "sources, batches, noise and updates."
            )
        },
        {"gpu.w2": profiled(lambda: train(work.model, work.x, work.y, work.jobs()))},
    )


def _lockstep(work: Workload, runs: int, *, secure: bool) -> list[Tensor]:
    """A round of that many runs on the same rows, trained in one call."""
    jobs = [
        replace(job, source=job.source if secure else Seeded(run, client, 1))
        for run in range(runs)
        for client, job in enumerate(work.jobs(secure=secure))
    ]
    return train(work.model, work.x, work.y, jobs)


def sweep(work: Workload, runs: int, patience: float) -> Findings:
    """Runs in lockstep: their clients train in one call, then each run's server performs a step."""
    weight, how = _server()
    models = [work.model.start.to(work.x.device)] * runs
    models = _round(work, models, 0, weight)
    wait()
    began, rounds = time.perf_counter(), 0
    while rounds < 2 or time.perf_counter() - began < patience:
        rounds += 1
        models = _round(work, models, rounds, weight)
        wait()
    each = (time.perf_counter() - began) / rounds
    clients = runs * len(work.plans)
    most = captured_step_rate(work, clients, _BATCH) if work.x.is_cuda else math.nan
    note = (
        f"{rounds} rounds of {runs} runs measured ({clients} clients in one call, {each:.2f} s a round, server step: "
        f"{how}); {_ROUNDS} rounds would take {_ROUNDS * each / 60:.1f} minutes. "
        f"A step of {clients} clients x {_BATCH} alone reaches {most / 1e6:.2f} M samples/s."
    )
    return Findings(
        {
            "gpu.sweep.runs_per_minute": 60 * runs / (_ROUNDS * each),
            "gpu.sweep.samples_per_second": runs * work.samples / each,
        },
        {"gpu.sweep.runs_per_minute": note},
    )


def _round(work: Workload, models: list[Tensor], number: int, weight: Callable[[Tensor], Tensor]) -> list[Tensor]:
    plain = work.jobs()
    jobs: list[Job] = [
        replace(job, vector=model, source=Seeded(run, client, number))
        for run, model in enumerate(models)
        for client, job in enumerate(plain)
    ]
    updates = train(work.model, work.x, work.y, jobs)
    stacked = torch.stack(updates).view(len(models), len(plain), -1)
    return [model + weight(mine) @ mine for model, mine in zip(models, stacked, strict=True)]


def captured_step_rate(work: Workload, clients: int, width: int) -> float:
    """Return samples per second of one step over full batches, captured and replayed: the maximum of the kernels."""
    chain = pooled_cnn_of(work.model, work.x)
    assert chain is not None
    size = clients * width
    step = PooledCnnStep(work.model, chain, (work.x, work.y), clients, size, size, triton_precision("float32"), "plain")
    step.vectors.copy_(work.model.start.expand(clients, -1))
    step.clips.fill_(work.plans[0].clip)
    drawn = np.arange(size).reshape(clients, width) % len(work.x)
    packed = torch.from_numpy(step.packed(list(drawn))).to(work.x.device)
    return size / best({"step": lambda: step.step(packed, None, size)}, turns=20)["step"]


def _server() -> tuple[Callable[[Tensor], Tensor], str]:
    """Return how a server weights its clients: by estimated noise, or equally if the recipes cannot be imported."""
    try:
        from hush.recipes.estimators.noise_energy import inverse, pairwise
    except ImportError:
        return lambda updates: updates.new_full((len(updates),), 1 / len(updates)), "a plain mean"
    return lambda updates: inverse(pairwise(updates)).to(updates.dtype), "weights from the pairwise estimator"


if __name__ == "__main__":
    chosen = sys.argv[1:]
    sys.stdout.write(
        json.dumps(measure(chosen).record(" ".join(["python -m hush.bench.gpu", *chosen])), indent=2) + "\n"
    )
