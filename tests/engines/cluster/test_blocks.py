"""Blocks of a worker, in memory and in a file, are the same numbers."""

from __future__ import annotations

import torch

from hush.engines.cluster.blocks import Blocks


def test_what_exceeds_memory_is_read_from_a_file() -> None:
    blocks = Blocks(most=10)
    given = {number: torch.full((2, 3), float(number)) for number in (4, 1, 7)}
    for number, block in given.items():
        blocks.keep(number, block)
    assert all(torch.equal(blocks[number], block) for number, block in given.items())
    # Only the first is the tensor itself: six numbers, and six more would be more than ten.
    assert [blocks[number].data_ptr() == block.data_ptr() for number, block in given.items()] == [True, False, False]
    blocks.clear()


def test_a_block_that_is_trained_again_takes_the_place_of_the_first() -> None:
    blocks = Blocks(most=6)
    for number in (0, 1):
        blocks.keep(number, torch.zeros(2, 3))
    for number in (0, 1):
        blocks.keep(number, torch.ones(2, 3))
    assert float(blocks[0].sum()) == float(blocks[1].sum()) == 6.0
    blocks.clear()
    blocks.keep(1, torch.full((2, 3), 2.0))
    assert float(blocks[1].sum()) == 12.0  # in memory again
