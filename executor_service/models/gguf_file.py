"""Reads the container format GGUF (versions 2 and 3, little endian): fields and tensor places.

A reader of our own, as building the `gguf` library's per-element views costs 5 s for a vocabulary
of 50,000. Every length is checked against the file, so a truncated file is a ModelError.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from common.errors import ModelError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i",
    6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_STRING = 8
_ARRAY = 9
_MAX_NESTING = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUFTensor:
    """Where one tensor lies. `shape` is outermost first, as in torch."""

    shape: tuple[int, ...]
    type_id: int
    offset: int
    """From the start of the file."""


class GGUFFile:
    """An opened file. `fields` maps keys to Python values; strings are str where valid UTF-8."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map = _mapped(path)
        self._at = 0
        self.fields: dict[str, Any] = {}
        self.tensors: dict[str, GGUFTensor] = {}
        try:
            self._read()
        except (struct.error, IndexError) as error:
            raise ModelError(f"{path} is truncated or not a GGUF file") from error

    def data(self, tensor: GGUFTensor, num_bytes: int) -> npt.NDArray[np.uint8]:
        """The tensor's bytes, mapped."""
        if tensor.offset + num_bytes > len(self._map):
            raise ModelError(f"{self.path} is truncated: a tensor ends beyond the file")
        return np.frombuffer(self._map, np.uint8, num_bytes, tensor.offset)

    def _read(self) -> None:
        if self._take(4) != _MAGIC:
            raise ModelError(f"{self.path} is not a GGUF file")
        version = self._scalar("<I")
        if version not in _VERSIONS:
            raise ModelError(f"{self.path} is GGUF version {version}; versions 2 and 3 are read")
        num_tensors, num_fields = self._scalar("<Q"), self._scalar("<Q")
        for _ in range(num_fields):
            key = str(self._string())
            self.fields[key] = self._value(self._scalar("<I"), _MAX_NESTING)
        infos = [self._tensor_info() for _ in range(num_tensors)]
        alignment = self.fields.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise ModelError(f"{self.path} has alignment {alignment!r}")
        start = -(-self._at // alignment) * alignment
        for name, shape, type_id, offset in infos:
            self.tensors[name] = GGUFTensor(shape=shape, type_id=type_id, offset=start + offset)

    def _tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        name = str(self._string())
        dimensions = [self._scalar("<Q") for _ in range(self._scalar("<I"))]
        return name, tuple(reversed(dimensions)), self._scalar("<I"), self._scalar("<Q")

    def _value(self, type_id: int, nesting: int) -> Any:
        if type_id == _STRING:
            return self._string()
        if type_id in _SCALARS:
            return self._scalar(_SCALARS[type_id])
        if type_id != _ARRAY or not nesting:
            raise ModelError(f"{self.path} has a field of unknown type {type_id}")
        element, count = self._scalar("<I"), self._scalar("<Q")
        if element in _SCALARS:
            code = _SCALARS[element]
            data = self._take(count * struct.calcsize(code))
            return np.frombuffer(data, np.dtype(code)).tolist()
        return [self._value(element, nesting - 1) for _ in range(count)]

    def _string(self) -> str | bytes:
        data = self._take(self._scalar("<Q"))
        try:
            return data.decode()
        except UnicodeDecodeError:
            return data

    def _scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from(code, self._map, self._at)
        self._at += struct.calcsize(code)
        return value

    def _take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._map):
            raise IndexError(end)
        data = self._map[self._at : end]
        self._at = end
        return data


def _mapped(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
