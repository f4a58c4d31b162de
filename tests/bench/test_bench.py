"""The benchmark itself: rivals do what ours does, figures are judged rightly, and the page is current."""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import hush
from hush.bench import baselines, cpu, flower, run, scale, server
from hush.bench import ray as ray_suite
from hush.bench.findings import TARGETS, Findings, add_to, met, short
from hush.bench.noise import normals, rounds
from hush.bench.profiled import kernel_name, profiled
from hush.bench.timing import best, cpu_seconds, fair_clock, what_failed
from hush.bench.workloads import Workload, w1, w2, w3, w4, w4_small, w5_small
from hush.privacy import noise
from hush.recipes.estimators import noise_energy
from hush.types import HushError
from scripts import performance, scaling
from tests.support.paths import ROOT


def test_the_workloads_are_those_of_the_table() -> None:
    first = w1(clients=4, samples=256)
    assert first.model.layout.size == 28_938
    assert [(plan.batch, plan.steps, plan.clip) for plan in first.plans] == [
        (16, 16, 3.0),
        (32, 8, 3.0),
        (64, 4, 3.0),
        (128, 2, 3.0),
    ]
    second = w2(users=2)
    assert [(plan.samples, plan.batch, plan.steps) for plan in second.plans] == [(4000, 800, 50)] * 2
    assert second.drifts is not None
    assert all(torch.equal(job.drift, drift) for job, drift in zip(second.jobs(), second.drifts, strict=True))


def test_the_larger_workloads_are_those_of_the_table() -> None:
    residual, transformer, small, adapted = w3(clients=2), w4(), w4_small(), w5_small()
    assert (residual.model.layout.size, residual.plans[0].steps, residual.plans[0].batch) == (11_181_642, 8, 64)
    assert transformer.model.layout.size == 3_259_914
    assert [(len(w.plans), w.plans[0].samples, w.plans[0].batch) for w in (transformer, small)] == [
        (8, 1024, 64),
        (4, 128, 32),
    ]
    assert adapted.model.layout.size == 38_154
    assert all("lora" in name or name.startswith("out.") for name in adapted.model.layout.names)


@pytest.mark.parametrize("make", [w4_small, w5_small])
@pytest.mark.parametrize("rival", [baselines.plain, baselines.opacus, baselines.opacus_ghost])
def test_baselines_train_what_is_trained(make: Any, rival: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opacus")
    made: list[torch.nn.Module] = []
    build, replaced = baselines._module, baselines._fixed

    def kept(module: torch.nn.Module) -> torch.nn.Module:
        made.append(module)
        return module

    monkeypatch.setattr(baselines, "_module", lambda work: kept(build(work)))
    monkeypatch.setattr(baselines, "_fixed", lambda module: kept(replaced(module)))
    work = make(clients=1, samples=64)
    start = {name: value.clone() for name, value in build(work).named_parameters()}
    rival(work)()
    ends = dict(made[-1].named_parameters())
    moved = {name for name in ends.keys() & start.keys() if not torch.equal(ends[name], start[name])}
    assert moved == start.keys() & ends.keys() & set(work.model.layout.names)
    assert "out.weight" in moved


def moved(work: Workload, run: Any, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The parameters of each module that a rival trained, at the end."""
    made, build = [], baselines._module

    def kept(work: Workload) -> torch.nn.Module:
        made.append(build(work))
        return made[-1]

    monkeypatch.setattr(baselines, "_module", kept)
    run()
    return [torch.cat([p.detach().flatten() for p in module.parameters()]) for module in made]


def test_the_plain_loop_trains_and_adds_the_control_variates(monkeypatch: pytest.MonkeyPatch) -> None:
    work = w2(users=2, steps=5)
    ends = moved(work, baselines.plain(work), monkeypatch)
    for client, end in enumerate(ends):
        assert work.drifts is not None
        at = work.model.start.clone()
        for rows in baselines.shuffled(work, client):
            vector = at.clone().requires_grad_()
            x, y = work.x[4000 * client + rows], work.y[4000 * client + rows]
            (g,) = torch.autograd.grad(functional.cross_entropy(work.model.logits(vector, x), y), vector)
            at = at - work.lr * (g + work.drifts[client])
        torch.testing.assert_close(end, at, rtol=1e-4, atol=1e-6)


def test_opacus_adds_the_control_variates_after_its_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opacus")
    work = replace(w2(users=1, steps=5), lr=1.0)
    large = replace(work, drifts=torch.full_like(work.drifts, 100.0))
    (end,) = moved(large, baselines.opacus(large), monkeypatch)
    assert (end - work.model.start).mean().item() == pytest.approx(-500.0, rel=0.01)


def test_a_workload_trains_with_secure_noise_as_with_seeded() -> None:
    work = w2(users=2, steps=5)
    seeded, secure = ([job.source for job in work.jobs(secure=kind)] for kind in (False, True))
    assert {type(source) for source in seeded} == {noise.Seeded}
    assert {type(source) for source in secure} == {noise.Secure}


def test_the_noise_alone_is_measured_in_both_ways() -> None:
    found = normals("cpu", 1000, "cpu").figures
    assert set(found) == {
        f"cpu.noise.{each}" for each in ("seeded_normals_per_second", "secure_normals_per_second", "secure_over_seeded")
    }
    ratio = found["cpu.noise.seeded_normals_per_second"] / found["cpu.noise.secure_normals_per_second"]
    assert found["cpu.noise.secure_over_seeded"] == pytest.approx(ratio)
    assert 0 < rounds(w2(users=1, steps=5), time.perf_counter, turns=1) < math.inf


def test_double_vmap_trains_every_client_of_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    stack = torch.stack
    monkeypatch.setattr(torch, "stack", lambda rows: seen.append(len(rows)) or stack(rows))  # type: ignore[func-returns-value]
    work = w2(users=3, steps=5)
    baselines.double_vmap(work)()
    assert seen == [3] * 5


def test_shuffles_hold_every_row_once_an_epoch() -> None:
    rows = torch.cat(list(baselines.shuffled(w2(users=1, steps=10), 0)))
    assert torch.equal(rows.bincount(), torch.full((4000,), 2))


def test_figures_are_judged_by_their_targets() -> None:
    assert met("cpu.w1.ours_over_plain", 1.0)
    assert not met("cpu.w1.ours_over_plain", 1.01)
    assert met("cpu.w2.plain_over_ours", 3.0)
    assert not met("cpu.w2.plain_over_ours", 2.99)
    assert short({"cpu.w2.plain_over_ours": 2.0, "cpu.w2.ours_seconds": 9.0}) == ["cpu.w2.plain_over_ours"]


def test_findings_add_up() -> None:
    both = Findings({"a": 1.0}, {"a": "First."}) | Findings({"b": 2.0}, {"a": "Second."}, {"a": [("x", 1.0)]})
    assert both == Findings({"a": 1.0, "b": 2.0}, {"a": "First. Second."}, {"a": [("x", 1.0)]})
    record = both.record("command")
    assert json.loads(json.dumps(record))["notes"]["a"] == "First. Second."
    assert {"machine", "versions", "measured", "command", "short"} <= set(record)


def test_the_best_turn_counts() -> None:
    seconds = best({"nothing": lambda: None, "something": lambda: sum(range(100_000))}, turns=3)
    assert 0 <= seconds["nothing"] < seconds["something"]


def test_ours_against_the_rivals_has_every_key() -> None:
    found, _ = cpu.against(w2(users=2, steps=5), "cpu.w2", turns=1)
    keys = {"cpu.w2.plain_over_ours", "cpu.w2.ours_over_plain", "cpu.w2.ours_seconds", "cpu.w2.secure_over_seeded"}
    assert keys <= set(found.figures)
    product = found.figures["cpu.w2.plain_over_ours"] * found.figures["cpu.w2.ours_over_plain"]
    assert product == pytest.approx(1.0)


@pytest.mark.parametrize(("shared", "expected"), [(False, 2.0), (True, 3.0)])
def test_a_rival_on_a_shared_machine_is_judged_by_processor_time(
    monkeypatch: pytest.MonkeyPatch, shared: bool, expected: float
) -> None:
    monkeypatch.setattr(cpu, "cores_are_shared", lambda: shared)
    found = cpu._flower((20.0, 60.0), 10.0, 20.0)
    assert found.figures["cpu.w1.flower_opacus_over_ours"] == expected
    monkeypatch.setattr("hush.bench.timing.cores_are_shared", lambda: shared)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert (fair_clock()[0] is time.process_time) is shared
    assert cpu_seconds(lambda: time.sleep(0.05)) < 0.04


def test_a_process_that_failed_is_reported_with_its_error() -> None:
    text = "Traceback:\n  File x\n[rank0]: ValueError: too few\n====\nRoot cause:\n====="
    assert what_failed(text) == "[rank0]: ValueError: too few"
    assert what_failed("killed\n") == "killed"
    assert what_failed("") == "no message"


def test_flower_is_left_out_with_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    found = flower.seconds(w2(users=1, steps=5))
    assert isinstance(found, str)
    assert "not installed" in found


def test_the_textbook_pursuit_is_the_same_through_the_gram_matrix() -> None:
    small = server.updates(6, 400)
    with_svd, with_gram = (server.Naive(small, svd=svd).run(30) for svd in (True, False))
    torch.testing.assert_close(with_svd, with_gram, rtol=1e-8, atol=1e-12)
    path = server.naive_iterations(small, noise_energy.inverse(noise_energy.rpca(small)), 4000)
    assert path[-1][1] < 0.05 < path[0][1], "it comes to our weights, from afar"


def test_a_simulation_of_many_clients_tells_time_and_memory() -> None:
    found = scale.simulated(12, hush.simulate)
    assert found["seconds"] > 0
    assert 50 < found["rss_mib"] < 10_000


def test_kernels_are_named_without_their_types() -> None:
    long = "void at::native::(anonymous namespace)::vectorized<4, at::Add<float> >(int, at::Add<float>)"
    assert [kernel_name(key) for key in (long, "aten::mm", "_forward_few")] == [
        "at::native::vectorized",
        "aten::mm",
        "_forward_few",
    ]


def test_profiles_are_shares() -> None:
    rows = profiled(lambda: torch.ones(200, 200) @ torch.ones(200, 200))
    assert math.fsum(share for _, share in rows) == pytest.approx(1.0)
    assert rows[0][1] > 0


def test_unknown_suites_and_missing_devices_are_refused() -> None:
    with pytest.raises(HushError, match="unknown suite 'cup'"):
        run(["cup"])
    if not torch.cuda.is_available():
        with pytest.raises(HushError, match="no CUDA device"):
            run(["gpu"])


def test_parts_of_a_suite_are_measured_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {name: lambda name=name: Findings({f"ray.{name}": 1.0}) for name in ("overhead", "flower", "pfl")}
    monkeypatch.setattr(ray_suite, "PARTS", parts)
    reported: list[str] = []
    found = run(["ray"], lambda name, *_: reported.append(name), ["pfl", "overhead"])
    assert reported == ["ray: pfl", "ray: overhead"]
    assert set(found["figures"]) == {"ray.pfl", "ray.overhead"}
    assert found["command"] == "hush bench --suite ray --part pfl --part overhead --json"
    assert set(run(["ray"])["figures"]) == {"ray.overhead", "ray.flower", "ray.pfl"}
    with pytest.raises(HushError, match="--part: unknown part of ray 'flowr'; did you mean flower"):
        run(["ray"], None, ["flowr"])
    with pytest.raises(HushError, match="--part: unknown part of server 'pfl'; accepted: none"):
        run(["server"], None, ["pfl"])


def test_figures_are_added_to_those_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "ray.json"
    first = Findings({"a": 1.0, "ray.w1.over_process": 1.3}, {"a": "First."}).record("one")
    second = Findings({"b": 2.0, "ray.w1.over_process": 1.1}, {"b": "Second."}).record("two")
    first["machine"]["load"], second["machine"]["load"] = 1.5, 0.5
    for record in (first, second, second):
        add_to(path, record)
    found = json.loads(path.read_text())
    assert found["figures"] == {"a": 1.0, "b": 2.0, "ray.w1.over_process": 1.1}
    assert (found["notes"], found["short"]) == ({"a": "First.", "b": "Second."}, [])
    assert (found["command"], found["machine"]["load"]) == ("one; two", 1.5)
    assert found["loads"] == {"a": 1.5, "b": 0.5, "ray.w1.over_process": 0.5}
    assert found.keys() == {*first, "loads"}


def test_the_accelerators_suite_needs_pytorch_and_numpy_alone() -> None:
    program = (
        "import sys\n"
        "for name in ('cryptography', 'pydantic',"
        "'typer', 'safetensors', 'scipy', 'sklearn', 'dp_accounting', 'rich'):\n"
        "    sys.modules[name] = None\n"
        "import hush.bench.gpu, hush.bench.noise\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_page_is_what_the_script_writes() -> None:
    assert performance.PAGE.read_text() == performance.page()
    assert scaling.PAGE.read_text() == scaling.page()


def test_every_target_is_on_the_page() -> None:
    text = (ROOT / "docs" / "performance.md").read_text()
    assert [key for key in TARGETS if key not in text] == []
