"""The few numbers of a model that decide its memory, from its config or its GGUF header."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.errors import ConfigError, ModelError
from common.kv_size import DTYPE_BYTES
from executor_service.models.gguf_config import hf_config
from executor_service.models.gguf_file import GGUFFile
from executor_service.models.source import SMOLLM2_ALIAS, locate
from octavo.sizing.config import SizeConfig
from octavo.sizing.parameters import estimated_parameters, stored_parameters

DEFAULT_DTYPE = "bfloat16"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    name: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    num_parameters: float
    dtype: str
    """Of the weights, as they will lie in memory."""


def shape_of(config: SizeConfig) -> ModelShape:
    """The model's, with what the flags say instead. ConfigError names what is still missing."""
    found = _read(config.model) if config.model is not None else {}
    given = {
        "num_layers": config.layers,
        "num_kv_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "num_parameters": config.params,
        "dtype": None if config.dtype == "auto" else config.dtype,
    }
    values = {"name": "the model", "dtype": DEFAULT_DTYPE} | found
    values |= {name: value for name, value in given.items() if value is not None}
    flags = ("--layers", "--kv-heads", "--head-dim", "--params")
    missing = [flag for flag, name in zip(flags, given, strict=False) if values.get(name) is None]
    if missing:
        subject = "the model does not say: " if config.model else "--model, or "
        raise ConfigError(f"needed: {subject}{', '.join(missing)}")
    return ModelShape(**values)


def _read(model: str) -> dict[str, Any]:
    path = locate(model, None) if model == SMOLLM2_ALIAS else Path(model).expanduser()
    if path.is_dir():
        path = path / "config.json"
    if not path.is_file():
        raise ModelError(f"--model {model}: no config.json and no GGUF file there")
    if path.suffix == ".gguf":
        file = GGUFFile(path)
        num_parameters = sum(math.prod(tensor.shape) for tensor in file.tensors.values())
        return _from_config(hf_config(file), path.stem) | {"num_parameters": num_parameters}
    config = _json_object(path)
    return _from_config(config, path.parent.resolve().name) | {
        "num_parameters": stored_parameters(path.parent) or estimated_parameters(config)
    }


def _from_config(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """What the config does not say is None."""
    num_heads = config.get("num_attention_heads")
    hidden_size = config.get("hidden_size")
    head_dim = config.get("head_dim")
    if head_dim is None and num_heads and hidden_size:
        head_dim = hidden_size // num_heads
    dtype = config.get("torch_dtype") or config.get("dtype")
    return {
        "name": name,
        "num_layers": config.get("num_hidden_layers"),
        "num_kv_heads": config.get("num_key_value_heads") or num_heads,
        "head_dim": head_dim,
        "dtype": dtype if dtype in DTYPE_BYTES else DEFAULT_DTYPE,
    }


def _json_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} is not a JSON object")
    return value
