from __future__ import annotations

import pytest

from common.kv_size import (
    A100,
    GIB,
    KIB,
    KV_CACHE_DTYPES,
    MIB,
    block_bytes,
    blocks_of,
    compute_seconds,
    kv_bytes_per_token,
    kv_element_bytes,
    larger_size_text,
    num_blocks_that_fit,
    num_sequences_that_fit,
    num_tokens_that_fit,
    read_seconds,
    size_text,
    step_seconds,
)

SOURCE_MODEL = {"num_layers": 32, "num_kv_heads": 8, "head_dim": 128, "element_bytes": 2}


def test_decode_of_a_7b_model_is_bound_by_bandwidth() -> None:
    compute = compute_seconds(num_parameters=7e9, num_tokens=1, device=A100)
    read = read_seconds(num_bytes=14e9, device=A100)
    assert compute * 1e3 == pytest.approx(0.045, abs=0.0005)
    assert read * 1e3 == pytest.approx(7.0)
    assert pytest.approx(153, rel=0.02) == A100.ridge_point
    bound = step_seconds(
        num_parameters=7e9, weight_bytes=14e9, num_tokens=1, kv_bytes_read=0, device=A100
    )
    assert bound == read


def test_step_becomes_bound_by_compute_beyond_the_ridge_point() -> None:
    def bound(num_tokens: int) -> float:
        return step_seconds(
            num_parameters=7e9,
            weight_bytes=14e9,
            num_tokens=num_tokens,
            kv_bytes_read=0,
            device=A100,
        )

    assert bound(155) == bound(1)
    assert bound(157) > bound(1)


def test_kv_of_qwen2_7b() -> None:
    per_token = kv_bytes_per_token(num_layers=28, num_kv_heads=4, head_dim=128, element_bytes=2)
    assert per_token / KIB == 56.0
    assert per_token * 1e6 / GIB == pytest.approx(53.4, abs=0.05)


def test_kv_of_llama_13b_with_2048_tokens() -> None:
    per_token = kv_bytes_per_token(num_layers=40, num_kv_heads=40, head_dim=128, element_bytes=2)
    assert per_token * 2048 / GIB == pytest.approx(1.6, abs=0.05)


def test_kv_of_a_32_layer_model_with_1024_kv_elements_per_layer() -> None:
    assert kv_bytes_per_token(**SOURCE_MODEL) / MIB == 0.125


def test_80_gb_card_holds_480k_tokens_or_120_requests_of_4k() -> None:
    num_tokens = num_tokens_that_fit(60 * GIB, kv_bytes_per_token(**SOURCE_MODEL))
    assert num_tokens == pytest.approx(480_000, rel=0.03)
    assert num_sequences_that_fit(num_tokens, 4096) == 120


def test_blocks_round_up_for_tokens_and_down_for_memory() -> None:
    assert [blocks_of(n, 16) for n in (0, 1, 16, 17)] == [0, 1, 1, 2]
    block = block_bytes(block_size=16, **SOURCE_MODEL)
    assert block == 2 * MIB
    assert num_blocks_that_fit(5 * MIB, block) == 2
    assert num_blocks_that_fit(-1, block) == 0


def test_quantized_kv_halves_and_quarters_before_its_scales() -> None:
    full = kv_bytes_per_token(**SOURCE_MODEL)
    assert kv_bytes_per_token(**(SOURCE_MODEL | {"element_bytes": 1})) == full / 2
    assert kv_bytes_per_token(**(SOURCE_MODEL | {"element_bytes": 0.5})) == full / 4


@pytest.mark.parametrize(
    ("dtype", "head_dim", "element_bytes"),
    [
        ("float32", 80, 4),
        ("bfloat16", 64, 2),
        ("fp8", 128, 1),
        ("fp8_e4m3", 128, 1),
        ("int8", 128, 1 + 4 / 128),
        ("int8", 64, 1 + 4 / 64),
        ("int4", 128, 0.5 + 4 * 4 / 128),
        ("int4", 80, 0.5 + 3 * 4 / 80),
        ("int4", 16, 0.5 + 4 / 16),
    ],
)
def test_scales_count_with_what_they_scale(dtype: str, head_dim: int, element_bytes: float) -> None:
    assert kv_element_bytes(dtype, head_dim) == element_bytes
    assert dtype in KV_CACHE_DTYPES


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (KIB, "1.00 KiB"),
        (KIB - 0.3, "1.00 KiB"),
        (10 * KIB - 1, "10.0 KiB"),
        (MIB - 1, "1.00 MiB"),
        (10 * MIB - 1, "10.0 MiB"),
        (GIB - 1, "1.00 GiB"),
        (2000 * GIB, "2000.0 GiB"),
        (2.5 * MIB, "2.50 MiB"),
        (96.25 * MIB, "96.2 MiB"),
        (GIB - MIB, "1023.0 MiB"),
        (GIB, "1.00 GiB"),
        (80 * GIB, "80.0 GiB"),
    ],
)
def test_a_size_is_told_in_a_unit_that_fits(num_bytes: float, text: str) -> None:
    assert size_text(num_bytes) == text


def test_a_size_that_reads_like_its_limit_is_told_by_the_difference() -> None:
    assert larger_size_text(92 * MIB + 37, 92 * MIB) == "37 bytes more than 92.0 MiB"
    assert larger_size_text(93 * MIB, 92 * MIB) == "93.0 MiB"
    assert larger_size_text(92 * MIB, 92 * MIB) == "92.0 MiB"
