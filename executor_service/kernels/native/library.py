"""The compiled kernels, loaded for the level of this machine.

torch must have been imported before a library is loaded: it brings the OpenMP runtime that both
then share, and with it one pool of threads.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from ctypes import POINTER, c_float, c_int32, c_int64, c_size_t, c_void_p
from dataclasses import dataclass
from typing import Any

import torch  # noqa: F401

from executor_service.kernels.native import amx, build
from executor_service.kernels.native.structs import KV, Batch, Chunks, Limits, Model, Weight

_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "oct_use_threads": (None, [c_int32]),
    "oct_linear_scratch": (c_size_t, [POINTER(Weight), c_int32]),
    "oct_linear": (None, [POINTER(Weight), c_void_p, c_int32, c_void_p, c_void_p]),
    "oct_packed_bytes": (c_size_t, [c_int32, c_int32, c_int32]),
    "oct_source_bytes": (c_size_t, [c_int32, c_int32]),
    "oct_quantize": (None, [c_int32, c_void_p, c_int32, c_int32, c_void_p]),
    "oct_pack": (None, [c_int32, c_int32, c_void_p, c_int32, c_int32, c_void_p]),
    "oct_embed": (None, [POINTER(Weight), c_void_p, c_int32, c_void_p]),
    "oct_weight_row": (None, [POINTER(Weight), c_int32, c_void_p]),
    "oct_kv_record_bytes": (c_size_t, [POINTER(KV)]),
    "oct_step_workspace": (c_size_t, [POINTER(Model), POINTER(KV), POINTER(Limits)]),
    "oct_step": (
        None,
        [
            POINTER(Model),
            POINTER(KV),
            POINTER(Chunks),
            POINTER(Limits),
            c_void_p,
            c_int32,
            c_void_p,
            c_void_p,
            c_void_p,
            c_void_p,
        ],
    ),
    "oct_rms_norm": (
        None,
        [c_void_p, c_int64, c_int64, c_int64, c_int32, c_void_p, c_float, c_void_p],
    ),
    "oct_add_rms_norm": (
        None,
        [c_void_p, c_void_p, c_int64, c_int32, c_void_p, c_float, c_void_p],
    ),
    "oct_rotary": (None, [c_void_p, c_int64, c_int64, c_int32, c_void_p, c_void_p]),
    "oct_silu_mul": (None, [c_void_p, c_int64, c_int32, c_void_p]),
    "oct_write_kv": (
        None,
        [POINTER(KV), c_int32, c_void_p, c_void_p, c_int64, c_int64, c_void_p],
    ),
    "oct_sample_workspace": (c_size_t, [c_int32, c_int32]),
    "oct_num_maxima": (c_int32, [c_int32]),
    "oct_sample": (None, [c_void_p, c_void_p, c_int32, c_void_p, c_int32, c_int32, c_void_p]),
    "oct_attention_workspace": (c_size_t, [POINTER(KV), c_int32, POINTER(Limits)]),
    "oct_attention": (
        None,
        [
            POINTER(KV),
            POINTER(Batch),
            POINTER(Limits),
            c_int32,
            c_int32,
            c_float,
            c_void_p,
            c_int64,
            c_void_p,
            c_void_p,
        ],
    ),
}


@dataclass(frozen=True, slots=True)
class Library:
    """`call.oct_x(...)` runs the C function of that name, without the interpreter's lock."""

    level: str
    call: Any


def load(environ: Mapping[str, str] = os.environ) -> Library:
    """Builds first if need be. Raises BuildError."""
    return open_level(build.chosen_level(environ), environ)


def open_level(level: build.Level, environ: Mapping[str, str] = os.environ) -> Library:
    """For a level that this machine can run. Raises BuildError."""
    if "amx_tile" in level.needs and not amx.request_tiles():
        raise build.BuildError(f"the system refuses this process the tiles of level {level.name}")
    path = build.library(level, build.cache_directory(environ), environ)
    try:
        call = ctypes.CDLL(str(path))
    except OSError as error:
        raise build.BuildError(f"cannot load {path}: {error}") from error
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(call, name, None)
        if function is None:
            raise build.BuildError(f"{path} has no function {name}")
        function.restype, function.argtypes = result, arguments
    return Library(level.name, call)
