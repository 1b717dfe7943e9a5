from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from common.errors import ModelError
from executor_service.kernels.weight_rows import WeightKind, WeightRule
from executor_service.models.checkpoint import open_checkpoint
from executor_service.models.gguf_source import GGUFSource
from executor_service.models.layers import stored_rows
from executor_service.models.rope import inverse_frequencies
from tests.executor_service.models.test_llama import prompt
from tests.support.paged_model import load
from tests.support.tiny_gguf import write_gguf
from tests.support.tiny_llama import save_tiny, tiny_model

QUANTIZED = [
    GGMLQuantizationType.F16,
    GGMLQuantizationType.BF16,
    GGMLQuantizationType.Q8_0,
    GGMLQuantizationType.Q4_0,
    GGMLQuantizationType.Q4_1,
    GGMLQuantizationType.Q5_1,
]
KEPT = [GGMLQuantizationType.Q8_0, GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q4_1]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_gguf_of_a_model_is_the_model_bit_for_bit(family: str, tmp_path: Path) -> None:
    model = tiny_model(family)
    tokens = prompt(60)
    expected = load(save_tiny(model, tmp_path / "hf")).whole(tokens)
    assert torch.equal(load(write_gguf(model, tmp_path / "m.gguf")).whole(tokens), expected)


def test_tied_embeddings_and_biased_projections_survive(tmp_path: Path) -> None:
    model = tiny_model("llama", tie_word_embeddings=True, attention_bias=True)
    tokens = prompt(30)
    expected = load(save_tiny(model, tmp_path / "hf")).whole(tokens)
    assert torch.equal(load(write_gguf(model, tmp_path / "m.gguf")).whole(tokens), expected)


@pytest.mark.parametrize("kind", QUANTIZED, ids=lambda kind: kind.name)
def test_quantized_matrices_are_what_the_library_says(
    kind: GGMLQuantizationType, tmp_path: Path
) -> None:
    model = tiny_model("qwen2")
    source = open_checkpoint(write_gguf(model, tmp_path / "m.gguf", kind=kind)).weights
    name = "model.layers.1.mlp.down_proj.weight"
    original = model.get_parameter(name).detach()
    expected = torch.from_numpy(dequantize(quantize(original.numpy(), kind), kind))
    assert torch.equal(source.tensor(name), expected)
    norm = "model.layers.0.input_layernorm.weight"
    assert torch.equal(source.tensor(norm), model.get_parameter(norm).detach())


@pytest.mark.parametrize("kind", KEPT, ids=lambda kind: kind.name)
def test_blocks_are_the_rows_of_the_tensor(kind: GGMLQuantizationType, tmp_path: Path) -> None:
    path = write_gguf(tiny_model("llama"), tmp_path / "m.gguf", kind=kind)
    source = open_checkpoint(path).weights
    for part in ("self_attn.q_proj", "self_attn.k_proj", "mlp.down_proj"):
        name = f"model.layers.1.{part}.weight"
        blocks, expected = source.blocks(name), source.tensor(name)
        assert blocks is not None
        assert blocks.kind.name == kind.name
        assert (blocks.out_features, blocks.in_features) == tuple(expected.shape)
        assert torch.equal(torch.from_numpy(dequantize(blocks.data.numpy(), kind)), expected)
    assert source.blocks("model.norm.weight") is None


@pytest.mark.parametrize("kind", QUANTIZED, ids=lambda kind: kind.name)
def test_a_header_tells_shape_and_kind_of_what_is_quantized(
    kind: GGMLQuantizationType, tmp_path: Path
) -> None:
    source = open_checkpoint(
        write_gguf(tiny_model("llama"), tmp_path / "m.gguf", kind=kind)
    ).weights
    is_float = kind.name in ("F16", "BF16")
    header = source.header("model.layers.0.self_attn.k_proj.weight")
    assert (header.out_features, header.in_features) == (2 * 16, 64)
    assert header.stored_as == (None if is_float else kind.name.lower())
    assert header.block_kind == (WeightKind[kind.name] if kind in KEPT else None)
    assert source.header("model.norm.weight").stored_as is None


def test_floats_have_no_blocks(tmp_path: Path) -> None:
    for kind in (GGMLQuantizationType.F16, GGMLQuantizationType.Q5_1):
        path = write_gguf(tiny_model("llama"), tmp_path / f"{kind.name}.gguf", kind=kind)
        assert open_checkpoint(path).weights.blocks("model.embed_tokens.weight") is None


def test_frequency_divisors_of_the_file_slow_the_rotation(tmp_path: Path) -> None:
    model, divisors = tiny_model("llama"), torch.linspace(1, 8, 8)
    plain = open_checkpoint(write_gguf(model, tmp_path / "plain.gguf")).config
    path = write_gguf(model, tmp_path / "m.gguf", tensors={"rope_freqs.weight": divisors})
    config = open_checkpoint(path).config
    found = inverse_frequencies(config.rope, config.head_dim)
    torch.testing.assert_close(
        found, inverse_frequencies(plain.rope, plain.head_dim) / divisors, rtol=1e-6, atol=0
    )


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    source = open_checkpoint(write_gguf(tiny_model("llama"), tmp_path / "m.gguf")).weights
    assert "model.norm.weight" in source
    assert "model.layers.7.mlp.up_proj.weight" not in source
    with pytest.raises(ModelError, match=r"blk\.7\.ffn_up\.weight"):
        source.tensor("model.layers.7.mlp.up_proj.weight")


def test_an_unknown_type_is_named_whatever_weights_become(tmp_path: Path) -> None:
    source = open_checkpoint(write_gguf(tiny_model("llama"), tmp_path / "m.gguf")).weights
    assert isinstance(source, GGUFSource)
    tensors = source._file.tensors
    stored = "blk.0.ffn_up.weight"
    tensors[stored] = dataclasses.replace(tensors[stored], type_id=999)
    rule = WeightRule(kept=frozenset(), floats=WeightKind.FLOAT32, others=WeightKind.INT8)
    with pytest.raises(ModelError, match="unknown type 999"):
        stored_rows(source, "model.layers.0.mlp.up_proj.weight", rule)
    with pytest.raises(ModelError, match="unknown type 999"):
        source.header("model.layers.0.mlp.up_proj.weight")
