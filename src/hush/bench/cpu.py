"""CPU benchmark: a round of DP training against a plain loop, Opacus, and Flower with Opacus."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hush.bench import baselines, flower
from hush.bench.findings import Findings
from hush.bench.noise import normals
from hush.bench.profiled import profiled
from hush.bench.timing import best, cores_are_shared, cpu_seconds, peak, stream
from hush.bench.workloads import Workload, w1, w2, w4_small, w5_small
from hush.training.train import train

W1_OPERATIONS = 16.3e6  # multiplications and additions for one sample's forward and backward pass through the CNN


def measure() -> Findings:
    """Measure the workloads, and the noise alone."""
    return _w1() | _w2() | _w4() | normals("cpu", 1 << 22, "cpu")


def ours(work: Workload, *, secure: bool = False) -> Callable[[], object]:
    """Run one round, with seeded or secure noise."""
    return lambda: train(work.model, work.x, work.y, work.jobs(secure=secure))


def against(work: Workload, key: str, turns: int = 2, *, ghost: bool = False) -> tuple[Findings, dict[str, float]]:
    """Return the ratios of the baselines' rounds to ours; with `ghost`, Opacus's ghost clipping is one of them."""
    contestants: dict[str, Callable[[], object]] = {
        "ours": ours(work),
        "secure": ours(work, secure=True),
        "plain": baselines.plain(work),
    }
    notes = {}
    rivals = {"opacus": baselines.opacus(work), "opacus_ghost": baselines.opacus_ghost(work) if ghost else None}
    contestants |= {name: run for name, run in rivals.items() if run is not None}
    if rivals["opacus"] is None:
        notes[f"{key}.opacus_over_ours"] = "Not measured: Opacus is not installed."
    seconds = best(contestants, turns)
    figures = {
        f"{key}.ours_seconds": seconds["ours"],
        f"{key}.plain_seconds": seconds["plain"],
        f"{key}.secure_over_seeded": seconds["secure"] / seconds["ours"],
        f"{key}.ours_over_plain": seconds["ours"] / seconds["plain"],
        f"{key}.plain_over_ours": seconds["plain"] / seconds["ours"],
    }
    for name in rivals.keys() & seconds.keys():
        figures[f"{key}.{name}_over_ours"] = seconds[name] / seconds["ours"]
    return Findings(figures, notes), seconds


def _w1() -> Findings:
    work = w1()
    found, seconds = against(work, "cpu.w1")
    fastest = peak("cpu")
    floor = work.samples * W1_OPERATIONS / fastest
    found |= Findings(
        {"cpu.peak_gflops": fastest / 1e9, "cpu.w1.floor_seconds": floor},
        {
            "cpu.w1.ours_over_plain": f"The floor is {work.samples:,} samples of 16.3 MFLOP at {fastest / 1e9:.0f} "
            f"GFLOP/s (measured, {torch.get_num_threads()} threads): {floor:.2f} s, or "
            f"{floor / seconds['plain']:.2f} of the plain loop; ours takes {seconds['ours'] / floor:.1f} times that."
        },
        {"cpu.w1": profiled(ours(w1(clients=4, samples=600)))},
    )
    taken = flower.seconds(work)
    if isinstance(taken, str):
        return found | Findings(notes={"cpu.w1.flower_opacus_over_ours": taken})
    return found | _flower(taken, seconds["ours"], cpu_seconds(ours(work)))


def _flower(rival: tuple[float, float], ours_seconds: float, ours_busy: float) -> Findings:
    """Return the ratio by wall-clock time, or by CPU time if other work uses the cores."""
    clock, busy_too = rival[0] / ours_seconds, rival[1] / ours_busy
    shared = cores_are_shared()
    note = (
        f"By the clock {clock:.2f}; by CPU time {busy_too:.2f} ({rival[1]:.0f} s of the baseline's clients, "
        "without "
        f"anything of Flower's, over {ours_busy:.0f} s). "
    )
    why = "Other processes share the cores, so CPU time counts." if shared else "Wall-clock time counts."
    key = "cpu.w1.flower_opacus_over_ours"
    return Findings({key: busy_too if shared else clock}, {key: note + why})


def _w2() -> Findings:
    work = w2()
    found, seconds = against(work, "cpu.w2", turns=6)
    rows = work.samples
    moved = rows * 40 * 4 * 4
    operations = rows * 40 * 10 * 2 * 2
    floor = max(moved / stream("cpu"), operations / peak("cpu"))
    note = (
        f"A round gathers {rows:,} rows of 160 bytes (read, written, and read twice by products: {moved / 1e9:.2f} GB) "
        f"and multiplies {operations / 1e9:.2f} GFLOP: at least {floor:.3f} s; ours takes {seconds['ours']:.3f} s, the "
        "rest being Poisson draws, softmax, and the interpreter's share of each step."
    )
    return found | Findings(
        {"cpu.w2.floor_seconds": floor},
        {"cpu.w2.plain_over_ours": note, "cpu.w2.opacus_over_ours": "For what limits Hush, see plain_over_ours."},
        {"cpu.w2": profiled(ours(w2(users=10)))},
    )


def _w4() -> Findings:
    """Return the transformer's ratios, and how much faster it is with adapters."""
    work = w4_small()
    found, seconds = against(work, "cpu.w4", turns=3, ghost=True)
    adapted, own = against(w5_small(), "cpu.w5", turns=3)
    rates = {
        "cpu.w4.samples_per_second": work.samples / seconds["ours"],
        "cpu.w5.over_w4": seconds["ours"] / own["ours"],
    }
    return found | adapted | Findings(rates, {}, {"cpu.w4": profiled(ours(work))})
