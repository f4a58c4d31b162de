"""The reply of a Flower client to a training message: the weights that a private trainer released, and public facts."""

from __future__ import annotations

from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

from hush.private_trainer import PrivateTrainer
from hush.types import HushError


def train_reply(
    trainer: PrivateTrainer,
    message: Message,
    *,
    arrays: str = "arrays",
    config: str = "config",
    metrics: str = "metrics",
) -> Message:
    """Charge, train, and reply: the new weights, and the public facts of the plan as metrics.

    The run is Flower's, and the round that of the message, so that a repeated message is answered with the same weights
    and is charged once.

    Args:
        trainer: The client's.
        message: A training message of `FedAvg`, `HushStrategy` or another strategy with the same records.
        arrays: The name of the record with the weights.
        config: That of the record with `server-round`.
        metrics: What to call the record with the facts.
    """
    run, number = run_and_round(message, config)
    if arrays not in message.content.array_records:
        raise HushError(f"message: no array record {arrays!r}; accepted: the name that the strategy uses")
    done = trainer.fit(message.content.array_records[arrays].to_torch_state_dict(), round=number, run=run)
    content = RecordDict({arrays: ArrayRecord(done.weights), metrics: MetricRecord(trainer.facts)})
    return Message(content, reply_to=message)


def run_and_round(message: Message, config: str) -> tuple[str, int]:
    """What the ledger calls the run of a message, and the number of its round."""
    number = message.content.config_records.get(config, {}).get("server-round")
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise HushError(f"message: server-round of {config!r} is {number!r:.40}; accepted: an integer, 1 or more")
    return f"flower {message.metadata.run_id}", number
