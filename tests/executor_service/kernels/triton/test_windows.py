"""Sliding windows and soft caps in attention of prompts and of decodes."""

from __future__ import annotations

import pytest
import torch

from tests.support.cuda_backends import TOLERANCES, make_backend
from tests.support.paged import LAYER, make_case, make_layout

CHUNKS = [(20, 1), (0, 20), (90, 1), (75, 9), (3, 1)]
HEADS = {"num_heads": 3, "num_kv_heads": 1, "head_dim": 64}


@pytest.mark.parametrize(("window", "soft_cap"), [(1, None), (40, None), (None, 1.5), (64, 0.7)])
def test_windows_and_caps_equal_the_reference(
    window: int | None, soft_cap: float | None, device: torch.device, dtype: torch.dtype
) -> None:
    backend = make_backend(device, dtype, window=window, soft_cap=soft_cap, **HEADS)
    case = make_case(backend, CHUNKS, block_size=16, seed=1, **HEADS)
    found = case.run(backend)
    assert found.isfinite().all()
    expected = case.expected(window=window, soft_cap=soft_cap)
    assert (found.double().cpu() - expected).abs().max() < TOLERANCES[dtype]


def test_a_window_over_several_splits_merges_those_it_touches(device: torch.device) -> None:
    """Splits of 256 slots: behind the window, cut by its edge, whole, and the last."""
    backend = make_backend(device, torch.float32, window=300, **HEADS)
    case = make_case(backend, [(560, 1), (299, 1)], block_size=16, seed=2, **HEADS)
    found = case.run(backend)
    assert (found.double().cpu() - case.expected(window=300)).abs().max() < 4e-6
    # What lies before the window is not read: it may be gone.
    gone = case.layout.block_tables[0, : (560 - 300 - 32) // 16].long()
    backend.fill_blocks(case.kv, gone, float("nan"))
    again = backend.attention(
        case.q, case.kv, LAYER, case.scale, backend.begin_step(case.layout, case.kv)
    )
    assert torch.equal(again, found)


def test_cutting_a_prompt_changes_no_bit_of_a_window(device: torch.device) -> None:
    backend = make_backend(device, torch.float32, window=33, **HEADS)
    case = make_case(backend, [(0, 90)], block_size=16, seed=3, **HEADS)
    whole = case.run(backend)
    pieces = []
    for start, length in [(0, 47), (47, 2), (49, 41)]:
        layout = make_layout([(start, length)], case.layout.block_tables, 16)
        step = backend.begin_step(layout, case.kv)
        q = case.q[start : start + length]
        pieces.append(backend.attention(q, case.kv, LAYER, case.scale, step))
    found = torch.cat(pieces)
    if device.type == "cuda":
        assert torch.equal(found, whole)
    # The interpreter's products sum in another order where a row stands elsewhere in its tile.
    assert torch.allclose(found, whole, rtol=0, atol=1e-6)
