"""Packed little-endian columns, and the check that a column read from the wire is whole."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from common.errors import ResyncError
from common.plan import TOKEN_TYPECODE

INT32 = np.dtype("<i4")
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

_EMPTY = np.empty(0, INT32)

if sys.byteorder != "little":  # array.tobytes is the wire format only on little-endian machines
    raise ImportError("the step codec runs on little-endian machines alone")


def view(column: array[int]) -> Int32s:
    """The column as numpy, without a copy. Short-lived: an array cannot grow while viewed."""
    return np.frombuffer(column, INT32)


def pack_u64(values: Iterable[int]) -> bytes:
    return np.fromiter(values, "<u8").tobytes()


def unpack(data: bytes, name: str) -> Int32s:
    """Reads a u32 column whose values have to be below 2^31."""
    if not data:
        return _EMPTY
    if len(data) % 4:
        raise ResyncError(f"column {name} has {len(data)} bytes")
    values = np.frombuffer(data, INT32)
    if np.minimum.reduce(values) < 0:
        raise ResyncError(f"column {name} holds a value of 2^31 or more")
    return values


def unpack_u64(data: bytes, name: str) -> list[int]:
    return _unpack_any(data, "<u8", name)


def unpack_f32(data: bytes, name: str) -> list[float]:
    return _unpack_any(data, "<f4", name)


def to_array(values: Int32s | Int64s) -> array[int]:
    """A numpy integer column as an array of TOKEN_TYPECODE."""
    return array(TOKEN_TYPECODE, values.astype(INT32, copy=False).tobytes())


def _unpack_any(data: bytes, dtype: str, name: str) -> list[Any]:
    if len(data) % np.dtype(dtype).itemsize:
        raise ResyncError(f"column {name} has {len(data)} bytes")
    values: list[Any] = np.frombuffer(data, dtype).tolist()
    return values
