"""Mends casts and products of bfloat16 and fp8 in Triton's interpreter, which get them wrong.

It holds bfloat16 as 16-bit integers: it multiplies them as such, makes integers of them by their
bits, and cuts digits off where a chip rounds. Nothing here is about kernels.

A fifth of its time goes into preparing the language again at each call of a function by a kernel;
here that is done once a launch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

_TORCH = {
    tl.float32: torch.float32,
    tl.float16: torch.float16,
    tl.bfloat16: torch.bfloat16,
    tl.float8e4nv: torch.float8_e4m3fn,
}
_BITS = {4: torch.int32, 2: torch.int16, 1: torch.uint8}
_UNSIGNED = {4: np.uint32, 2: np.uint16, 1: np.uint8}


@contextmanager
def exact_interpreter() -> Iterator[None]:
    builder = interpreter.InterpreterBuilder
    cast, dot = builder.cast_impl, builder.create_dot
    floats = interpreter._convert_float

    def convert_float(values: Any, source: Any, target: Any, rounding_mode: Any) -> Any:
        if source not in _TORCH or target not in _TORCH:
            return floats(values, source, target, rounding_mode)
        width = source.primitive_bitwidth // 8
        bits = torch.from_numpy(np.array(values)).view(_BITS[width])
        found = bits.view(_TORCH[source]).to(_TORCH[target])
        width = target.primitive_bitwidth // 8
        return found.view(_BITS[width]).numpy().view(_UNSIGNED[width])

    def cast_impl(self: Any, value: Any, target: Any) -> Any:
        source = value.dtype.scalar
        if tl.bfloat16 in (source, target.scalar) and tl.float32 not in (source, target.scalar):
            return cast(self, cast(self, value, tl.float32), target)
        return cast(self, value, target)

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        wide = [cast(self, x, tl.float32) if x.dtype.scalar == tl.bfloat16 else x for x in (a, b)]
        return dot(self, *wide, *rest)

    prepare = interpreter._patch_lang

    def patch_lang(function: Any) -> Any:
        names = function.__globals__.values()
        languages = [language for language in (tl, tl.core) if any(n is language for n in names)]
        if any(tl.core.is_builtin(language.load) for language in languages):
            return prepare(function)
        return None  # a launch that is under way has done it, and undoes it

    with (
        mock.patch.object(interpreter, "_patch_lang", patch_lang),
        mock.patch.object(interpreter, "_convert_float", convert_float),
        mock.patch.object(builder, "cast_impl", cast_impl),
        mock.patch.object(builder, "create_dot", create_dot),
    ):
        yield
