"""The few numbers of a model that decide its memory, from its config or its GGUF header."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from common.errors import ConfigError, ModelError
from common.kv_size import DTYPE_BYTES
from executor_service.models.dequantize import BLOCK_TYPES, block_of, type_name
from executor_service.models.gguf_config import hf_config
from executor_service.models.gguf_file import GGUFFile
from executor_service.models.json_file import read_json_object
from executor_service.models.positions import exact_positions, known_model_type
from executor_service.models.source import SMOLLM2_ALIAS, locate
from octavo.sizing.card import CPU
from octavo.sizing.config import SizeConfig
from octavo.sizing.parameters import estimated_parameters, stored_parameters

DEFAULT_DTYPE = "bfloat16"
_CPU_DTYPE = "float32"
_KV_DTYPE_BESIDE_BLOCKS = "bfloat16"
_INT8_GROUP, _INT8_GROUP_BYTES = 32, 34
"""Weights that share a scale, and what they take with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    name: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    num_parameters: float
    dtype: str
    """Of the weights, as they will lie in memory: a dtype, or kinds of blocks."""
    weight_bytes: float
    kv_dtype: str
    max_model_len: int | None = None
    """The longest sequence of an executor on a CPU, if that is known."""


def shape_of(config: SizeConfig) -> ModelShape:
    """The model's, with what the flags say instead. ConfigError names what is still missing."""
    found = _read(config.model) if config.model is not None else {}
    stored = found.pop("stored", None)
    given = {
        "num_layers": config.layers,
        "num_kv_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "num_parameters": config.params,
        "dtype": None if config.dtype == "auto" else config.dtype,
    }
    values = {"name": "the model"} | found
    values["dtype"] = _CPU_DTYPE if config.device == CPU else DEFAULT_DTYPE
    values |= {name: value for name, value in given.items() if value is not None}
    flags = ("--layers", "--kv-heads", "--head-dim", "--params")
    missing = [flag for flag, name in zip(flags, given, strict=False) if values.get(name) is None]
    if missing:
        subject = "the model does not say: " if config.model else "--model, or "
        raise ConfigError(f"needed: {subject}{', '.join(missing)}")
    weights = Weights(values["dtype"], values["num_parameters"] * DTYPE_BYTES[values["dtype"]])
    if config.device == CPU and stored and config.dtype == "auto" and config.params is None:
        weights = stored
    values["dtype"] = weights.dtype
    return ModelShape(
        **values, weight_bytes=weights.num_bytes, kv_dtype=_kv_dtype(config, weights.dtype)
    )


class Weights(NamedTuple):
    dtype: str
    num_bytes: float


def _kv_dtype(config: SizeConfig, weights_dtype: str) -> str:
    if config.kv_cache_dtype != "auto":
        return config.kv_cache_dtype
    return weights_dtype if weights_dtype in DTYPE_BYTES else _KV_DTYPE_BESIDE_BLOCKS


def _read(model: str) -> dict[str, Any]:
    path = locate(model, None) if model == SMOLLM2_ALIAS else Path(model).expanduser()
    if path.is_dir():
        path = path / "config.json"
    if not path.is_file():
        raise ModelError(f"--model {model}: no config.json and no GGUF file there")
    if path.suffix == ".gguf":
        file = GGUFFile(path)
        num_parameters = sum(math.prod(tensor.shape) for tensor in file.tensors.values())
        return _from_config(hf_config(file), path.stem) | {
            "num_parameters": num_parameters,
            "stored": _stored(file),
        }
    config = read_json_object(path)
    return _from_config(config, path.parent.resolve().name) | {
        "num_parameters": stored_parameters(path.parent) or estimated_parameters(config)
    }


def _stored(file: GGUFFile) -> Weights:
    """What the CPU makes of the file: blocks stay or become int8, all else is float32."""
    kinds: set[str] = set()
    num_bytes = 0
    for name, tensor in file.tensors.items():
        num_elements = math.prod(tensor.shape)
        try:
            per_block, block_bytes = block_of(tensor.type_id)
        except ValueError as error:
            raise ModelError(f"{name} has the unknown type {tensor.type_id}") from error
        if per_block == 1:
            num_bytes += num_elements * DTYPE_BYTES[_CPU_DTYPE]
        elif tensor.type_id in BLOCK_TYPES:
            kinds.add(type_name(tensor.type_id).lower())
            num_bytes += num_elements // per_block * block_bytes
        else:
            kinds.add("int8")
            num_bytes += num_elements // _INT8_GROUP * _INT8_GROUP_BYTES
    return Weights("+".join(sorted(kinds)) or _CPU_DTYPE, num_bytes)


def _from_config(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What the config does not say is None."""
    num_heads = config.get("num_attention_heads")
    hidden_size = config.get("hidden_size")
    head_dim = config.get("head_dim")
    if head_dim is None and num_heads and hidden_size:
        head_dim = hidden_size // num_heads
    positions = config.get("max_position_embeddings")
    return {
        "name": name,
        "num_layers": config.get("num_hidden_layers"),
        "num_kv_heads": config.get("num_key_value_heads") or num_heads,
        "head_dim": head_dim,
        "max_model_len": positions and exact_positions(config, known_model_type(config), positions),
    }
