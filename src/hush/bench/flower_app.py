"""The Flower app that `hush.bench.flower` starts: W1 in Flower's simulation, an Opacus loop per client, on all cores.

It is imported rather than run as a file, so that Ray's workers can import it too. `main` writes {"seconds", "busy",
"all"}: the better of two rounds after a warm-up round, from the first message sent to the last reply averaged; the
minimum CPU time of the clients' own loops in a round, excluding Flower; and that of all processes.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from hush.bench import baselines
from hush.bench.turns import processor_seconds
from hush.bench.workloads import Workload, w1

_ROUNDS = 3


@cache
def _work(clients: int, samples: int) -> Workload:
    torch.set_num_threads(1)
    return w1(clients, samples)


def _train(clients: int, samples: int, client: int, arrays: Any) -> tuple[Any, float]:
    """One client's round: returns its weights and its CPU time."""
    whole = _work(clients, samples)
    rows = slice(whole.firsts[client], whole.firsts[client] + samples)
    work = replace(whole, x=whole.x[rows], y=whole.y[rows], plans=(whole.plans[client],))
    work.model.module.load_state_dict(arrays.to_torch_state_dict())
    trained: list[torch.nn.Module] = []
    loop = baselines.opacus(work, trained)
    assert loop is not None
    began = time.process_time()
    loop()
    return trained[0].state_dict(), time.process_time() - began


def apps(clients: int, samples: int) -> tuple[Any, Any, list[tuple[float, float, float]]]:
    """Return the server and client apps, and the list that will contain the times of the rounds: by the clock, CPU time
    of the clients' loops, and CPU time of all processes.
    """
    flwr_app, client_side, server_side = (
        importlib.import_module(f"flwr.{name}") for name in ("app", "clientapp", "serverapp")
    )
    client_app, server_app = client_side.ClientApp(), server_side.ServerApp()
    taken: list[tuple[float, float, float]] = []

    def train(message: Any, context: Any) -> Any:
        client = int(context.node_config["partition-id"])
        state, busy = _train(clients, samples, client, message.content["model"])
        record = flwr_app.RecordDict(
            {"model": flwr_app.ArrayRecord(state), "spent": flwr_app.MetricRecord({"busy": busy})}
        )
        return flwr_app.Message(content=record, reply_to=message)

    def main(grid: Any, context: Any) -> None:
        state = w1(4, 128).model.module.state_dict()
        while len(nodes := list(grid.get_node_ids())) < clients:
            time.sleep(0.1)
        for _ in range(_ROUNDS):
            began, before = time.perf_counter(), processor_seconds()
            record = flwr_app.RecordDict({"model": flwr_app.ArrayRecord(state)})
            replies = grid.send_and_receive(
                [flwr_app.Message(content=record, dst_node_id=node, message_type="train") for node in nodes]
            )
            models = [reply.content["model"].to_torch_state_dict() for reply in replies]
            state = {name: torch.stack([model[name] for model in models]).mean(0) for name in state}
            busy = sum(float(reply.content["spent"]["busy"]) for reply in replies)
            taken.append((time.perf_counter() - began, busy, processor_seconds() - before))

    client_app.train()(train)
    server_app.main()(main)
    return server_app, client_app, taken


def run(clients: int, samples: int) -> dict[str, float]:
    """Return the duration of the fastest round, and the least CPU time of the clients' loops and of all processes."""
    server_app, client_app, taken = apps(clients, samples)
    importlib.import_module("flwr.simulation").run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=clients,
        backend_config={"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": os.cpu_count()}},
    )
    return dict(zip(("seconds", "busy", "all"), map(min, zip(*taken[1:], strict=True)), strict=True))


def main() -> None:
    """The entry point of the process."""
    sys.stdout.write(json.dumps(run(int(sys.argv[1]), int(sys.argv[2]))) + "\n")
