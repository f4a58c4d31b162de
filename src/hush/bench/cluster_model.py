"""A model of how long a round takes on a cluster: what the driver does alone, what workers share, and the network.

    seconds = driver + clients x driver_client + max(blocks x driver_block, training) + sums
    training = turns x block x client, sums = levels x fan-in x parameters x (addition + transfer)

`driver` is what a round costs the driver whatever its size; `driver_client` charging, inviting, checking and recording
a client; `driver_block` sending a block and hearing of it; `client` the training of a client on one worker. A block
occupies one worker, so that the last turn of all workers may be half empty. Sums of updates are added up in a tree.
Everything is measured but the network, which one machine does not have: `transfer` is an assumption.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

BLOCKS, LARGEST, FAN_IN = 64, 64, 8  # as in hush.engines.cluster.rounds
_TRANSFER = 8 / 1.25e9  # seconds for a number of float64 at 10 Gbit/s
_ADDITION = 8e-10  # seconds for adding one, as measured by `hush bench --suite server` for sums read from memory
_PARAMETERS = 28_938


@dataclass(frozen=True, kw_only=True)
class ClusterCosts:
    """What parts of a round cost, in seconds.

    Attributes:
        client: Training a client on one worker.
        driver: What a round costs the driver, whatever its size.
        driver_client: What a client costs the driver.
        driver_block: What a block costs the driver.
    """

    client: float
    driver: float
    driver_client: float
    driver_block: float

    def figures(self) -> dict[str, float]:
        """Return the constants by name."""
        return {
            "client_seconds": self.client,
            "driver_milliseconds": 1e3 * self.driver,
            "driver_client_milliseconds": 1e3 * self.driver_client,
            "driver_block_milliseconds": 1e3 * self.driver_block,
        }

    def round_seconds(self, *, clients: int, workers: int, parameters: int = _PARAMETERS) -> float:
        """Return how long a round takes."""
        block = min(math.ceil(clients / BLOCKS), LARGEST)
        blocks = math.ceil(clients / block)
        training = math.ceil(blocks / workers) * block * self.client
        levels = math.ceil(math.log(max(2, min(workers, blocks)), FAN_IN))
        sums = levels * FAN_IN * parameters * (_ADDITION + (_TRANSFER if workers > 2 else 0.0))
        return self.driver + clients * self.driver_client + max(blocks * self.driver_block, training) + sums


def fitted(
    *, one: tuple[int, float], one_block: float, blocks: tuple[int, float], many: tuple[int, float]
) -> ClusterCosts:
    """Return the costs that explain four rounds.

    Args:
        one: How many clients were trained on one worker in blocks of one, and how long the round took.
        one_block: The driver's processor time for a round of tiny clients in one block.
        blocks: How many such clients in blocks of one, and the driver's processor time for the round.
        many: The same of many more of them, in as many blocks.
    """
    driver_client = max(0.0, many[1] - blocks[1]) / (many[0] - blocks[0])
    driver_block = max(0.0, blocks[1] - one_block) / (blocks[0] - 1)
    driver = max(0.0, one_block - blocks[0] * driver_client - driver_block)
    client = (one[1] - driver) / one[0] - driver_client
    return ClusterCosts(client=client, driver=driver, driver_client=driver_client, driver_block=driver_block)
