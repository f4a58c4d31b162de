"""Write docs/scaling.md from the measurements of the suites ray, scale and memory under results/bench.

python -m scripts.scaling
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_MISSING = """## Not measured yet
`results/bench` lacks figures of the suite `ray`. This measures them, and adds their sections to this page:

<!-- code: not executed: it measures for many minutes -->

    hush bench --suite ray --into results/bench/ray.json
    python -m scripts.scaling
"""
ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "scaling.md"
RESULTS = ROOT / "results" / "bench"


def page() -> str:
    """The page."""
    ray, scale, memory = (_read(name) for name in ("ray", "scale", "memory"))
    parts = [
        (_head(), True),
        (_measured(ray), ray.has("ray.one.seconds")),
        (_over_process(ray), ray.has("ray.w1.over_process")),
        (_others(ray), ray.has("ray.flower_opacus_over_ours.32_samples")),
        (_server(ray), ray.has("ray.server.hush.seconds_500")),
        (_model(), True),
        (_constants(ray), ray.has("ray.model.client_seconds")),
        (_thousand(ray), ray.has("ray.model.client_seconds")),
        (_limits(), True),
        (_one_process(scale, memory), True),
    ]
    return "\n".join(
        [part for part, known in parts if known] + ([] if all(known for _, known in parts) else [_MISSING])
    )


class Figures:
    """The figures of a suite as text; one that was not measured says so."""

    def __init__(self, record: dict[str, Any]) -> None:
        self._record = record
        self._figures = record.get("figures", {})

    def where(self, key: str) -> str:
        """Return where and under which load a figure was measured."""
        if key not in self._figures:
            return "not measured"
        machine = self._record["machine"]
        load = self._record.get("loads", {}).get(key, machine["load"])
        return f"{machine['cores']} cores, load average {load} at the end, {self._record['measured']}"

    def has(self, key: str) -> bool:
        """Return whether a figure was measured."""
        return key in self._figures

    def __call__(self, key: str, unit: str = "") -> str:
        """Return a figure with three digits."""
        if key not in self._figures:
            return "not measured"
        value = self._figures[key]
        return (f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}") + unit


def _read(name: str) -> Figures:
    path = RESULTS / f"{name}.json"
    return Figures(json.loads(path.read_text()) if path.exists() else {})


def _head() -> str:
    return """# Scaling

How simulations grow with workers and clients: what was measured on one machine, and a model of what more machines
would do. This page is written by `python -m scripts.scaling` from `results/bench`; [performance](performance.md) has
all figures with their notes. [On a cluster](cluster.md) says how to run there.
"""


def _measured(ray: Figures) -> str:
    return f"""## Measured: one and two workers
Clients with 600 MNIST-shaped samples and the CNN of 28,938 parameters; rounds of all runs take turns
({ray.where("ray.one.seconds")}).

| | seconds by the clock | on free cores | one worker over this | processor time over one worker's |
|---|---:|---:|---:|---:|
| 16 clients, 1 worker | {ray("ray.one.seconds")} | {ray("ray.one.path_seconds")} | 1 | 1 |
| 16 clients, 2 workers (strong) | {ray("ray.two.seconds")} | {ray("ray.two.path_seconds")} \
| {ray("ray.strong.one_over_two_workers")} | {ray("ray.strong.busy_two_over_one_worker")} |
| 32 clients, 2 workers (weak) | {ray("ray.twice.seconds")} | {ray("ray.twice.path_seconds")} \
| {ray("ray.weak.one_over_two_workers")} | {ray("ray.weak.busy_twice_over_two_ones")} (of twice as much) |

Seconds on free cores are the processor time of the driver and of the busiest worker: how long the round takes where
nothing else uses the cores. Two workers would ideally halve the first row, take as long for the last, and use no more
processor time.

"""


def _over_process(ray: Figures) -> str:
    return f"""## Measured: against one process
Rounds on two workers take {ray("ray.w1.over_process")} of the time of one process of two threads
({ray("ray.w1.busy_over_process")} of the processor time): {ray("ray.w1.seconds", " s")} and \
{ray("ray.w1.process_seconds", " s")} for 20
clients of 2,400 samples ({ray.where("ray.w1.over_process")}). The time on Ray includes that of Ray's own processes,
which share the cores. Workers spend less because they keep the memory that training frees
([decision](adr/0056-what-a-worker-keeps.md)); one process also leaves its two cores idle for a tenth of the time.

"""


def _others(ray: Figures) -> str:
    rows = "\n".join(
        f"| {rival} | {samples} | {ray(f'ray.{name}.{samples}_samples.seconds')} | "
        f"{ray(f'ray.{name}.{samples}_samples.ours_seconds')} | "
        f"{ray(f'ray.{name}_opacus_over_ours.{samples}_samples')} | "
        f"{ray(f'ray.{name}_busy_over_ours.{samples}_samples')} |"
        for name, rival in (("flower", "Flower's simulation, on Ray"), ("pfl", "pfl-research, a process for each core"))
        for samples in (32, 128)
    )
    return f"""## Measured: other simulators
A round of 200 clients with the CNN, in simulators that train each client by an Opacus loop, and on two workers of Hush.
Theirs is the better of two rounds after a first one, without evaluation; ours the mean of rounds before and after,
evaluation included ({ray.where("ray.flower_opacus_over_ours.32_samples")}).
Other processes shared the cores, and more so in some rounds than in others: the last column, of all processes of each
side, depends less on that.

| simulator | samples a client | seconds a round | ours | times as long | times the processor time |
|---|---:|---:|---:|---:|---:|
{rows}

The more samples a client has, the more of a round is training itself, for which Opacus takes about twice as long as
Hush on a CPU ([performance](performance.md)); what a simulator adds to each client is more of the smaller rounds.

"""


def _server(ray: Figures) -> str:
    return f"""## Measured: the server
Seconds of processor time of the server's part of a round, for updates of a million parameters that wait in files:

| recipe | 500 clients | 1,000 | 2,000 | 2,000 over 500 |
|---|---:|---:|---:|---:|
{_server_rows(ray)}
"""


def _server_rows(ray: Figures) -> str:
    names = ("robust-hdp", "hush", "pfa", "rc-dpfl")
    return "\n".join(
        f"| `{name}` | "
        + " | ".join(ray(f"ray.server.{name}.seconds_{clients}") for clients in (500, 1000, 2000))
        + f" | {ray(f'ray.server.{name}.time_2000_over_500')} |"
        for name in names
    )


def _model() -> str:
    return """## Model
A round takes, with `b` clients in a block and `w` workers on nodes of 16 cores,

```text
driver + clients x driver_client + max(blocks x driver_block, ceil(blocks / w) x b x client)
    + levels x 8 x parameters x (addition + transfer) + log2(nodes) x parameters x transfer / 2
```

where sums of updates are added up in a tree of eight (`levels`), and nodes pass models on to each other.

`client` is training a client on one worker; `driver` a round, whatever its size; `driver_client` charging, inviting,
checking and recording a client; `driver_block` sending a block and hearing of it.
"""


def _constants(ray: Figures) -> str:
    return f"""| constant | measured | |
|---|---:|---|
| `client` | {ray("ray.model.client_seconds", " s")} | training a client on one worker |
| `driver` | {ray("ray.model.driver_milliseconds", " ms")} | a round, whatever its size |
| `driver_client` | {ray("ray.model.driver_client_milliseconds", " ms")} | charging, inviting, checking and \
recording a client |
| `driver_block` | {ray("ray.model.driver_block_milliseconds", " ms")} | sending a block and hearing of it |
| `addition` | {ray("ray.model.addition_nanoseconds", " ns")} | adding one number of a sum |
| `transfer` | 6.4 ns | sending one number: **assumed**, 10 Gbit/s |

`client` comes from the round on one worker, the others from the driver's processor time in rounds of 64 and 2,048 tiny
clients, and from adding vectors. The rounds on two workers were not used, and check the model: it says
{ray("ray.model.strong_over_measured")} times what was measured for 16 clients and
{ray("ray.model.weak_over_measured")} times for 32.
"""


def _thousand(ray: Figures) -> str:
    rows = []
    for clients in (10_000, 100_000, 1_000_000):
        key = f"ray.model.thousand_nodes.{clients}_clients"
        rows.append(
            f"| {clients:,} | {ray(key + '.one_node_seconds', ' s')} | {ray(key + '.seconds', ' s')} | "
            f"{ray(key + '.block')} | {ray(key + '.over_one_node')} | {ray(key + '.seconds_with_usual_block', ' s')} |"
        )
    return f"""## What a thousand nodes would do
16,000 workers on 1,000 nodes of 16 cores as fast as these, by the model, and not measured:

| clients | one node | a thousand nodes | with `engine.block` | times as fast | with the usual blocks |
|---:|---:|---:|---:|---:|---:|
{chr(10).join(rows)}

"""


def _limits() -> str:
    return """## What limits a large cluster
- **Blocks are what is shared out.** By default there are 64 of them, or as many as have 64 clients: sizes that follow
  from the config alone keep results the same bits on any cluster. A large cluster needs smaller ones: set
  `engine.block` to the clients divided by the workers, or by twice as many.
- **The driver is what remains.** It charges and checks every client by itself. Once `clients x driver_client` is the
  largest part of a round, more nodes do not help.
- **Rows are stored whole on every node.** The data of all clients must fit the object store of one node.
- **Recipes that estimate noise or cluster clients** (robust-hdp, hush, pfa, rc-dpfl) also send samples of the columns
  to the driver, at most 2^26 numbers (0.2 s at 10 Gbit/s), and take the time of the server's part.
- A node that is lost costs the time of its blocks. What Ray takes to start 16,000 actors is not in the model.
"""


def _one_process(scale: Figures, memory: Figures) -> str:
    driver = memory("memory.resnet18.driver_mib", " MiB")
    on_ray = f"; on Ray the driver takes {driver}" if memory.has("memory.resnet18.driver_mib") else ""
    return f"""## One process
Logistic regression 20 -> 4, 50 samples a client, three rounds, set-up included ({scale.where("scale.seconds_100k")}):

| clients | seconds | memory |
|---:|---:|---:|
| 1,000 | {scale("scale.seconds_1k")} | |
| 10,000 | {scale("scale.seconds_10k")} | {scale("scale.rss_mib_10k", " MiB")}, \
{scale("scale.rss_mib_10k_over_start", " MiB")} of it over the interpreter's |
| 100,000 | {scale("scale.seconds_100k")} | {scale("scale.rss_mib_100k", " MiB")} |

By processor time, 100,000 clients take {scale("scale.time_100k_over_10k")} times as long as 10,000. One round of
robust-hdp with 200 clients of a ResNet-18, whose updates are 8.3 GiB, takes \
{memory("memory.resnet18.process_mib", " MiB")} at its peak in one process
({memory.where("memory.resnet18.process_mib")}){on_ray}.
"""


if __name__ == "__main__":
    PAGE.write_text(page())
