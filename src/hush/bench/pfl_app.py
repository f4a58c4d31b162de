"""The pfl app that `hush.bench.pfl_research` starts, once for each core: W1 in pfl-research, with Opacus clients.

All clients train in every round; processes share them, and reduce their sums with torch.distributed. The first process
writes {"seconds", "busy"}: the better of two rounds after a warm-up round, and its CPU time.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from hush.bench import baselines
from hush.bench.workloads import Workload, w1

_ROUNDS = 3


def run(clients: int, samples: int) -> dict[str, float]:
    """Return the duration of the fastest round, and its minimum CPU time in this process."""
    torch.set_num_threads(1)
    pytorch, data, algorithm, aggregate, hyperparam, callback, sampling = (
        importlib.import_module(f"pfl.{name}")
        for name in (
            "model.pytorch",
            "data",
            "algorithm",
            "aggregate.simulate",
            "hyperparam",
            "callback.base",
            "data.sampling",
        )
    )
    work = w1(clients, samples)
    module: Any = work.model.module.requires_grad_(True)
    module.loss = module.metrics = None  # are asked for, and not used: the clients train with Opacus
    taken: list[tuple[float, float]] = []

    class OpacusModel(pytorch.PyTorchModel):  # type: ignore[name-defined,misc]
        """Trains a client as every other baseline does, in place of plain SGD."""

        def do_multiple_epochs_of(self, user_dataset: Any, train_params: Any, *_: Any, **__: Any) -> Any:
            """Train one client from the model as it is now, and leave what was trained in it."""
            own = _of_client(work, int(user_dataset.user_id), samples)
            trained: list[torch.nn.Module] = []
            loop = baselines.opacus(own, trained)
            assert loop is not None
            loop()
            module.load_state_dict(trained[0].state_dict())
            return importlib.import_module("pfl.context").LocalResultMetaData(num_steps=own.plans[0].steps)

        def evaluate(self, *_: Any, **__: Any) -> Any:
            """Nothing is evaluated."""
            return importlib.import_module("pfl.metrics").Metrics()

    class Timed(callback.TrainingProcessCallback):  # type: ignore[name-defined,misc]
        """Notes when rounds end."""

        def __init__(self) -> None:
            self.began = (time.perf_counter(), time.process_time())

        def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Any]:
            """Note it."""
            now = (time.perf_counter(), time.process_time())
            taken.append((now[0] - self.began[0], now[1] - self.began[1]))
            self.began = now
            return False, importlib.import_module("pfl.metrics").Metrics()

    def made(user: int) -> Any:
        first = work.firsts[user]
        rows = [work.x[first : first + samples].numpy(), work.y[first : first + samples].numpy()]
        return data.dataset.Dataset(raw_data=rows, user_id=str(user))

    model = OpacusModel(
        model=module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(module.parameters(), 1.0),
    )
    users = data.FederatedDataset(made, sampling.get_user_sampler("minimize_reuse", list(range(clients))))
    algorithm.FederatedAveraging().run(
        backend=aggregate.SimulatedBackend(training_data=users, val_data=None, postprocessors=[]),
        model=model,
        algorithm_params=algorithm.NNAlgorithmParams(
            central_num_iterations=_ROUNDS,
            evaluation_frequency=_ROUNDS + 1,
            train_cohort_size=clients,
            val_cohort_size=0,
        ),
        model_train_params=hyperparam.NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=work.lr, local_batch_size=samples
        ),
        model_eval_params=hyperparam.NNEvalHyperParams(local_batch_size=samples),
        callbacks=[Timed()],
    )
    seconds, busy = (float(np.min(column)) for column in zip(*taken[1:], strict=True))
    return {"seconds": seconds, "busy": busy}


def _of_client(work: Workload, client: int, samples: int) -> Workload:
    rows = slice(work.firsts[client], work.firsts[client] + samples)
    return replace(work, x=work.x[rows], y=work.y[rows], plans=(work.plans[client],))


def main() -> None:
    """The entry point of each process."""
    found = run(int(sys.argv[1]), int(sys.argv[2]))
    if importlib.import_module("pfl.internal.ops.pytorch_ops").distributed.global_rank == 0:
        sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
