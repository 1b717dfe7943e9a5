"""The CPU backend: float32, and the same bits for a token whatever is computed beside it.

Linears go through oneDNN's packed weights, whose result for a row does not depend on the number of
rows (plain `F.linear` changes kernels with it). Attention has its own file. Everything else is
elementwise or a reduction within one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from executor_service.kernels import cpu_kv
from executor_service.kernels.backend import Angles, KVShape, KVStorage, PackedWeight, StepLayout
from executor_service.kernels.cpu_attention import CpuAttention
from executor_service.kernels.cpu_step import CpuStep, begin_step
from executor_service.kernels.kv_kind import KVKind
from executor_service.kernels.weight_rows import EXACT_WEIGHTS, Rows, RowsHeader, WeightRule

_PACKS = torch.backends.mkldnn.is_available()
"""Without oneDNN weights stay as they are: slower, and rows may differ in their last bits."""
_MIN_ROWS = 2
"""A single row may take a matrix-vector kernel that sums in another order, so it comes twice."""


class CpuBackend:
    """`Backend` on the host's cores; thread count is torch's."""

    device = torch.device("cpu")
    dtype = torch.float32
    kv_kind = KVKind.FLOAT32
    weight_rules = EXACT_WEIGHTS

    def __init__(self) -> None:
        self._attention = CpuAttention()

    def prepare_weight(self, rows: Sequence[Rows], rule: WeightRule) -> PackedWeight:
        return _packed(torch.cat(cast(list[Tensor], rows)))

    def prepare_embedding(self, rows: Rows) -> PackedWeight:
        return PackedWeight(cast(Tensor, rows).contiguous())

    def prepare_tied_head(self, embedding: PackedWeight) -> PackedWeight:
        return _packed(embedding)

    def weight_bytes(self, weight: PackedWeight) -> int:
        return weight.numel() * weight.element_size()

    def packed_bytes(self, rows: Sequence[RowsHeader], rule: WeightRule) -> int:
        return self.dtype.itemsize * sum(part.num_elements for part in rows)

    def tied_head_bytes(self, embedding: RowsHeader) -> int:
        return self.packed_bytes([embedding], self.weight_rules.embeddings)

    def weights_dtype(self) -> str:
        return "float32"

    def embed(self, weight: PackedWeight, token_ids: Tensor) -> Tensor:
        return weight.index_select(0, token_ids)

    def linear(self, x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
        if not _PACKS:
            return torch.nn.functional.linear(x, weight, bias)
        rows = x.shape[0]
        if rows == 1:
            x = x.expand(_MIN_ROWS, -1)
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x.contiguous(), weight, bias, "none", [], "")
        return y[:rows]

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return torch.nn.functional.rms_norm(x, weight.shape, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        return self.rms_norm(residual.add_(x), weight, eps)

    def rotary(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        first, second = x[..., :half], x[..., half:]
        out = torch.empty(x.shape, dtype=x.dtype)
        torch.mul(first, cos, out=out[..., :half]).addcmul_(second, sin, value=-1)
        torch.mul(second, cos, out=out[..., half:]).addcmul_(first, sin)
        return out

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate).mul_(up)

    def allocate_kv(self, shape: KVShape) -> KVStorage:
        return KVStorage(cpu_kv.allocate(shape))

    def begin_step(self, layout: StepLayout, kv: KVStorage) -> CpuStep:
        return begin_step(layout, kv)

    def rotary_write_kv(
        self, qk: Tensor, v: Tensor, angles: Angles, kv: KVStorage, layer: int, step: CpuStep
    ) -> Tensor:
        q, k = self.rotary(qk, *angles).tensor_split([qk.shape[1] - v.shape[1]], dim=1)
        self.write_kv(kv, layer, k, v, step)
        return q

    def write_kv(self, kv: KVStorage, layer: int, k: Tensor, v: Tensor, step: CpuStep) -> None:
        write = step.write
        if write.fresh_rows is not None:
            cpu_kv.block_rows(kv, layer).index_fill_(0, write.fresh_rows, 0.0)
        source = torch.stack((k, v), dim=1).view(-1, k.shape[-1])
        cpu_kv.slot_rows(kv, layer).index_copy_(0, write.rows, source)

    def attention(
        self, q: Tensor, kv: KVStorage, layer: int, scale: float, step: CpuStep
    ) -> Tensor:
        return self._attention.run(q, kv, layer, scale, step)

    def copy_blocks(self, kv: KVStorage, sources: Tensor, destinations: Tensor) -> None:
        for source, destination in zip(sources.tolist(), destinations.tolist(), strict=True):
            kv[:, :, destination] = kv[:, :, source]

    def read_blocks(self, kv: KVStorage, block_ids: Tensor) -> Tensor:
        return kv[:, :, block_ids].transpose(3, 4).contiguous()

    def fill_blocks(self, kv: KVStorage, block_ids: Tensor, value: float) -> None:
        kv[:, :, block_ids] = value


def _packed(weight: Tensor) -> PackedWeight:
    if not _PACKS:
        return PackedWeight(weight)
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    return PackedWeight(packed)
