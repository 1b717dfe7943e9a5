"""GGUF blocks to float32, with the very values of the `gguf` library.

The three most common kinds are done here in whole-array steps, six times as fast as the library's
way, which works on rows of 16; all others are left to it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize as library_dequantize

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

_PLAIN = {GGMLQuantizationType.F32: np.float32, GGMLQuantizationType.F16: np.float16}
_ROW_GROUP = 16
"""Rows that the library takes at a time, however short they are."""


def dequantize(data: Bytes, kind: GGMLQuantizationType) -> Floats:
    """Whole blocks, flat. Raises NotImplementedError for a kind that the library does not know."""
    if kind in _PLAIN:
        return data.view(_PLAIN[kind]).astype(np.float32)
    if kind in _FAST:
        return _FAST[kind](data.reshape(-1, GGML_QUANT_SIZES[kind][1])).reshape(-1)
    num_blocks = len(data) // GGML_QUANT_SIZES[kind][1]
    rows = _ROW_GROUP if num_blocks % _ROW_GROUP == 0 else 1
    values: Floats = library_dequantize(data.reshape(rows, -1), kind)
    return values.reshape(-1)


def _q8_0(blocks: Bytes) -> Floats:
    """Scale, then 32 signed bytes."""
    values = blocks[:, 2:].view(np.int8).astype(np.float32)
    return np.multiply(values, _halves(blocks[:, :2]), out=values)


def _q4_0(blocks: Bytes) -> Floats:
    """Scale, then 32 nibbles with an offset of 8."""
    values = _nibbles(blocks[:, 2:])
    values -= 8
    return np.multiply(values, _halves(blocks[:, :2]), out=values)


def _q4_1(blocks: Bytes) -> Floats:
    """Scale, minimum, then 32 nibbles."""
    values = _nibbles(blocks[:, 4:])
    values *= _halves(blocks[:, :2])
    return np.add(values, _halves(blocks[:, 2:4]), out=values)


def _halves(data: Bytes) -> Floats:
    return np.ascontiguousarray(data).view(np.float16).astype(np.float32)


def _nibbles(data: Bytes) -> Floats:
    """All low nibbles of a block come before its high ones."""
    packed = np.ascontiguousarray(data)
    values = np.empty((len(data), 2 * data.shape[1]), np.float32)
    np.bitwise_and(packed, 15, out=values[:, : data.shape[1]], casting="unsafe")
    np.right_shift(packed, 4, out=values[:, data.shape[1] :], casting="unsafe")
    return values


_FAST: dict[GGMLQuantizationType, Callable[[Bytes], Floats]] = {
    GGMLQuantizationType.Q8_0: _q8_0,
    GGMLQuantizationType.Q4_0: _q4_0,
    GGMLQuantizationType.Q4_1: _q4_1,
}
