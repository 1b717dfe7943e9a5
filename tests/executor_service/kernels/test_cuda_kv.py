"""The GPU's pool as tensors; no kernel runs here."""

from __future__ import annotations

import pytest
import torch

from common.kv_size import block_bytes, kv_element_bytes
from executor_service.kernels import cuda_kv
from executor_service.kernels.backend import KVShape
from executor_service.kernels.kv_kind import KVKind

CPU = torch.device("cpu")


def shape_of(head_dim: int) -> KVShape:
    return KVShape(num_layers=3, num_blocks=4, block_size=16, num_kv_heads=2, head_dim=head_dim)


@pytest.mark.parametrize("head_dim", [16, 64, 80, 128])
@pytest.mark.parametrize("kind", list(KVKind))
def test_a_pool_takes_the_bytes_that_sizing_counts(kind: KVKind, head_dim: int) -> None:
    """And one block more, which belongs to nobody."""
    per_block = block_bytes(
        block_size=16,
        num_layers=3,
        num_kv_heads=2,
        head_dim=head_dim,
        element_bytes=kv_element_bytes(kind.value, head_dim),
    )
    kv = cuda_kv.allocate(shape_of(head_dim), kind, CPU)
    assert kv.nbytes == 5 * per_block


@pytest.mark.parametrize("kind", list(KVKind))
def test_filled_blocks_read_as_their_value_and_others_stay(kind: KVKind) -> None:
    kv = cuda_kv.allocate(shape_of(64), kind, CPU)
    cuda_kv.fill_blocks(kv, torch.tensor([1]), 2.0)
    cuda_kv.fill_blocks(kv, torch.tensor([2]), float("nan"))
    found = cuda_kv.read_blocks(kv, torch.arange(4))
    assert found.shape == (3, 2, 4, 16, 2, 64)
    assert torch.allclose(found[:, :, 1].float(), torch.tensor(2.0))
    assert found[:, :, 2].isnan().all()
    assert not found[:, :, [0, 3]].any()
