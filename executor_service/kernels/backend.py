"""What a device must be able to do for the Llama-shaped family.

Rule 1: `reference.py` is the specification of every operation here. Rule 2: no state but
workspaces: what an operation returns depends on its arguments alone. Rule 3: whoever calls keeps
to valid indices; nothing is checked here (the runner's validation stands before it).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NewType, Protocol

import torch
from torch import Tensor

from executor_service.kernels.kv_kind import KVKind
from executor_service.kernels.weight_rows import Rows, RowsHeader, WeightRule, WeightRules

PackedWeight = NewType("PackedWeight", Tensor)
"""A weight [out_features, in_features] in the layout one backend multiplies by."""

KVStorage = NewType("KVStorage", Tensor)
"""The KV pool of all layers in the layout of one backend."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KVShape:
    """The logical shape of the pool: [num_layers, 2, num_blocks, block_size, heads, head_dim]."""

    num_layers: int
    num_blocks: int
    block_size: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLayout:
    """Where the tokens of one step stand in their sequences and in the pool. Host tensors.

    Tokens of all chunks lie one after the other. Chunk i computes positions
    [starts[i], starts[i] + lengths[i]) and attends to everything up to each of them.
    """

    starts: Tensor
    """[num_chunks] int32"""
    lengths: Tensor
    """[num_chunks] int32, at least 1"""
    block_tables: Tensor
    """[num_chunks, max_blocks] int32; entries that no token needs are 0"""
    slot_mapping: Tensor
    """[num_tokens] int64: block_id * block_size + offset, where each token's K and V go"""


class Angles(NamedTuple):
    """By which a step's tokens are turned: [num_tokens, head_dim / 2] float32 each."""

    cos: Tensor
    sin: Tensor


class Backend(Protocol):
    """One device. `dtype` is that of activations, and of weights where no rule says otherwise."""

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def kv_kind(self) -> KVKind:
        """Of the pool: what `allocate_kv` would take now that the weights are packed."""
        ...

    @property
    def weight_rules(self) -> WeightRules:
        """What weights are packed as."""
        ...

    def prepare_weight(self, rows: Sequence[Rows], rule: WeightRule) -> PackedWeight:
        """Packs once, at load, what stacks up to [out_features, in_features].

        There are no Blocks of a kind that `rule` does not keep.
        """
        ...

    def prepare_embedding(self, rows: Rows) -> PackedWeight:
        """Packs [vocab_size, hidden] for `embed`."""
        ...

    def prepare_tied_head(self, embedding: PackedWeight) -> PackedWeight:
        """What `prepare_embedding` returned as a weight for `linear`; the same one if it can be."""
        ...

    def weight_bytes(self, weight: PackedWeight) -> int: ...

    def packed_bytes(self, rows: Sequence[RowsHeader], rule: WeightRule) -> int:
        """The `weight_bytes` of what rows with these headers will be packed to."""
        ...

    def tied_head_bytes(self, embedding: RowsHeader) -> int:
        """What `prepare_tied_head` will take beside the embedding."""
        ...

    def weights_dtype(self) -> str:
        """What is packed so far, the most bytes first, e.g. float32 or q4_k+q6_k."""
        ...

    def embed(self, weight: PackedWeight, token_ids: Tensor) -> Tensor:
        """int64 [num_tokens] -> [num_tokens, hidden]"""
        ...

    def linear(self, x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
        """[num_tokens, in_features] -> [num_tokens, out_features]"""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Over the last dimension."""
        ...

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Adds x to `residual` in place and returns the norm of the sum."""
        ...

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """[num_tokens, 2 * width] -> [num_tokens, width]"""
        ...

    def allocate_kv(self, shape: KVShape) -> KVStorage:
        """The whole pool, zeroed."""
        ...

    def begin_step(self, layout: StepLayout, kv: KVStorage) -> Any:
        """What `rotary_write_kv` and `attention` of every layer need of the step's layout.

        Returns an object that only this backend reads; valid until the next `begin_step`.
        """
        ...

    def rotary_write_kv(
        self, qk: Tensor, v: Tensor, angles: Angles, kv: KVStorage, layer: int, step: Any
    ) -> Tensor:
        """Turns queries and keys, writes keys and values to the pool.

        qk: [num_tokens, num_heads + num_kv_heads, head_dim], queries first;
        v: [num_tokens, num_kv_heads, head_dim] -> [num_tokens, num_heads, head_dim]
        """
        ...

    def attention(self, q: Tensor, kv: KVStorage, layer: int, scale: float, step: Any) -> Tensor:
        """[num_tokens, num_heads, head_dim] -> the same, causal, once K and V are written."""
        ...

    def copy_blocks(self, kv: KVStorage, sources: Tensor, destinations: Tensor) -> None:
        """Whole blocks in every layer, as if one after the other. int64 [num_copies] each."""
        ...

    def read_blocks(self, kv: KVStorage, block_ids: Tensor) -> Tensor:
        """A copy in logical shape: [num_layers, 2, n, block_size, num_kv_heads, head_dim]."""
        ...

    def fill_blocks(self, kv: KVStorage, block_ids: Tensor, value: float) -> None:
        """Sets every element of the blocks. For tests and scrubbing."""
        ...
