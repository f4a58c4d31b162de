"""The client of the quickstart: a ledger, a budget, and a reply that both cover."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

import hush
from hush.flower import ledger_mod, train_reply
from quickstart.task import Net, load_data

EPSILON = {0: 2.0, 1: 8.0}


def ledger(context: Context) -> Path:
    """The ledger of the client that this node is."""
    return Path(str(context.run_config["ledgers"])) / f"client-{context.node_config['partition-id']}.ledger"


app = ClientApp(mods=[ledger_mod(ledger)])


@app.train()  # type: ignore[untyped-decorator]
def train(message: Message, context: Context) -> Message:
    """Train the model of the message on the client's rows, within its budget."""
    partition, partitions = (int(context.node_config[name]) for name in ("partition-id", "num-partitions"))
    x, y = load_data(partition, partitions)
    trainer = hush.PrivateTrainer(
        Net(), x, y, epsilon=EPSILON[partition % 2], delta=1e-5, rounds=int(context.run_config["rounds"]),
        batch_size=64, lr=0.5, classes=10, ledger=ledger(context),
    )  # fmt: skip
    return train_reply(trainer, message)
