"""The client of a Flower app that trains with Opacus within a budget."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from opacus import PrivacyEngine
from opacus.accountants.utils import get_noise_multiplier
from task import Net, rows
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

EPSILON, DELTA = [1.0, 2.0, 4.0], 1e-4
app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """One epoch, with the noise that the budget requires for all rounds."""
    client, rounds = int(context.node_config["partition-id"]), int(context.run_config["rounds"])
    x, y = rows(client)
    loader = DataLoader(TensorDataset(x, y), batch_size=32)
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    engine = PrivacyEngine()
    # The engine is new in every round. What earlier rounds have spent is kept in the state of the client.
    if "spent" in context.state:
        spent = context.state["spent"]
        engine.accountant.history = [(spent["noise"], spent["rate"], spent["steps"])]
    noise = get_noise_multiplier(
        target_epsilon=EPSILON[client],
        target_delta=DELTA,
        sample_rate=1 / len(loader),
        epochs=rounds,
        accountant="prv",
    )
    private, optimizer, loader = engine.make_private(
        module=net,
        optimizer=optim.SGD(net.parameters(), lr=0.5),
        data_loader=loader,
        noise_multiplier=noise,
        max_grad_norm=1.0,
    )
    for batch, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(private(batch), labels).backward()
        optimizer.step()
    ((noise, rate, steps),) = engine.accountant.history
    context.state["spent"] = MetricRecord({"noise": noise, "rate": rate, "steps": steps})
    print(f"client {client}: epsilon {engine.get_epsilon(DELTA):.3f} of {EPSILON[client]}", flush=True)
    content = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": len(x)})}
    return Message(RecordDict(content), reply_to=message)
