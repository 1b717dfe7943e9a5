from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from safetensors.numpy import save_file

from common.errors import ConfigError, ModelError
from octavo.sizing.config import SizeConfig
from octavo.sizing.model_shape import shape_of
from tests.support.native_library import native_library
from tests.support.tiny_gguf import write_gguf
from tests.support.tiny_llama import tiny_model
from tests.support.tiny_runner import tiny_runner

QWEN2_7B = {
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "vocab_size": 152064,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}


def write_config(folder: Path, **changes: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(QWEN2_7B | changes))
    return path


def test_a_config_alone_is_enough(tmp_path: Path) -> None:
    path = write_config(tmp_path)
    shape = shape_of(SizeConfig(model=str(path)))
    assert (shape.num_layers, shape.num_kv_heads, shape.head_dim) == (28, 4, 128)
    assert shape.num_parameters == pytest.approx(7.616e9, rel=1e-3)
    assert shape.dtype == "bfloat16"
    assert shape_of(SizeConfig(model=str(tmp_path))) == shape


def test_weights_beside_the_config_are_counted(tmp_path: Path) -> None:
    write_config(tmp_path)
    save_file({"a": np.zeros((3, 5), np.float32)}, tmp_path / "1.safetensors", {"format": "pt"})
    save_file({"b": np.zeros(7, np.float16)}, tmp_path / "2.safetensors")
    assert shape_of(SizeConfig(model=str(tmp_path))).num_parameters == 22


def test_the_alias_is_read_from_its_gguf_header() -> None:
    shape = shape_of(SizeConfig(model="smollm2-135m"))
    assert (shape.num_layers, shape.num_kv_heads, shape.head_dim) == (30, 3, 64)
    assert shape.num_parameters == 134_515_008
    assert (shape.dtype, shape.weight_bytes) == ("bfloat16", 2 * 134_515_008)


def test_a_gpu_keeps_every_model_in_16_bits(tmp_path: Path) -> None:
    path = write_config(tmp_path, torch_dtype="float32")
    assert shape_of(SizeConfig(model=str(path))).dtype == "bfloat16"
    assert shape_of(SizeConfig(model=str(path), dtype="float32")).dtype == "float32"


def test_on_the_cpu_a_gguf_file_is_as_it_is_stored() -> None:
    shape = shape_of(SizeConfig(model="smollm2-135m", device="cpu"))
    assert (shape.dtype, shape.kv_dtype) == ("q4_1+q8_0", "bfloat16")
    assert shape.weight_bytes == 96_576_768
    exact = shape_of(SizeConfig(model="smollm2-135m", device="cpu", dtype="float32"))
    assert (exact.weight_bytes, exact.kv_dtype) == (4 * 134_515_008, "float32")


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "Q5_1", "BF16"])
def test_on_the_cpu_a_gguf_file_takes_what_an_executor_says(kind: str, tmp_path: Path) -> None:
    native_library()
    model = tiny_model("llama", hidden_size=256, intermediate_size=512, head_dim=64)
    path = write_gguf(model, tmp_path / "m.gguf", kind=GGMLQuantizationType[kind])
    shape = shape_of(SizeConfig(model=str(path), device="cpu"))
    spec = tiny_runner(path).spec
    assert (shape.dtype, shape.kv_dtype) == (spec.dtype, spec.kv_cache_dtype)
    assert shape.weight_bytes == pytest.approx(spec.weights_bytes, rel=0.01)


def test_a_gguf_file_of_an_unknown_type_is_an_error_that_names_it(
    tmp_path: Path,
) -> None:
    kinds = {"blk.0.ffn_up.weight": GGMLQuantizationType.F16}
    path = write_gguf(tiny_model("llama"), tmp_path / "m.gguf", kinds=kinds)
    name = b"blk.0.ffn_up.weight"
    data = bytearray(path.read_bytes())
    place = data.index(name) + len(name) + 4 + 2 * 8
    assert data[place] == GGMLQuantizationType.F16
    data[place] = 99
    path.write_bytes(data)
    with pytest.raises(ModelError, match=r"blk\.0\.ffn_up\.weight has the unknown type 99"):
        shape_of(SizeConfig(model=str(path), device="cpu"))


def test_on_the_cpu_other_weights_are_float32(tmp_path: Path) -> None:
    shape = shape_of(SizeConfig(model=str(write_config(tmp_path)), device="cpu"))
    assert (shape.dtype, shape.kv_dtype) == ("float32", "float32")
    with pytest.raises(ConfigError, match="--dtype bfloat16"):
        SizeConfig(model=str(tmp_path), device="cpu", dtype="bfloat16")


def test_flags_win_over_the_model(tmp_path: Path) -> None:
    path = write_config(tmp_path)
    shape = shape_of(SizeConfig(model=str(path), kv_heads=28, params=1e9, dtype="float16"))
    assert (shape.num_kv_heads, shape.num_parameters, shape.dtype) == (28, 1e9, "float16")


def test_a_used_sliding_window_bounds_the_length(tmp_path: Path) -> None:
    fields = {"architectures": ["Qwen2ForCausalLM"], "max_position_embeddings": 4096}
    fields |= {"sliding_window": 512}
    model = str(write_config(tmp_path, **fields))
    assert shape_of(SizeConfig(model=model)).max_model_len == 4096
    write_config(tmp_path, **fields, use_sliding_window=True)
    assert shape_of(SizeConfig(model=model)).max_model_len == 512


def test_experts_need_the_number_of_parameters(tmp_path: Path) -> None:
    path = write_config(tmp_path, num_experts=8)
    with pytest.raises(ConfigError, match="--params"):
        shape_of(SizeConfig(model=str(path)))
    assert shape_of(SizeConfig(model=str(path), params=3e9)).num_parameters == 3e9


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ConfigError, match=r"--kv-heads, --head-dim, --params"):
        shape_of(SizeConfig(layers=32))


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff{"])
def test_a_broken_config_is_an_error_that_names_it(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"config\.json"):
        shape_of(SizeConfig(model=str(path)))


def test_no_model_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="--model"):
        shape_of(SizeConfig(model=str(tmp_path)))


def test_truncated_weights_are_an_error(tmp_path: Path) -> None:
    write_config(tmp_path)
    (tmp_path / "x.safetensors").write_bytes(b"\xff" * 8)
    with pytest.raises(ModelError, match="safetensors"):
        shape_of(SizeConfig(model=str(tmp_path)))
