"""Weights that are larger than memory are refused before any is read, whatever they are kept in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType as GGMLType

from common.errors import ConfigError, ModelError
from common.kv_size import larger_size_text, size_text
from executor_service.config import ExecutorConfig
from executor_service.kernels.backend import Backend
from executor_service.kernels.cpu import CpuBackend
from executor_service.kernels.native.backend import NativeBackend
from executor_service.kernels.weight_rows import WeightRules
from executor_service.models.checkpoint import open_checkpoint
from executor_service.models.llama import LlamaModel
from executor_service.models.weight_sizes import weight_bytes
from executor_service.runner.cpu_device import CpuDevice
from executor_service.runner.load import load_runner
from executor_service.runner.weight_choice import weight_rules
from tests.support.native_library import native_library
from tests.support.tiny_gguf import write_gguf
from tests.support.tiny_llama import save_tiny, tiny_model

SIZES = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
"""Rows of whole blocks of 256."""
MIXES: dict[str, dict[str, GGMLType]] = {
    "one kind": {},
    "a head and a layer in others": {
        "output.weight": GGMLType.F16,
        "token_embd.weight": GGMLType.Q8_0,
        "blk.1.ffn_down.weight": GGMLType.F32,
    },
    "another kind amid a stack": {
        "blk.0.attn_k.weight": GGMLType.Q4_K,
        "blk.1.attn_v.weight": GGMLType.Q6_K,
        "blk.1.ffn_up.weight": GGMLType.Q8_0,
    },
    "kinds without a kernel": {
        "token_embd.weight": GGMLType.Q5_1,
        "blk.0.attn_q.weight": GGMLType.Q5_0,
        "blk.1.ffn_down.weight": GGMLType.MXFP4,
    },
}
FLAGS: list[dict[str, str]] = [{}, {"dtype": "float32"}] + [
    {"quantization": kind} for kind in ("none", "int8", "q4_0", "q8_0", "q4_k", "q6_k")
]


@pytest.fixture(scope="module", params=["tied", "untied", *MIXES])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    if request.param not in MIXES:
        # Rows of 72 are whole blocks of no kind.
        tied = request.param == "tied"
        model = tiny_model("llama", hidden_size=72, head_dim=32, tie_word_embeddings=tied)
        return save_tiny(model, folder)
    return write_gguf(
        tiny_model("llama", **SIZES),
        folder / "m.gguf",
        kind=GGMLType.Q4_1,
        kinds=MIXES[request.param],
    )


def expected_and_taken(path: Path, backend: Backend, rules: WeightRules) -> tuple[int, int]:
    checkpoint = open_checkpoint(path)
    expected = weight_bytes(backend, checkpoint.config, checkpoint.weights, rules)
    model = LlamaModel(backend, checkpoint.config, checkpoint.weights, 64, lambda *progress: None)
    return expected, model.num_bytes


@pytest.mark.parametrize("flags", FLAGS, ids=lambda flags: "-".join(flags.values()) or "auto")
def test_headers_tell_what_weights_will_take_to_the_byte(path: Path, flags: dict[str, str]) -> None:
    fields: dict[str, Any] = {**flags}
    rules = weight_rules(ExecutorConfig(**fields))
    backend = NativeBackend(native_library(), num_threads=1, weight_rules=rules)
    expected, taken = expected_and_taken(path, backend, rules)
    assert expected == taken


def test_torch_packs_a_tied_head_again(path: Path) -> None:
    expected, taken = expected_and_taken(path, CpuBackend(), CpuBackend.weight_rules)
    assert expected == taken


def needed(path: Path) -> int:
    checkpoint, rules = open_checkpoint(path), weight_rules(ExecutorConfig())
    backend = NativeBackend(native_library(), num_threads=1, weight_rules=rules)
    return weight_bytes(backend, checkpoint.config, checkpoint.weights, rules)


def load_with(free: int, path: Path, monkeypatch: pytest.MonkeyPatch, **flags: Any) -> None:
    monkeypatch.setattr(CpuDevice, "free_bytes", lambda self: free)
    config = ExecutorConfig(model=str(path), num_blocks=8, threads=1, **flags)
    load_runner(config, lambda done, total, what: None)


def test_one_byte_too_few_is_refused_before_a_weight_is_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = needed(path)
    with pytest.raises(ConfigError, match="--num-blocks"):
        load_with(size, path, monkeypatch)
    monkeypatch.setattr(
        "executor_service.runner.load.LlamaModel", lambda *_: pytest.fail("weights are read")
    )
    free = size - 1
    taken = larger_size_text(size, free)
    with pytest.raises(ModelError, match=f"they take {taken} and {size_text(free)} are free"):
        load_with(free, path, monkeypatch)


def test_the_remedy_is_what_makes_these_weights_smaller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model("llama", **SIZES)
    directory = save_tiny(model, tmp_path / "directory")
    gguf = write_gguf(model, tmp_path / "m.gguf", kind=GGMLType.Q4_1)
    small = write_gguf(model, tmp_path / "s.gguf", kind=GGMLType.Q4_0)
    native_library()
    with pytest.raises(ModelError, match=r"int8 makes them .*, --quantization q4_0 makes them"):
        load_with(1000, directory, monkeypatch)
    with pytest.raises(ModelError, match=r"free; --quantization q4_0 makes them"):
        load_with(1000, gguf, monkeypatch, quantization="int8")
    with pytest.raises(ModelError, match="int8 in place of --dtype float32 makes them"):
        load_with(1000, gguf, monkeypatch, dtype="float32")
    with pytest.raises(ModelError, match="no flag makes them much smaller"):
        load_with(1000, small, monkeypatch)
    monkeypatch.setenv("OCTAVO_NATIVE", "0")
    with pytest.raises(ModelError, match="there are none: OCTAVO_NATIVE=0 turns"):
        load_with(1000, small, monkeypatch)
