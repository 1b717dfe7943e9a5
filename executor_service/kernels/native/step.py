"""A model described to the C kernels once, and whole steps of it as one call."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from executor_service.kernels.native.kv import NativeKV
from executor_service.kernels.native.library import Library
from executor_service.kernels.native.structs import Batch, Layer, Limits, Model
from executor_service.kernels.native.weights import NativeWeight

_ALIGNMENT = 64


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


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInput:
    """Host tensors, dense. Chunks lie one after the other."""

    token_ids: Tensor
    """[num_tokens] int64"""
    positions: Tensor
    """[num_tokens] int64"""
    slots: Tensor
    """[num_tokens] int64"""
    starts: Tensor
    """[num_chunks] int32"""
    lengths: Tensor
    """[num_chunks] int32"""
    block_tables: Tensor
    """[num_chunks, width] int32"""


class WholeStep:
    """The model over one pool. Its outputs are valid until the next call."""

    def __init__(
        self, library: Library, parts: ModelParts, kv: NativeKV, limits: Limits, vocab_size: int
    ) -> None:
        self._call = library.call
        self._parts = parts  # The structs point into it.
        self._kv = kv
        self._limits = {n: _with_threads(limits, n) for n in range(1, limits.num_threads + 1)}
        self._layers = (Layer * len(parts.layers))(*(_layer(layer) for layer in parts.layers))
        self._model = _model(parts, self._layers)
        num_bytes = self._call.oct_step_workspace(self._model, kv.struct, limits)
        self.workspace = torch.empty(num_bytes + _ALIGNMENT, dtype=torch.uint8)
        # Pages that no step reaches are never touched, so they take no memory.
        self.hidden = torch.empty(limits.max_tokens, self._model.hidden)
        self.logits = torch.empty(limits.max_rows, vocab_size)

    def run(self, step: StepInput, rows: Tensor, num_threads: int) -> tuple[Tensor, Tensor]:
        """Normed hidden states [num_tokens, hidden]; logits [num_rows, vocab_size] of `rows`.

        Writes K and V. rows: [num_rows] int32, of the step's tokens. num_threads: at most the
        limits'; the bits are the same on any.
        """
        batch = Batch(
            num_chunks=step.starts.shape[0],
            num_tokens=step.token_ids.shape[0],
            table_width=step.block_tables.shape[1],
            starts=step.starts.data_ptr(),
            lengths=step.lengths.data_ptr(),
            block_tables=step.block_tables.data_ptr(),
            slots=step.slots.data_ptr(),
            token_ids=step.token_ids.data_ptr(),
            positions=step.positions.data_ptr(),
        )
        self._call.oct_step(
            self._model,
            self._kv.struct,
            batch,
            self._limits[num_threads],
            rows.data_ptr(),
            rows.shape[0],
            -(-self.workspace.data_ptr() // _ALIGNMENT) * _ALIGNMENT,
            self.hidden.data_ptr(),
            self.logits.data_ptr(),
        )
        return self.hidden[: batch.num_tokens], self.logits[: rows.shape[0]]


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
