"""The figures that the project's documents start from."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from common.errors import ConfigError
from common.kv_size import GIB, KIB, MIB
from executor_service.config import ExecutorConfig
from executor_service.memory.sizing import available_memory
from executor_service.runner.load import load_runner
from octavo.sizing.config import SizeConfig
from octavo.sizing.estimate import SizeEstimate, estimate
from octavo.sizing.model_shape import shape_of
from tests.support.tiny_llama import save_tiny, tiny_model

SEVEN_B = SizeConfig(layers=32, kv_heads=8, head_dim=128, params=7e9, dtype="float16")


def size(**flags: object) -> SizeEstimate:
    config = dataclasses.replace(SEVEN_B, **flags)  # type: ignore[arg-type]
    return estimate(shape_of(config), config)


def test_decode_of_7b_on_an_a100_reads_for_7_ms_and_computes_for_0045() -> None:
    found = size()
    assert found.compute_s * 1e3 == pytest.approx(0.045, abs=5e-4)
    assert found.read_s * 1e3 == pytest.approx(7.0)
    assert found.device.ridge_point == pytest.approx(153, rel=0.02)


def test_80_gib_hold_480k_tokens_beside_7b_and_120_requests_of_4k() -> None:
    found = size(length=4000)
    assert found.kv_bytes_per_token == 0.125 * MIB
    assert found.kv_bytes / GIB == pytest.approx(59, abs=0.5)
    assert found.num_tokens == pytest.approx(480_000, rel=0.01)
    assert found.num_requests == 120


def test_qwen2_7b_takes_56_kib_a_token() -> None:
    found = size(layers=28, kv_heads=4, head_dim=128, params=7.6e9, dtype="bfloat16")
    assert found.kv_bytes_per_token == 56 * KIB
    assert found.kv_bytes_per_token * 1e6 / GIB == pytest.approx(53.4, abs=0.05)


def test_llama_13b_takes_1600_mb_for_2048_tokens() -> None:
    found = size(layers=40, kv_heads=40, head_dim=128, params=13e9)
    assert found.kv_bytes_per_token * 2048 / GIB == pytest.approx(1.6, abs=0.05)


@pytest.mark.parametrize(
    ("dtype", "factor"), [("int8", 2 * 128 / 132), ("fp8", 2), ("fp8_e4m3", 2), ("int4", 3.2)]
)
def test_smaller_kv_holds_as_many_more_tokens(dtype: str, factor: int) -> None:
    assert size(kv_cache_dtype=dtype).num_tokens == pytest.approx(
        size().num_tokens * factor, rel=1e-4
    )


def test_flags_of_the_device_win_over_its_name() -> None:
    found = size(memory_bytes=40 * GIB, flops=1e12, bandwidth=1e11)
    assert found.memory_bytes == 40 * GIB
    assert found.device.ridge_point == 10
    assert found.read_s * 1e3 == pytest.approx(140)


def test_of_a_cpu_the_memory_is_known_and_the_speed_is_not() -> None:
    found = size(dtype="float32", device="cpu", params=1e6, length=64)
    assert found.memory_bytes == pytest.approx(available_memory(), rel=0.2)
    assert found.num_requests > 0
    assert (found.device, found.read_s) == (None, 0.0)
    told = size(dtype="float32", device="cpu", params=1e6, flops=1e11, bandwidth=1e10)
    assert told.read_s == pytest.approx(4e6 / 1e10)
    with pytest.raises(ConfigError, match="--bandwidth"):
        size(dtype="float32", device="cpu", flops=1e11)


def test_on_a_cpu_the_pool_is_what_up_takes_by_itself() -> None:
    flags = {"dtype": "float32", "device": "cpu", "params": 1 * GIB / 4}
    large, small = size(**flags, memory_bytes=64 * GIB), size(**flags, memory_bytes=3 * GIB)
    assert (large.room_bytes, large.kv_bytes) == (63 * GIB, 4 * GIB)
    assert (small.room_bytes, small.kv_bytes) == (2 * GIB, GIB)
    assert small.num_tokens == GIB // small.kv_bytes_per_token
    with pytest.raises(ConfigError, match=r"1\.00 GiB, .* no KV cache in 1\.00 GiB \(--memory\)"):
        size(**flags, memory_bytes=GIB)
    with pytest.raises(ConfigError, match=r"take 37 bytes more than 1\.00 GiB"):
        size(**flags, memory_bytes=GIB - 37)


def test_a_block_that_does_not_fit_names_no_flag_that_size_lacks() -> None:
    with pytest.raises(ConfigError, match=r"^free memory is too small: one KV block takes"):
        size(dtype="float32", device="cpu", params=1e6, memory_bytes=4 * MIB)


def test_on_a_cpu_the_pool_is_the_very_one_of_an_executor(tmp_path: Path) -> None:
    path = save_tiny(tiny_model("llama"), tmp_path)
    config = SizeConfig(model=str(path), device="cpu")
    found = estimate(shape_of(config), config)
    runner = load_runner(ExecutorConfig(model=str(path), threads=1), lambda *progress: None)
    assert found.num_blocks == runner.spec.num_blocks == 256 * 512 // 16
    assert found.kv_bytes == runner.pool.num_bytes


def test_a_request_takes_whole_blocks() -> None:
    assert size(length=17).num_requests == size(length=32).num_requests
    assert size(length=33).num_requests < size(length=32).num_requests


def test_a_full_step_reads_weights_and_all_kv() -> None:
    found = size(length=4000)
    read_bytes = 14e9 + 120 * 4000 * 0.125 * MIB
    assert found.full_step_s == pytest.approx(read_bytes / 2e12)


def test_weights_without_room_are_refused_by_the_flags_that_help() -> None:
    with pytest.raises(ConfigError, match="--memory"):
        size(memory_bytes=14 * GIB)
    assert size(memory_bytes=15 * GIB, length=100_000).num_requests == 0


@pytest.mark.parametrize("flag", ["layers", "params", "bandwidth", "length", "block_size"])
def test_a_size_is_above_zero(flag: str) -> None:
    with pytest.raises(ConfigError, match=flag.replace("_", "-")):
        size(**{flag: 0})
