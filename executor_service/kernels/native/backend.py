"""`Backend` over the C kernels, operation by operation.

Whole steps of the Llama-shaped family go through `step.py` instead and compute the same bits; what
is here serves everything else that runs over a backend, a model's logits among it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from executor_service.kernels.backend import Angles, KVShape, KVStorage, PackedWeight, StepLayout
from executor_service.kernels.kv_kind import KVKind, kind_of
from executor_service.kernels.native import kv as native_kv
from executor_service.kernels.native import weights
from executor_service.kernels.native.kv import NativeKV
from executor_service.kernels.native.library import Library
from executor_service.kernels.native.structs import Batch, Limits
from executor_service.kernels.native.weights import NativeWeight, WeightArena
from executor_service.kernels.weight_rows import (
    EXACT_WEIGHTS,
    Dequantized,
    Rows,
    RowsHeader,
    WeightKind,
    WeightRule,
    WeightRules,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeStep:
    """A step's layout as the kernels read it."""

    batch: Batch
    limits: Limits
    kept: tuple[Tensor, ...]
    """What the batch points into."""
    slots: Tensor


class NativeBackend:
    """`Backend` on `num_threads` of the host's cores. Not for several threads at once."""

    device = torch.device("cpu")
    dtype = torch.float32

    def __init__(
        self,
        library: Library,
        *,
        num_threads: int,
        kv_dtype: torch.dtype | None = None,
        weight_rules: WeightRules = EXACT_WEIGHTS,
    ) -> None:
        """`kv_dtype`: None is float32 beside float32 weights, else bfloat16."""
        self.weight_rules = weight_rules
        self._arena = WeightArena()
        self._kinds: Counter[WeightKind] = Counter()
        self.conversions: Counter[tuple[str, WeightKind]] = Counter()
        """How many weights of which stored kind were packed as another one."""
        self.library = library
        self.num_threads = num_threads
        self._kv_dtype = kv_dtype
        self._workspace = torch.empty(0, dtype=torch.uint8)

    @property
    def kv_dtype(self) -> torch.dtype:
        if self._kv_dtype is not None:
            return self._kv_dtype
        return torch.float32 if set(self._kinds) <= {WeightKind.FLOAT32} else torch.bfloat16

    @property
    def kv_kind(self) -> KVKind:
        return kind_of(self.kv_dtype)

    def prepare_weight(self, rows: Sequence[Rows], rule: WeightRule) -> PackedWeight:
        packed = weights.pack(self.library, self._arena, rows, rule)
        self._kinds.update(packed.bytes_by_kind)
        self.conversions.update(
            (part.stored_as, rule.kind_of(part)) for part in rows if isinstance(part, Dequantized)
        )
        return cast(PackedWeight, packed)

    def prepare_embedding(self, rows: Rows) -> PackedWeight:
        return self.prepare_weight([rows], self.weight_rules.embeddings)

    def prepare_tied_head(self, embedding: PackedWeight) -> PackedWeight:
        return embedding

    def weight_bytes(self, weight: PackedWeight) -> int:
        return sum(cast(NativeWeight, weight).bytes_by_kind.values())

    def packed_bytes(self, rows: Sequence[RowsHeader], rule: WeightRule) -> int:
        return weights.packed_bytes(self.library, rows, rule)

    def tied_head_bytes(self, embedding: RowsHeader) -> int:
        return 0

    def weights_dtype(self) -> str:
        return "+".join(kind.label for kind, _ in self._kinds.most_common())

    def embed(self, weight: PackedWeight, token_ids: Tensor) -> Tensor:
        packed = cast(NativeWeight, weight)
        y = torch.empty(len(token_ids), packed.in_features)
        self.library.call.oct_embed(
            packed.struct(None), token_ids.contiguous().data_ptr(), len(token_ids), y.data_ptr()
        )
        return y

    def linear(self, x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
        packed = cast(NativeWeight, weight)
        x = x.contiguous()
        y = torch.empty(x.shape[0], packed.out_features)
        struct = packed.struct(bias)
        self.library.call.oct_use_threads(self.num_threads)
        scratch = self._grown(self.library.call.oct_linear_scratch(struct, x.shape[0]))
        self.library.call.oct_linear(
            struct, x.data_ptr(), x.shape[0], y.data_ptr(), scratch.data_ptr()
        )
        return y

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        rows = _in_rows(x)
        y = torch.empty(x.shape)
        self.library.call.oct_rms_norm(
            rows.data_ptr(),
            rows.shape[0],
            rows.shape[1] if rows.dim() == 3 else 1,
            rows.stride(0),
            rows.shape[-1],
            weight.data_ptr(),
            eps,
            y.data_ptr(),
        )
        return y

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        x = x.contiguous()
        y = torch.empty(x.shape)
        self.library.call.oct_use_threads(self.num_threads)
        self.library.call.oct_add_rms_norm(
            x.data_ptr(),
            residual.data_ptr(),
            x.shape[0],
            x.shape[1],
            weight.data_ptr(),
            eps,
            y.data_ptr(),
        )
        return y

    def rotary(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        y = x.clone(memory_format=torch.contiguous_format)
        cos, sin = cos.contiguous(), sin.contiguous()
        self.library.call.oct_rotary(y.data_ptr(), *y.shape, cos.data_ptr(), sin.data_ptr())
        return y

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        gate_up = gate_up.contiguous()
        y = torch.empty(gate_up.shape[0], gate_up.shape[1] // 2)
        self.library.call.oct_use_threads(self.num_threads)
        self.library.call.oct_silu_mul(gate_up.data_ptr(), *y.shape, y.data_ptr())
        return y

    def allocate_kv(self, shape: KVShape) -> KVStorage:
        return cast(KVStorage, native_kv.allocate(self.library, shape, self.kv_dtype))

    def begin_step(self, layout: StepLayout, kv: KVStorage) -> NativeStep:
        starts, lengths = layout.starts.contiguous(), layout.lengths.contiguous()
        tables, slots = layout.block_tables.contiguous(), layout.slot_mapping.contiguous()
        num_chunks, num_tokens = len(starts), len(slots)
        return NativeStep(
            batch=Batch(
                num_chunks=num_chunks,
                num_tokens=num_tokens,
                table_width=tables.shape[1],
                starts=starts.data_ptr(),
                lengths=lengths.data_ptr(),
                block_tables=tables.data_ptr(),
            ),
            limits=Limits(
                max_tokens=num_tokens,
                max_chunks=num_chunks,
                max_rows=num_tokens,
                max_context=int((starts + lengths).max()),
                num_threads=self.num_threads,
            ),
            kept=(starts, lengths, tables),
            slots=slots,
        )

    def rotary_write_kv(
        self, qk: Tensor, v: Tensor, angles: Angles, kv: KVStorage, layer: int, step: NativeStep
    ) -> Tensor:
        q, k = self.rotary(qk, *angles).tensor_split([qk.shape[1] - v.shape[1]], dim=1)
        self.write_kv(kv, layer, k, v, step)
        return q

    def write_kv(self, kv: KVStorage, layer: int, k: Tensor, v: Tensor, step: NativeStep) -> None:
        k, v = _in_rows(k), _in_rows(v)
        if k.stride(0) != v.stride(0):
            k, v = k.contiguous(), v.contiguous()
        self.library.call.oct_write_kv(
            _native(kv).struct,
            layer,
            k.data_ptr(),
            v.data_ptr(),
            k.shape[0],
            k.stride(0),
            step.slots.data_ptr(),
        )

    def attention(
        self, q: Tensor, kv: KVStorage, layer: int, scale: float, step: NativeStep
    ) -> Tensor:
        q = _in_rows(q)
        out = torch.empty(q.shape)
        struct, heads, call = _native(kv).struct, q.shape[1], self.library.call
        workspace = self._grown(call.oct_attention_workspace(struct, heads, step.limits))
        call.oct_attention(
            struct,
            step.batch,
            step.limits,
            layer,
            heads,
            scale,
            q.data_ptr(),
            q.stride(0),
            out.data_ptr(),
            workspace.data_ptr(),
        )
        return out

    def copy_blocks(self, kv: KVStorage, sources: Tensor, destinations: Tensor) -> None:
        records = _native(kv).records
        for source, destination in zip(sources.tolist(), destinations.tolist(), strict=True):
            records[:, destination] = records[:, source]

    def read_blocks(self, kv: KVStorage, block_ids: Tensor) -> Tensor:
        return native_kv.read_blocks(_native(kv), block_ids)

    def fill_blocks(self, kv: KVStorage, block_ids: Tensor, value: float) -> None:
        native_kv.fill_blocks(_native(kv), block_ids, value)

    def _grown(self, num_bytes: int) -> Tensor:
        if self._workspace.numel() < num_bytes:
            self._workspace = torch.empty(num_bytes, dtype=torch.uint8)
        return self._workspace


def _native(kv: KVStorage) -> NativeKV:
    return cast(NativeKV, kv)


def _in_rows(x: Tensor) -> Tensor:
    """x itself if only its first dimension has a stride of its own, else a copy."""
    packed = x[0].is_contiguous() if len(x) else x.is_contiguous()
    return x if packed and x.dim() in (2, 3) else x.contiguous()
