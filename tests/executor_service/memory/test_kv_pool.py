from __future__ import annotations

import torch

from executor_service.kernels.backend import KVShape
from executor_service.kernels.cpu import CpuBackend
from executor_service.memory.kv_pool import KVPool

SHAPE = KVShape(num_layers=3, num_blocks=5, block_size=4, num_kv_heads=2, head_dim=8)


def test_the_pool_has_the_logical_shape_and_states_its_bytes() -> None:
    pool = KVPool(CpuBackend(), SHAPE)
    assert pool.read(range(5)).shape == (3, 2, 5, 4, 2, 8)
    per_block = 3 * 2 * 4 * 2 * 8 * 4
    assert 5 * per_block <= pool.num_bytes <= 6 * per_block


def test_copies_carry_keys_and_values_of_every_layer() -> None:
    backend = CpuBackend()
    pool = KVPool(backend, SHAPE)
    pool.storage.copy_(torch.randn(pool.storage.shape))
    before = pool.read(range(5))
    pool.copy([0, 3], [4, 1])
    after = pool.read(range(5))
    assert torch.equal(after[:, :, [4, 1]], before[:, :, [0, 3]])
    assert torch.equal(after[:, :, [0, 2, 3]], before[:, :, [0, 2, 3]])


def test_poison_spoils_the_named_blocks_alone() -> None:
    pool = KVPool(CpuBackend(), SHAPE)
    pool.poison([1, 2])
    blocks = pool.read(range(5))
    assert blocks[:, :, [1, 2]].isnan().all()
    assert not blocks[:, :, [0, 3, 4]].isnan().any()


def test_no_copies_and_no_poison_are_fine() -> None:
    pool = KVPool(CpuBackend(), SHAPE)
    pool.copy([], [])
    pool.poison([])
    assert not pool.read(range(5)).any()
