"""A model described to the C kernels once, and whole steps of it as one call."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from executor_service.kernels.native import pages
from executor_service.kernels.native.kv import NativeKV
from executor_service.kernels.native.library import Library
from executor_service.kernels.native.structs import KV, Chunks, Layer, Limits, Model
from executor_service.kernels.native.weights import NativeWeight

_ALIGNMENT = 64
_COLUMNS = Chunks._fields_[2:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    weight: NativeWeight
    bias: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerParts:
    attention_norm: Tensor
    qkv: Projection
    q_norm: Tensor | None
    k_norm: Tensor | None
    output: Projection
    feed_forward_norm: Tensor
    gate_up: Projection
    down: Projection


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParts:
    """Everything a step reads, float32 where it is a Tensor."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float
    scale: float
    embedding: NativeWeight
    """[vocab_size, hidden]"""
    cos: Tensor
    """[max_positions, head_dim / 2]"""
    sin: Tensor
    layers: Sequence[LayerParts]
    norm: Tensor
    head: Projection

    @property
    def vocab_size(self) -> int:
        return self.head.weight.out_features


class StepInput(NamedTuple):
    """int32 columns. Chunks lie one behind the other, as in struct oct_chunks."""

    starts: array[int]
    """[num_chunks]"""
    lengths: array[int]
    """[num_chunks]"""
    num_blocks: array[int]
    """[num_chunks], that cover the chunk and what is before it"""
    blocks: array[int]
    """[sum of num_blocks]"""
    token_ids: array[int]
    """[sum of lengths]"""


def step_bytes(library: Library, parts: ModelParts, kv: KV, limits: Limits) -> int:
    """What a WholeStep allocates, over a pool like `kv`, whose data is not looked at."""
    layers = _layers(parts)
    model = _model(parts, layers)
    row = parts.vocab_size + library.call.oct_num_maxima(parts.vocab_size)
    outputs: int = limits.max_tokens * model.hidden + limits.max_rows * row
    return int(library.call.oct_step_workspace(model, kv, limits)) + _ALIGNMENT + 4 * outputs


class WholeStep:
    """The model over one pool. Its outputs are valid until the next call.

    hidden: [max_tokens, hidden], normed; logits: [max_rows, vocab_size]; maxima: [max_rows, ...] of
    blocks of logits, as draws read them.
    """

    def __init__(self, library: Library, parts: ModelParts, kv: NativeKV, limits: Limits) -> None:
        self._call = library.call
        self._parts = parts  # The structs point into it.
        self._kv = kv
        self._limits = {n: _with_threads(limits, n) for n in range(1, limits.num_threads + 1)}
        self._layers = _layers(parts)
        self._model = _model(parts, self._layers)
        num_bytes = self._call.oct_step_workspace(self._model, kv.struct, limits)
        self.workspace = pages.zeroed(num_bytes + _ALIGNMENT)
        # Pages that no step reaches are never touched, so they take no memory.
        self.hidden = _floats(limits.max_tokens, self._model.hidden)
        self.logits = _floats(limits.max_rows, parts.vocab_size)
        num_maxima = self._call.oct_num_maxima(parts.vocab_size)
        self.maxima = _floats(limits.max_rows, num_maxima)
        self._chunks = Chunks()
        self._outputs = (
            -(-self.workspace.data_ptr() // _ALIGNMENT) * _ALIGNMENT,
            self.hidden.data_ptr(),
            self.logits.data_ptr(),
            self.maxima.data_ptr(),
        )

    def run(self, step: StepInput, rows: array[int], num_threads: int) -> None:
        """Fills in the first rows of `hidden` and, for `rows`, of `logits` and `maxima`; those
        behind them may be anything.

        Writes K and V. rows: int32, of the step's tokens. num_threads: at most the limits'; the
        bits are the same on any.
        """
        chunks = self._chunks
        chunks.num_chunks, chunks.num_tokens = len(step.starts), len(step.token_ids)
        for (name, _), column in zip(_COLUMNS, step, strict=True):
            setattr(chunks, name, column.buffer_info()[0])
        self._call.oct_step(
            self._model,
            self._kv.struct,
            chunks,
            self._limits[num_threads],
            rows.buffer_info()[0],
            len(rows),
            *self._outputs,
        )


def _floats(rows: int, width: int) -> Tensor:
    return pages.zeroed(4 * rows * width).view(torch.float32).view(rows, width)


def _layers(parts: ModelParts) -> ctypes.Array[Layer]:
    return (Layer * len(parts.layers))(*(_layer(layer) for layer in parts.layers))


def _with_threads(limits: Limits, num_threads: int) -> Limits:
    fields = {name: getattr(limits, name) for name, *_ in Limits._fields_}
    return Limits(**(fields | {"num_threads": num_threads}))


def _model(parts: ModelParts, layers: ctypes.Array[Layer]) -> Model:
    first = parts.layers[0]
    return Model(
        num_layers=len(layers),
        hidden=first.qkv.weight.in_features,
        intermediate=first.down.weight.in_features,
        num_heads=parts.num_heads,
        num_kv_heads=parts.num_kv_heads,
        head_dim=parts.head_dim,
        eps=parts.eps,
        scale=parts.scale,
        cos=parts.cos.data_ptr(),
        sin=parts.sin.data_ptr(),
        norm=parts.norm.data_ptr(),
        embedding_weight=parts.embedding.struct(None),
        head=parts.head.weight.struct(parts.head.bias),
        layers=layers,
    )


def _layer(parts: LayerParts) -> Layer:
    def address(tensor: Tensor | None) -> int | None:
        return None if tensor is None else tensor.data_ptr()

    return Layer(
        qkv=parts.qkv.weight.struct(parts.qkv.bias),
        output=parts.output.weight.struct(parts.output.bias),
        gate_up=parts.gate_up.weight.struct(parts.gate_up.bias),
        down=parts.down.weight.struct(parts.down.bias),
        attention_norm=address(parts.attention_norm),
        feed_forward_norm=address(parts.feed_forward_norm),
        q_norm=address(parts.q_norm),
        k_norm=address(parts.k_norm),
    )
