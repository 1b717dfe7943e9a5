"""The C structs of src/octavo.h, field by field."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int32, c_void_p


class Weight(ctypes.Structure):
    _fields_ = (
        ("kind", c_int32),
        ("out_features", c_int32),
        ("in_features", c_int32),
        ("data", c_void_p),
        ("bias", c_void_p),
    )


class KV(ctypes.Structure):
    _fields_ = (
        ("data", c_void_p),
        ("dtype", c_int32),
        ("num_layers", c_int32),
        ("num_blocks", c_int32),
        ("block_size", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
    )


class Batch(ctypes.Structure):
    _fields_ = (
        ("num_chunks", c_int32),
        ("num_tokens", c_int32),
        ("table_width", c_int32),
        ("starts", c_void_p),
        ("lengths", c_void_p),
        ("block_tables", c_void_p),
    )


class Chunks(ctypes.Structure):
    _fields_ = (
        ("num_chunks", c_int32),
        ("num_tokens", c_int32),
        ("starts", c_void_p),
        ("lengths", c_void_p),
        ("num_blocks", c_void_p),
        ("blocks", c_void_p),
        ("token_ids", c_void_p),
    )


class Limits(ctypes.Structure):
    _fields_ = (
        ("max_tokens", c_int32),
        ("max_chunks", c_int32),
        ("max_rows", c_int32),
        ("max_context", c_int32),
        ("num_threads", c_int32),
    )


class Layer(ctypes.Structure):
    _fields_ = (
        ("qkv", Weight),
        ("output", Weight),
        ("gate_up", Weight),
        ("down", Weight),
        ("attention_norm", c_void_p),
        ("feed_forward_norm", c_void_p),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
    )


class Model(ctypes.Structure):
    _fields_ = (
        ("num_layers", c_int32),
        ("hidden", c_int32),
        ("intermediate", c_int32),
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_dim", c_int32),
        ("eps", c_float),
        ("scale", c_float),
        ("embedding", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("norm", c_void_p),
        ("embedding_weight", Weight),
        ("head", Weight),
        ("layers", ctypes.POINTER(Layer)),
    )
