from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType

from common.errors import ConfigError, ModelError
from executor_service.config import ExecutorConfig
from executor_service.runner.load import load_runner
from tests.support.tiny_gguf import write_gguf
from tests.support.tiny_llama import save_tiny, tiny_model
from tests.support.tiny_runner import tiny_runner


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tiny_model("llama"), tmp_path_factory.mktemp("tiny-model"))


def test_the_spec_states_what_was_built(directory: Path) -> None:
    runner = tiny_runner(directory, max_model_len=300, served_model_name="mine")
    spec = runner.spec
    assert spec.model_name == "mine"
    assert (spec.num_blocks, spec.block_size, spec.max_model_len) == (96, 16, 300)
    assert spec.kv_bytes_per_token == 2 * 2 * 2 * 16 * 4
    assert spec.kv_bytes == runner.pool.num_bytes
    parameters = tiny_model("llama").num_parameters()
    assert 0.95 * 4 * parameters < spec.weights_bytes < 1.05 * 4 * parameters
    assert (spec.dtype, spec.kv_cache_dtype, spec.device) == ("float32", "float32", "cpu")
    assert {"tokenizer.json", "config.json"} <= set(runner.model_files)


def test_serving_a_gguf_file_imports_neither_transformers_nor_gguf(tmp_path: Path) -> None:
    """Each takes seconds, of every start."""
    path = write_gguf(tiny_model("llama"), tmp_path / "m.gguf", kind=GGMLQuantizationType.Q4_1)
    program = f"""
import sys
from executor_service.config import ExecutorConfig
from executor_service.runner.load import load_runner
load_runner(ExecutorConfig(model={str(path)!r}, num_blocks=64, threads=1), lambda *_: None)
sys.exit(", ".join({{"transformers", "gguf", "triton"}} & set(sys.modules)) or None)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_without_flags_name_and_length_are_the_models(directory: Path) -> None:
    spec = tiny_runner(directory).spec
    assert spec.model_name == directory.name
    assert spec.max_model_len == 512
    assert tiny_runner(directory, num_blocks=None).spec.num_blocks == 32 * 32


def test_progress_ends_at_its_total(directory: Path) -> None:
    seen: list[tuple[int, int, str]] = []
    config = ExecutorConfig(model=str(directory), num_blocks=8, threads=1)
    load_runner(config, lambda *progress: seen.append(progress))
    for what in {what for _, _, what in seen}:
        steps = [(done, total) for done, total, name in seen if name == what]
        assert [done for done, _ in steps] == sorted(done for done, _ in steps)
        assert steps[-1][0] == steps[-1][1]


def test_a_gguf_and_its_directory_differ_in_fingerprint_alone(
    directory: Path, tmp_path: Path
) -> None:
    gguf = write_gguf(tiny_model("llama"), tmp_path / "tiny.gguf")
    first, second = tiny_runner(directory).spec, tiny_runner(gguf).spec
    assert second.model_name == "tiny"
    assert first.fingerprint != second.fingerprint
    assert first.vocab_size == second.vocab_size
    assert first.weights_bytes == second.weights_bytes


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"dtype": "bfloat16"}, "--dtype"),
        ({"kv_cache_dtype": "fp8"}, "--kv-cache-dtype"),
        ({"device": "cuda"}, "--device"),
        ({"max_model_len": 100_000}, "--max-model-len"),
        ({"num_blocks": 10**9}, "--num-blocks"),
    ],
)
def test_what_cannot_be_is_refused_naming_the_flag(
    directory: Path, changes: dict[str, Any], flag: str
) -> None:
    with pytest.raises(ConfigError, match=flag):
        tiny_runner(directory, **changes)


def test_of_two_flags_for_the_pool_the_log_says_which_wins(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for flags, told in (
        ({"num_blocks": 9}, 0),
        ({"num_blocks": None, "kv_cache_memory_bytes": 2**20}, 0),
        ({"num_blocks": 9, "kv_cache_memory_bytes": 2**20}, 1),
    ):
        caplog.clear()
        spec = tiny_runner(directory, **flags).spec
        assert (spec.num_blocks == 9) == (flags["num_blocks"] == 9)
        wins = [line for line in caplog.messages if "--num-blocks 9 wins over --kv-cache" in line]
        assert len(wins) == told


def test_a_model_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="--model"):
        tiny_runner(tmp_path / "absent")


def test_the_smallest_pool_and_budget_still_warm_up(directory: Path) -> None:
    spec = tiny_runner(directory, num_blocks=1, max_num_batched_tokens=1, max_num_seqs=1).spec
    assert spec.num_blocks == 1


@pytest.mark.parametrize("flag", ["max_num_batched_tokens", "max_num_seqs"])
def test_numbers_that_native_code_cannot_count_to_are_refused(flag: str) -> None:
    changes: dict[str, Any] = {flag: 2**32 + 64}
    with pytest.raises(ConfigError, match=f"--{flag.replace('_', '-')} must be at most"):
        ExecutorConfig(**changes)
