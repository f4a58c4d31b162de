"""The client of an NVFlare job that trains with Opacus within a budget."""

import nvflare.client as flare
import torch
from opacus import PrivacyEngine
from opacus.accountants.utils import get_noise_multiplier
from task import Net, rows, test_rows
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

EPSILON, DELTA, ROUNDS = [1.0, 2.0, 4.0], 1e-4, 10

flare.init()
client = int(flare.get_site_name().removeprefix("site-")) - 1
x, y = rows(client)
loader = DataLoader(TensorDataset(x, y), batch_size=32)
net = Net()
noise = get_noise_multiplier(
    target_epsilon=EPSILON[client],
    target_delta=DELTA,
    sample_rate=1 / len(loader),
    epochs=ROUNDS,
    accountant="prv",
)
engine = PrivacyEngine()
private, optimizer, loader = engine.make_private(
    module=net,
    optimizer=optim.SGD(net.parameters(), lr=0.5),
    data_loader=loader,
    noise_multiplier=noise,
    max_grad_norm=1.0,
)
while flare.is_running():
    model = flare.receive()
    net.load_state_dict(model.params)
    with torch.no_grad():
        inputs, labels = test_rows()
        accuracy = float((net(inputs).argmax(1) == labels).float().mean())
    for batch, labels in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(private(batch), labels).backward()
        optimizer.step()
    print(f"client {client}: accuracy {accuracy:.3f}, epsilon {engine.get_epsilon(DELTA):.3f} of {EPSILON[client]}")
    flare.send(flare.FLModel(params=net.state_dict(), metrics={"accuracy": accuracy}))
