"""A cluster model: how long a round takes there, from what parts of it cost on one machine.

    seconds = driver + clients x driver_client + max(blocks x driver_block, training) + sums + models
    training = turns x block x client
    sums = levels x 8 x parameters x (addition + transfer),    models = log2(nodes) x parameters x transfer / 2

`driver` is what a round costs the driver whatever its size; `driver_client` charging, inviting, checking and recording
a client; `driver_block` sending a block and hearing of it; `client` the training of a client on one worker. A block
occupies one worker, so that the last turn of all workers may be partly empty. Sums of updates are added up in a tree of
eight, and nodes pass models on to each other. Everything is measured but the network, which one machine does not have:
`TRANSFER` is an assumption.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np

BLOCKS, LARGEST, FAN_IN = 64, 64, 8  # as in hush.engines.cluster.rounds
TRANSFER = 8 / 1.25e9  # seconds for a number of float64 at 10 Gbit/s
CORES = 16  # of a node, with a worker each
PARAMETERS = 28_938


@dataclass(frozen=True, kw_only=True)
class ClusterCosts:
    """What parts of a round cost, in seconds.

    Attributes:
        client: Training a client on one worker.
        driver: What a round costs the driver, whatever its size.
        driver_client: What a client costs the driver.
        driver_block: What a block costs the driver.
        addition: Adding one number of a sum.
    """

    client: float
    driver: float
    driver_client: float
    driver_block: float
    addition: float = 0.0

    def round_seconds(
        self, *, clients: int, workers: int, block: int | None = None, parameters: int = PARAMETERS
    ) -> float:
        """Return how long a round takes, with blocks of so many clients, or as `engine.block` has them."""
        size = block or min(math.ceil(clients / BLOCKS), LARGEST)
        blocks = math.ceil(clients / size)
        training = math.ceil(blocks / workers) * size * self.client
        nodes = math.ceil(min(workers, blocks) / CORES)
        over_network = TRANSFER if nodes > 1 else 0.0
        levels = math.ceil(math.log(max(2, min(workers, blocks)), FAN_IN))
        sums = levels * FAN_IN * parameters * (self.addition + over_network)
        models = math.ceil(math.log2(nodes)) * parameters * over_network / 2
        return self.driver + clients * self.driver_client + max(blocks * self.driver_block, training) + sums + models

    def best_block(self, *, clients: int, workers: int, parameters: int = PARAMETERS) -> int:
        """Return the size of blocks with which a round takes least."""
        sizes = range(1, 4 * LARGEST + 1)
        return min(
            sizes,
            key=lambda size: self.round_seconds(clients=clients, workers=workers, block=size, parameters=parameters),
        )

    def figures(self) -> dict[str, float]:
        """Return the constants by name."""
        return {
            "client_seconds": self.client,
            "driver_milliseconds": 1e3 * self.driver,
            "driver_client_milliseconds": 1e3 * self.driver_client,
            "driver_block_milliseconds": 1e3 * self.driver_block,
            "addition_nanoseconds": 1e9 * self.addition,
        }


def fitted(
    *,
    one: tuple[int, float],
    one_block: float,
    blocks: tuple[int, float],
    many: tuple[int, float],
    addition: float = 0.0,
) -> ClusterCosts:
    """Return the costs that explain four rounds.

    Args:
        one: How many clients were trained on one worker in blocks of one, and how long the round took.
        one_block: The driver's processor time for a round of tiny clients in one block.
        blocks: How many such clients in blocks of one, and the driver's processor time for the round.
        many: The same of many more of them, in as many blocks.
        addition: Adding one number of a sum, as measured by itself.
    """
    driver_client = max(0.0, many[1] - blocks[1]) / (many[0] - blocks[0])
    driver_block = max(0.0, blocks[1] - one_block) / (blocks[0] - 1)
    driver = max(0.0, one_block - blocks[0] * driver_client - driver_block)
    client = (one[1] - driver) / one[0] - driver_client
    return ClusterCosts(
        client=client, driver=driver, driver_client=driver_client, driver_block=driver_block, addition=addition
    )


def addition_seconds(numbers: int = 1 << 22) -> float:
    """Return the processor time of adding one number of a sum of updates to another, in vectors beyond the cache."""
    total, part = np.ones(numbers), np.ones(numbers)
    taken = []
    for _ in range(5):
        began = time.process_time()
        total += part
        taken.append(time.process_time() - began)
    return min(taken) / numbers
