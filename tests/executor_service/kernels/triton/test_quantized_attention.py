"""Attention over pools of every kind equals the reference over what such a pool keeps."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from executor_service.kernels.kv_kind import KVKind
from executor_service.kernels.launch_config import AMPERE, HOPPER
from executor_service.kernels.reference import kept_kv
from tests.support.cuda_backends import TOLERANCES, make_backend
from tests.support.paged import LAYER, make_case, make_layout

CHUNKS = [(20, 1), (0, 9), (70, 1), (40, 3)]
QUANTIZED = [KVKind.FP8_E4M3, KVKind.INT8, KVKind.INT4]


@pytest.mark.parametrize("head_dim", [64, 80])
@pytest.mark.parametrize("kind", QUANTIZED)
def test_equals_the_reference(
    kind: KVKind, head_dim: int, device: torch.device, dtype: torch.dtype
) -> None:
    """Blocks that no table names, and slots behind an end, are NaN."""
    backend = make_backend(
        device, dtype, num_heads=3, num_kv_heads=1, head_dim=head_dim, kv_kind=kind
    )
    case = make_case(
        backend, CHUNKS, num_heads=3, num_kv_heads=1, head_dim=head_dim, block_size=16, seed=1
    )
    found = case.run(backend)
    assert found.isfinite().all(), "a slot that belongs to nobody was read, or a row left out"
    expected = case.expected(partial(kept_kv, kind=kind))
    assert (found.double().cpu() - expected).abs().max() < TOLERANCES[dtype]


@pytest.mark.parametrize(
    ("kind", "head_dim"), [*((kind, 128) for kind in QUANTIZED), (KVKind.INT4, 256)]
)
def test_wide_heads_equal_the_reference(kind: KVKind, head_dim: int, device: torch.device) -> None:
    heads = {"num_heads": 2, "num_kv_heads": 1, "head_dim": head_dim}
    backend = make_backend(device, torch.float32, kv_kind=kind, **heads)
    case = make_case(backend, [(17, 1), (3, 6)], block_size=16, seed=7, **heads)
    found = case.run(backend)
    assert found.isfinite().all()
    expected = case.expected(partial(kept_kv, kind=kind))
    assert (found.double().cpu() - expected).abs().max() < TOLERANCES[torch.float32]


@pytest.mark.parametrize(
    ("kind", "window", "soft_cap"),
    [(KVKind.INT8, 20, None), (KVKind.INT4, 20, None), (KVKind.INT8, None, 1.5)],
)
def test_windows_and_caps_over_quantized_pools_equal_the_reference(
    kind: KVKind, window: int | None, soft_cap: float | None, device: torch.device
) -> None:
    heads = {"num_heads": 2, "num_kv_heads": 1, "head_dim": 64}
    backend = make_backend(
        device, torch.float32, kv_kind=kind, window=window, soft_cap=soft_cap, **heads
    )
    case = make_case(backend, [(50, 1), (30, 9), (5, 1)], block_size=16, seed=8, **heads)
    found = case.run(backend)
    assert found.isfinite().all()
    kept = partial(kept_kv, kind=kind)
    expected = case.expected(kept, window=window, soft_cap=soft_cap)
    assert (found.double().cpu() - expected).abs().max() < TOLERANCES[torch.float32]


@pytest.mark.parametrize("kind", [KVKind.BFLOAT16, KVKind.FLOAT16, *QUANTIZED])
def test_bfloat16_attends_over_every_kind(kind: KVKind, device: torch.device) -> None:
    backend = make_backend(device, torch.bfloat16, num_heads=4, num_kv_heads=2, kv_kind=kind)
    case = make_case(
        backend, [(20, 1), (0, 9)], num_heads=4, num_kv_heads=2, head_dim=64, block_size=16, seed=6
    )
    expected = case.expected(partial(kept_kv, kind=kind))
    found = case.run(backend).double().cpu()
    assert (found - expected).abs().max() < TOLERANCES[torch.bfloat16]


@pytest.mark.parametrize("kind", QUANTIZED)
def test_contexts_of_several_splits_and_few_dimensions(kind: KVKind, device: torch.device) -> None:
    backend = make_backend(
        device, torch.float32, num_heads=2, num_kv_heads=1, head_dim=16, kv_kind=kind
    )
    case = make_case(
        backend, [(300, 1)], num_heads=2, num_kv_heads=1, head_dim=16, block_size=16, seed=2
    )
    expected = case.expected(partial(kept_kv, kind=kind))
    assert (case.run(backend).double().cpu() - expected).abs().max() < 4e-6


@pytest.mark.parametrize("arch", [AMPERE, HOPPER])
def test_fp8_is_read_alike_with_and_without_the_chips_conversion(
    arch: int, device: torch.device
) -> None:
    if device.type == "cuda" and arch != AMPERE and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this chip has no fp8")
    backends = [
        make_backend(device, torch.float16, kv_kind=KVKind.FP8_E4M3, arch=chosen)
        for chosen in (AMPERE, arch)
    ]
    case = make_case(
        backends[0],
        [(33, 1), (5, 4)],
        num_heads=4,
        num_kv_heads=2,
        head_dim=64,
        block_size=16,
        seed=3,
    )
    by_bits, by_chip = (case.run(backend) for backend in backends)
    assert (by_chip - by_bits).abs().max() < TOLERANCES[torch.float16]


def test_values_too_small_for_a_product_with_their_weights_count(device: torch.device) -> None:
    """In float16 a weight of 1/300 times a scale of 1e-6 is nothing; the value itself is not."""
    backend = make_backend(device, torch.float16, num_heads=1, num_kv_heads=1, kv_kind=KVKind.INT8)
    case = make_case(
        backend, [(0, 250)], num_heads=1, num_kv_heads=1, head_dim=64, block_size=16, seed=4
    )
    case.q.zero_()
    case.v.fill_(1e-4)
    found = case.run(backend)
    assert torch.allclose(found.float(), torch.full_like(found.float(), 1e-4), rtol=0.01)


@pytest.mark.parametrize("kind", [KVKind.INT8, KVKind.INT4])
def test_copied_blocks_carry_their_scales(kind: KVKind, device: torch.device) -> None:
    backend = make_backend(device, torch.float32, kv_kind=kind)
    case = make_case(
        backend, [(7, 9)], num_heads=4, num_kv_heads=2, head_dim=64, block_size=16, seed=5
    )
    expected = case.run(backend)
    own = int(case.layout.block_tables[0, 0])
    other = (own + 1) % 4
    backend.copy_blocks(case.kv, torch.tensor([own]), torch.tensor([other]))
    backend.fill_blocks(case.kv, torch.tensor([own]), float("nan"))
    layout = make_layout([(7, 9)], torch.tensor([[other]], dtype=torch.int32), 16)
    step = backend.begin_step(layout, case.kv)
    found = backend.attention(case.q, case.kv, LAYER, case.scale, step)
    assert torch.equal(found, expected)
