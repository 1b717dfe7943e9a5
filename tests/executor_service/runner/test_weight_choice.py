"""What --dtype and --quantization make of weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType
from torch import Tensor
from transformers import PreTrainedModel

from common.errors import ConfigError
from executor_service.config import ExecutorConfig
from executor_service.kernels.native.backend import NativeBackend
from executor_service.kernels.weight_rows import (
    EXACT_WEIGHTS,
    Dequantized,
    WeightKind,
    WeightRules,
)
from executor_service.models.checkpoint import open_checkpoint
from executor_service.runner.load import load_runner
from executor_service.runner.weight_choice import quantized, weight_rules
from tests.executor_service.models.test_llama import prompt
from tests.support.native_library import native_library
from tests.support.paged_model import NativePagedModel, PagedModel
from tests.support.tiny_gguf import write_gguf
from tests.support.tiny_llama import save_tiny, tiny_model
from tests.support.tiny_runner import tiny_runner

KINDS = ("int8", "q4_0", "q4_1", "q8_0", "q4_k", "q6_k")
SIZES = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
"""Rows of whole blocks of 256."""
NEAR = {"int8": 0.04, "q8_0": 0.04, "q6_k": 0.08, "q4_k": 0.25, "q4_1": 0.25, "q4_0": 0.3}
"""How far logits of a random model may go, relative to their size."""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(calm_model(), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    return write_gguf(calm_model(), path, kind=GGMLQuantizationType.Q4_1)


def calm_model() -> PreTrainedModel:
    """Its weights are so small that errors do not grow from layer to layer."""
    model = tiny_model("llama", **SIZES)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "layers" in name and "norm" not in name:
                parameter.mul_(0.3)
    return model


def of(path: Path, rules: WeightRules, *, num_threads: int = 2) -> PagedModel:
    backend = NativeBackend(native_library(), num_threads=num_threads, weight_rules=rules)
    return NativePagedModel(open_checkpoint(path), backend)


def distance(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("flags", [{"dtype": "float32"}, {"quantization": "none"}])
def test_float32_is_what_the_dequantized_file_computes(gguf: Path, flags: dict[str, Any]) -> None:
    native_library()
    runner = tiny_runner(gguf, **flags)
    parameters = tiny_model("llama", **SIZES).num_parameters()
    assert runner.spec.dtype == "float32"
    assert 0.95 * 4 * parameters < runner.spec.weights_bytes < 1.05 * 4 * parameters


def test_a_file_keeps_its_kind_unless_told_otherwise(gguf: Path, directory: Path) -> None:
    native_library()
    kept = tiny_runner(gguf).spec
    exact = tiny_runner(gguf, dtype="float32").spec
    assert kept.dtype == "q4_1"
    assert kept.weights_bytes < 0.165 * exact.weights_bytes
    assert tiny_runner(directory).spec.dtype == "float32"


def test_kept_blocks_compute_what_the_dequantized_file_does(gguf: Path) -> None:
    tokens = prompt(70)
    kept = of(gguf, weight_rules(ExecutorConfig())).whole(tokens)
    exact = of(gguf, EXACT_WEIGHTS).whole(tokens)
    assert 0 < distance(kept, exact) < 0.03


@pytest.mark.parametrize("stored", ["Q5_0", "Q5_1", "MXFP4"])
def test_other_stored_kinds_are_served_in_int8_near_what_they_say(
    stored: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    native_library()
    path = write_gguf(calm_model(), tmp_path / "m.gguf", kind=GGMLQuantizationType[stored])
    caplog.set_level("INFO")
    spec = tiny_runner(path).spec
    told = [record for record in caplog.records if record.getMessage() == "weights converted"]
    num_weights = 7 * len(calm_model().model.layers) + 2
    assert [record.__dict__["weights"] for record in told] == [
        f"{num_weights} of {stored.lower()} to int8"
    ]
    assert spec.dtype == "int8"
    assert spec.weights_bytes < 0.3 * tiny_runner(path, dtype="float32").spec.weights_bytes
    tokens = prompt(60)
    found = of(path, weight_rules(ExecutorConfig())).whole(tokens)
    exact = of(path, EXACT_WEIGHTS).whole(tokens)
    assert 0 < divergence(found, exact) < 1e-3


def divergence(found: Tensor, expected: Tensor) -> float:
    """Mean KL of the next token's distribution, in nats."""
    logs, wanted = found.log_softmax(dim=1), expected.log_softmax(dim=1)
    return float((wanted.exp() * (wanted - logs)).sum(dim=1).mean())


@pytest.mark.parametrize("stored", ["F32", "F16", "BF16", "Q8_0"])
def test_floats_and_kept_kinds_are_not_converted(
    stored: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    native_library()
    path = write_gguf(calm_model(), tmp_path / "m.gguf", kind=GGMLQuantizationType[stored])
    caplog.set_level("INFO")
    assert tiny_runner(path).spec.dtype == ("q8_0" if stored == "Q8_0" else "float32")
    assert "weights converted" not in caplog.messages


def test_each_row_of_a_stack_has_the_kind_of_its_own_rule() -> None:
    rule = weight_rules(ExecutorConfig()).linears
    floats = torch.zeros(8, 64)
    assert rule.kind_of(floats) is WeightKind.FLOAT32
    assert rule.kind_of(Dequantized(values=floats, stored_as="q5_0")) is WeightKind.INT8
    backend = NativeBackend(native_library(), num_threads=1)
    rows = [floats, Dequantized(values=floats, stored_as="q5_0"), floats]
    backend.prepare_weight(rows, rule)
    assert backend.weights_dtype() == "float32+int8"
    assert backend.conversions == {("q5_0", WeightKind.INT8): 1}


@pytest.mark.parametrize("kind", KINDS)
def test_linears_take_the_kind_that_is_asked_for(kind: str, directory: Path, gguf: Path) -> None:
    native_library()
    for path in (directory, gguf):
        dtype = tiny_runner(path, quantization=kind).spec.dtype
        assert dtype.split("+")[0] == kind
        assert set(dtype.split("+")) <= {kind, "int8"}


@pytest.mark.parametrize("kind", KINDS)
def test_quantized_models_are_near_the_exact_one(kind: str, directory: Path) -> None:
    tokens = prompt(40)
    exact = of(directory, EXACT_WEIGHTS).whole(tokens)
    found = of(directory, quantized(WeightKind[kind.upper()])).whole(tokens)
    assert 0 < distance(found, exact) < NEAR[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_and_threads_do_not_change_a_bit(kind: str, directory: Path) -> None:
    rules, tokens = quantized(WeightKind[kind.upper()]), prompt(100)
    whole = of(directory, rules).whole(tokens)
    for num_threads, lengths in ((1, [100]), (3, [33, 1, 66]), (2, [1] * 20 + [80])):
        paged, start, parts = of(directory, rules, num_threads=num_threads), 0, []
        for length in lengths:
            parts += paged.step([(0, start, tokens[start : start + length])])
            start += length
        assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_kind_and_a_dtype_contradict_each_other(dtype: str) -> None:
    with pytest.raises(ConfigError, match=rf"--quantization int8 and --dtype {dtype}"):
        ExecutorConfig(quantization="int8", dtype=dtype)


def test_a_gpu_has_no_kinds() -> None:
    with pytest.raises(ConfigError, match="--quantization q4_1: --device cuda"):
        ExecutorConfig(quantization="q4_1", device="cuda")


def test_torch_alone_has_no_kinds_and_says_what_it_serves_instead(
    gguf: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OCTAVO_NATIVE", "0")
    with pytest.raises(ConfigError, match="--quantization int8 needs the native kernels"):
        load_runner(ExecutorConfig(model=str(gguf), quantization="int8"), lambda *progress: None)
    caplog.clear()
    assert tiny_runner(gguf).spec.dtype == "float32"
    warnings = [record for record in caplog.records if "float32" in record.getMessage()]
    assert len(warnings) == 1
