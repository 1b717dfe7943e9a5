from __future__ import annotations

import torch

from executor_service.kernels import reference
from executor_service.kernels.kv_write import write_kv


def test_writes_the_named_slots_and_no_others(device: torch.device, dtype: torch.dtype) -> None:
    num_blocks, block_size, num_heads, head_dim = 11, 16, 3, 80
    slots = torch.randperm(num_blocks * block_size)[:45]
    # Keys and values as views of one projection, so that rows are far apart.
    rows = torch.randn(45, 4 * num_heads, head_dim).to(dtype)
    k, v = rows[:, :num_heads], rows[:, 2 * num_heads : 3 * num_heads]
    pool = torch.full((1, 2, num_blocks, block_size, num_heads, head_dim), torch.nan, dtype=dtype)
    found = pool[0].transpose(2, 3).contiguous().to(device)
    write_kv(k.to(device), v.to(device), found[0], found[1], slots.to(device))
    reference.write_kv(pool, 0, k, v, slots)
    assert torch.allclose(found.transpose(2, 3).cpu(), pool[0], rtol=0, atol=0, equal_nan=True)


def test_converts_to_the_pools_dtype(device: torch.device) -> None:
    k = torch.randn(5, 2, 64)
    pools = torch.zeros(2, 1, 2, 16, 64, dtype=torch.float16, device=device)
    write_kv(k.to(device), -k.to(device), pools[0], pools[1], torch.arange(5, device=device))
    assert torch.equal(pools[0, 0, :, :5].cpu(), k.half().transpose(0, 1))
    assert torch.equal(pools[1, 0, :, :5].cpu(), -k.half().transpose(0, 1))
