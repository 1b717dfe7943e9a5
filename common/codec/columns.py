"""Packed little-endian columns, and the check that a column read from the wire is whole."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from typing import Any

import numpy as np

from common.errors import ResyncError
from common.plan import TOKEN_TYPECODE

_FEW = 256
"""Values that plain Python looks at as fast as numpy; numpy's code is seldom in the caches."""

if sys.byteorder != "little":  # array.tobytes is the wire format only on little-endian machines
    raise ImportError("the step codec runs on little-endian machines alone")


def pack(values: Iterable[int]) -> bytes:
    return array(TOKEN_TYPECODE, values).tobytes()


def pack_u64(values: Iterable[int]) -> bytes:
    return np.fromiter(values, "<u8").tobytes()


def unpack(data: bytes, name: str) -> array[int]:
    """Reads a u32 column whose values have to be below 2^31."""
    if len(data) % 4:
        raise ResyncError(f"column {name} has {len(data)} bytes")
    values = array(TOKEN_TYPECODE)
    values.frombytes(data)
    if values and (min(values) if len(values) <= _FEW else np.array(values).min()) < 0:
        raise ResyncError(f"column {name} holds a value of 2^31 or more")
    return values


def unpack_u64(data: bytes, name: str) -> list[int]:
    return _unpack_any(data, "<u8", name)


def unpack_f32(data: bytes, name: str) -> list[float]:
    return _unpack_any(data, "<f4", name)


def _unpack_any(data: bytes, dtype: str, name: str) -> list[Any]:
    if len(data) % np.dtype(dtype).itemsize:
        raise ResyncError(f"column {name} has {len(data)} bytes")
    values: list[Any] = np.frombuffer(data, dtype).tolist()
    return values
