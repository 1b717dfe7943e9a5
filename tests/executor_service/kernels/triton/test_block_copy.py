from __future__ import annotations

import random
from functools import partial

import pytest
import torch

from executor_service.kernels import reference
from executor_service.kernels.block_copy import copy_blocks, waves
from executor_service.kernels.transfers import upload_now

PAIRS = {
    "apart": [(0, 5), (1, 6), (2, 7)],
    "a chain": [(0, 1), (1, 2), (2, 3)],
    "a swap through a third": [(0, 7), (1, 0), (7, 1)],
    "one block twice": [(0, 4), (1, 4)],
    "none": [],
}


@pytest.mark.parametrize("name", PAIRS)
def test_copies_as_if_one_after_the_other(name: str, device: torch.device) -> None:
    sources, destinations = torch.tensor(PAIRS[name], dtype=torch.int64).view(-1, 2).unbind(1)
    # More than one program's elements to a block, and not a multiple of them.
    pool = torch.randn(2, 2, 8, 16, 3, 80)
    found = pool.to(device, copy=True)
    copy_blocks(found, sources, destinations, partial(upload_now, device=device))
    reference.copy_blocks(pool, sources, destinations)
    assert torch.equal(found.cpu(), pool)


def test_pairs_of_a_wave_may_be_done_in_any_order() -> None:
    choose = random.Random(3)
    for _ in range(300):
        pairs = [(choose.randrange(6), choose.randrange(6)) for _ in range(choose.randrange(7))]
        expected, found = list(range(6)), list(range(6))
        for source, destination in pairs:
            expected[destination] = expected[source]
        cut = list(waves([s for s, _ in pairs], [d for _, d in pairs]))
        assert [pair for wave in cut for pair in wave] == pairs
        for wave in cut:
            choose.shuffle(wave)
            for source, destination in wave:
                found[destination] = found[source]
        assert found == expected, pairs
