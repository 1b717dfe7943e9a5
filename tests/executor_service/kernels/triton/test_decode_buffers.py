"""Steps in fixed memory give the bits of steps built anew, whatever fills their other rows."""

from __future__ import annotations

import torch

from executor_service.kernels.backend import StepLayout
from tests.support.cuda_backends import make_backend
from tests.support.paged import LAYER, make_case, write


def test_a_filled_step_equals_one_begun(device: torch.device) -> None:
    backend = make_backend(device, torch.float32, num_kv_heads=1, max_context=640)
    contexts = [(260, 1), (17, 1), (0, 1)]
    case = make_case(
        backend, contexts, num_heads=4, num_kv_heads=1, head_dim=64, block_size=16, seed=1
    )
    expected = case.run(backend)
    buffers = backend.decode_buffers(5, case.kv)
    buffers.fill(case.layout)
    q, k, v = (torch.cat((x, x[:2])) for x in (case.q, case.k, case.v))
    assert len(buffers.step.slots) == 5
    blocks = torch.arange(case.pool.shape[2])
    before = backend.read_blocks(case.kv, blocks)
    write(backend, case.kv, LAYER, k, v, buffers.step)
    found = backend.attention(q, case.kv, LAYER, case.scale, buffers.step)
    assert torch.equal(found[:3], expected)
    assert found.isfinite().all(), "rows that only fill up must not read what nobody wrote"
    after = backend.read_blocks(case.kv, blocks)
    assert torch.allclose(before, after, rtol=0, atol=0, equal_nan=True)


def test_a_second_step_leaves_nothing_of_the_first(device: torch.device) -> None:
    backend = make_backend(device, torch.float32, max_context=640)
    case = make_case(
        backend,
        [(300, 1), (17, 1)],
        num_heads=4,
        num_kv_heads=2,
        head_dim=64,
        block_size=16,
        seed=2,
    )
    buffers = backend.decode_buffers(3, case.kv)
    fresh = backend.decode_buffers(3, case.kv)
    addresses = [tensor.data_ptr() for tensor in (buffers.step.slots, buffers.step.chunks.tables)]
    buffers.fill(case.layout)
    short = StepLayout(
        starts=case.layout.starts[1:],
        lengths=case.layout.lengths[1:],
        block_tables=case.layout.block_tables[1:, :2].contiguous(),
        slot_mapping=case.layout.slot_mapping[1:],
    )
    buffers.fill(short)
    fresh.fill(short)
    assert torch.equal(buffers.step.slots, fresh.step.slots)
    for name in ("first_rows", "starts", "lengths", "tables"):
        found, wanted = (getattr(b.step.chunks, name) for b in (buffers, fresh))
        assert torch.equal(found, wanted), name
    moved = [tensor.data_ptr() for tensor in (buffers.step.slots, buffers.step.chunks.tables)]
    assert moved == addresses
