"""The server of the quickstart: weights by the noise in each update, and accuracy on public rows."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from hush.flower import HushStrategy
from quickstart.task import Net, load_test

log = logging.getLogger("flwr")
app = ServerApp()


@app.main()  # type: ignore[untyped-decorator]
def main(grid: Grid, context: Context) -> None:
    """Run the rounds, and write what they gave where that is asked for."""
    strategy = HushStrategy("robust-hdp")
    result = strategy.start(
        grid, ArrayRecord(Net().state_dict()), num_rounds=int(context.run_config["rounds"]), evaluate_fn=evaluate
    )
    for line in strategy.not_covered():
        log.info("not covered: %s", line)
    if out := str(context.run_config["out"]):
        rounds = {number: float(m["accuracy"]) for number, m in result.evaluate_metrics_serverapp.items()}
        Path(out).write_text(json.dumps(rounds), encoding="utf-8")


def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
    """The accuracy on public rows."""
    net = Net()
    net.load_state_dict(arrays.to_torch_state_dict())
    x, y = load_test()
    with torch.no_grad():
        return MetricRecord({"accuracy": float((net(x).argmax(1) == y).float().mean())})
