"""The specification itself, against what torch and arithmetic say."""

from __future__ import annotations

import pytest
import torch

from executor_service.kernels import reference
from executor_service.kernels.kv_kind import INT4_GROUP, KVKind

F = torch.nn.functional


def test_norm_is_torchs_rms_norm() -> None:
    x, weight = torch.randn(5, 96).double(), torch.randn(96).double()
    expected = F.rms_norm(x, (96,), weight, 1e-5)
    torch.testing.assert_close(reference.rms_norm(x, weight, 1e-5), expected)


def test_norm_after_adding_also_returns_the_sum() -> None:
    x, residual, weight = torch.randn(3, 8), torch.randn(3, 8), torch.randn(8)
    normed, total = reference.add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(total, x + residual)
    assert torch.equal(normed, reference.rms_norm(total, weight, 1e-6))


def test_rotary_keeps_lengths_and_depends_on_distance_alone() -> None:
    q, k = torch.randn(1, 1, 8).double(), torch.randn(1, 1, 8).double()
    frequencies = torch.tensor([1.0, 0.3, 0.1, 0.02]).double()

    def rotated(x: torch.Tensor, position: int) -> torch.Tensor:
        angles = (position * frequencies).unsqueeze(0)
        return reference.rotary(x, angles.cos(), angles.sin())

    torch.testing.assert_close(rotated(q, 7).norm(), q.norm())
    products = [(rotated(q, p + 4) * rotated(k, p)).sum() for p in (0, 5, 90)]
    torch.testing.assert_close(torch.stack(products), products[0].expand(3))


def test_attention_of_one_sequence_is_torchs_causal_attention() -> None:
    num_tokens, heads, kv_heads, head_dim, block_size = 11, 6, 2, 8, 4
    q = torch.randn(num_tokens, heads, head_dim).double()
    k, v = (torch.randn(num_tokens, kv_heads, head_dim).double() for _ in range(2))
    pool = torch.full((1, 2, 5, block_size, kv_heads, head_dim), float("nan")).double()
    table = torch.tensor([[3, 0, 4]])
    slots = table[0].repeat_interleave(block_size)[:num_tokens] * block_size
    reference.write_kv(pool, 0, k, v, slots + torch.arange(num_tokens) % block_size)
    found = reference.attention(
        q, pool, 0, 0.3, torch.tensor([0]), torch.tensor([num_tokens]), table
    )
    expected = F.scaled_dot_product_attention(
        q.transpose(0, 1),
        k.transpose(0, 1),
        v.transpose(0, 1),
        is_causal=True,
        scale=0.3,
        enable_gqa=True,
    ).transpose(0, 1)
    torch.testing.assert_close(found, expected)


def test_a_window_sees_so_many_slots_and_no_others() -> None:
    q = torch.randn(1, 2, 8).double()
    k, v = (torch.randn(9, 2, 8).double() for _ in range(2))
    pool = torch.zeros(1, 2, 1, 16, 2, 8).double()
    reference.write_kv(pool, 0, k, v, torch.arange(9))
    starts, lengths, table = torch.tensor([8]), torch.tensor([1]), torch.tensor([[0]])
    found = reference.attention(q, pool, 0, 0.3, starts, lengths, table, window=3)
    short = torch.zeros_like(pool)
    reference.write_kv(short, 0, k[6:], v[6:], torch.arange(3))
    expected = reference.attention(q, short, 0, 0.3, torch.tensor([2]), lengths, table)
    torch.testing.assert_close(found, expected)


def test_a_soft_cap_bends_scores_that_are_large_and_leaves_small_ones() -> None:
    q, k, v = torch.tensor([[[1.0]]]), torch.tensor([[[0.01]], [[90.0]]]), torch.rand(2, 1, 1)
    pool = torch.zeros(1, 2, 1, 16, 1, 1)
    reference.write_kv(pool, 0, k, v, torch.arange(2))
    starts, lengths, table = torch.tensor([1]), torch.tensor([1]), torch.tensor([[0]])
    found = reference.attention(q, pool, 0, 1.0, starts, lengths, table, soft_cap=2.0)
    weights = torch.tensor([0.01, 2.0]).softmax(0)
    torch.testing.assert_close(found.flatten(), (weights @ v.flatten()).view(1), rtol=1e-4, atol=0)


def test_block_copies_run_one_after_the_other() -> None:
    pool = torch.arange(4.0).view(1, 1, 4, 1, 1, 1).repeat(2, 2, 1, 1, 1, 1)
    reference.copy_blocks(pool, torch.tensor([0, 1]), torch.tensor([1, 3]))
    assert pool[1, 1].flatten().tolist() == [0, 0, 2, 0]


QUANTIZED = [KVKind.FP8_E4M3, KVKind.INT8, KVKind.INT4]


@pytest.mark.parametrize("head_dim", [16, 64, 80])
@pytest.mark.parametrize("kind", QUANTIZED)
def test_a_pool_keeps_values_to_within_half_a_step(kind: KVKind, head_dim: int) -> None:
    x = torch.randn(200, 3, head_dim) * torch.logspace(-2, 1, 200)[:, None, None]
    error = (reference.kept_kv(x, kind) - x).abs()
    if kind is KVKind.FP8_E4M3:
        half_steps = torch.maximum(x.abs() * 2.0**-4, torch.tensor(2.0**-10))
    elif kind is KVKind.INT8:
        half_steps = x.abs().amax(-1, keepdim=True) / 254
    else:
        spread = [g.amax(-1, True) - g.amin(-1, True) for g in x.split(INT4_GROUP, dim=-1)]
        half_steps = torch.cat(
            [s.expand_as(g) for s, g in zip(spread, x.split(INT4_GROUP, dim=-1), strict=True)], -1
        )
        half_steps = half_steps / 30 + x.abs().amax(-1, keepdim=True) * 2.0**-10
    assert (error <= half_steps * 1.001).all()


@pytest.mark.parametrize("kind", list(KVKind))
def test_a_pool_keeps_zeros_and_what_it_has_kept(kind: KVKind) -> None:
    x = torch.randn(5, 64)
    assert not reference.kept_kv(torch.zeros(5, 64), kind).any()
    kept = reference.kept_kv(x, kind)
    torch.testing.assert_close(reference.kept_kv(kept, kind), kept, rtol=2e-3, atol=2e-3)


def test_fp8_stops_at_its_largest_and_no_kind_hides_what_is_not_a_number() -> None:
    x = torch.tensor([1e6, -1e6, 448.0, 500.0])
    assert reference.kept_kv(x, KVKind.FP8_E4M3).tolist() == [448, -448, 448, 448]
    x = torch.ones(2, 64)
    x[0, 5] = torch.nan
    for kind in KVKind:
        kept = reference.kept_kv(x, kind)
        assert kept[0, 5].isnan(), kind
        assert kept[1].isfinite().all(), kind
