"""Weights from a HF directory: model.safetensors, or shards named by its index file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from common.errors import ModelError
from executor_service.kernels.weight_rows import Blocks, RowsHeader

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


class SafetensorsSource:
    """Tensors are read when asked for; files stay open (mapped) until this object goes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[str, Any] = {}
        self._file_of = _tensor_files(directory)
        for name in sorted(set(self._file_of.values())):
            self._files[name] = _open(directory / name)
        if (directory / _INDEX).is_file():
            return
        self._file_of = dict.fromkeys(self._files[_SINGLE].keys(), _SINGLE)

    @property
    def paths(self) -> list[Path]:
        return [self._directory / name for name in sorted(self._files)]

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def blocks(self, name: str) -> Blocks | None:
        return None

    def header(self, name: str) -> RowsHeader:
        *rows, in_features = self._file(name).get_slice(name).get_shape()
        return RowsHeader(
            out_features=math.prod(rows), in_features=in_features, block_kind=None, stored_as=None
        )

    def tensor(self, name: str) -> Tensor:
        tensor: Tensor = self._file(name).get_tensor(name)
        return tensor.to(torch.float32)

    def _file(self, name: str) -> Any:
        if name not in self._file_of:
            raise ModelError(f"{self._directory} has no tensor {name!r}")
        return self._files[self._file_of[name]]


def _tensor_files(directory: Path) -> dict[str, str]:
    """Tensor name -> file name; for a single file, one entry to have it opened."""
    index = directory / _INDEX
    if index.is_file():
        try:
            return dict(json.loads(index.read_text())["weight_map"])
        except (ValueError, KeyError, TypeError) as error:
            raise ModelError(f"{index} is not a safetensors index: {error}") from error
    if (directory / _SINGLE).is_file():
        return {"": _SINGLE}
    raise ModelError(f"{directory} has neither {_SINGLE} nor {_INDEX}")


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
