"""Which kernels and which pool a CPU runner gets."""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import Any

import pytest

from common.plan import SamplingParams
from executor_service.runner.model_runner import ModelRunner
from tests.support.native_library import native_library
from tests.support.tiny_llama import VOCAB_SIZE, save_tiny, tiny_model
from tests.support.tiny_runner import generate, tiny_runner


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tiny_model("qwen3"), tmp_path_factory.mktemp("tiny-model"))


def outputs(runner: ModelRunner, *, chunk: int = 512) -> list[list[int]]:
    rng = random.Random(1)
    prompts = [rng.choices(range(VOCAB_SIZE), k=length) for length in (40, 3, 130, 17)]
    rules = [SamplingParams(temperature=0.0)] * 2 + [
        SamplingParams(top_k=20, top_p=0.9, seed=4)
    ] * 2
    return generate(runner, list(zip(prompts, rules, strict=True)), 12, chunk=chunk)


def test_without_native_kernels_torch_serves_the_same_and_says_so_once(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    native_library()
    expected = outputs(tiny_runner(directory))
    monkeypatch.setenv("OCTAVO_NATIVE", "0")
    with caplog.at_level(logging.WARNING):
        runner = tiny_runner(directory)
        assert outputs(runner) == expected
    (warning,) = caplog.records
    assert "no native kernels" in warning.message
    assert "slower" in warning.message
    assert runner.spec.kv_cache_dtype == "float32"


@pytest.mark.parametrize("sources", [{}, {"a.c": "int a(void) { return 1; }"}], ids=["no", "other"])
def test_sources_that_make_no_kernels_leave_torch_to_serve(
    directory: Path,
    sources: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    native_library()
    for name, text in sources.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr("executor_service.kernels.native.build.SOURCES", tmp_path)
    monkeypatch.setenv("OCTAVO_CACHE_DIR", str(tmp_path / "cache"))
    with caplog.at_level(logging.WARNING):
        assert outputs(tiny_runner(directory))
    (warning,) = caplog.records
    assert "no native kernels" in warning.message


@pytest.mark.parametrize(
    ("flags", "dtype", "bytes_per_token"),
    [
        ({"dtype": "float32"}, "float32", 2 * 2 * 2 * 16 * 4),
        ({"quantization": "int8"}, "bfloat16", 2 * 2 * 2 * 16 * 2),
        ({"quantization": "int8", "kv_cache_dtype": "float32"}, "float32", 2 * 2 * 2 * 16 * 4),
        ({"kv_cache_dtype": "int8"}, "int8", 2 * 2 * 2 * (16 + 4)),
    ],
)
def test_the_pools_dtype_follows_the_weights_unless_told(
    directory: Path, flags: dict[str, Any], dtype: str, bytes_per_token: int
) -> None:
    native_library()
    spec = tiny_runner(directory, **flags).spec
    assert spec.kv_cache_dtype == dtype
    assert spec.kv_bytes_per_token == bytes_per_token
    assert spec.kv_bytes == spec.num_blocks * spec.block_size * bytes_per_token


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8"])
def test_outputs_do_not_depend_on_chunks_or_threads(directory: Path, dtype: str) -> None:
    native_library()
    runners = [tiny_runner(directory, kv_cache_dtype=dtype, threads=count) for count in (1, 3)]
    expected = outputs(runners[0])
    assert outputs(runners[0], chunk=7) == expected
    assert outputs(runners[1], chunk=16) == expected
