"""The GPU backend: Triton kernels over a pool of its own layout, dense weights, torch's matmul.

Runs on CPU tensors too where Triton's interpreter is on (TRITON_INTERPRET=1), which is how it is
tested on machines without a GPU.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor

from executor_service.kernels import attention, block_copy, cuda_kv, rms_norm, silu_mul
from executor_service.kernels.backend import Angles, KVShape, KVStorage, PackedWeight, StepLayout
from executor_service.kernels.cuda_kv import CudaKV
from executor_service.kernels.cuda_step import CudaStep, begin_step
from executor_service.kernels.decode_buffers import DecodeBuffers
from executor_service.kernels.kv_kind import KVKind, kind_of
from executor_service.kernels.launch_config import AMPERE, AttentionShape, attention_config
from executor_service.kernels.rotary_kv_write import rotary_kv_write
from executor_service.kernels.transfers import Upload, upload_now
from executor_service.kernels.weight_rows import EXACT_WEIGHTS, Rows, RowsHeader, WeightRule

# Triton reads it at each compilation. The default is about to change between its versions, and
# says so on every start; a product of a sum and a factor in one instruction is what is tested.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")


class CudaBackend:
    """`Backend` on one GPU, for models of one attention shape."""

    weight_rules = EXACT_WEIGHTS

    def __init__(
        self,
        device: torch.device,
        dtype: torch.dtype,
        shape: AttentionShape,
        arch: int,
        kv_kind: KVKind | None = None,
        upload: Upload | None = None,
    ) -> None:
        """kv_kind: None is that of `dtype`. upload: how steps send their columns, if not each in
        memory of its own."""
        self.device = device
        self.dtype = dtype
        self.kv_kind = kind_of(dtype) if kv_kind is None else kv_kind
        self._config = attention_config(shape, dtype, arch, self.kv_kind)
        self._upload = upload or partial(upload_now, device=device)

    def prepare_weight(self, rows: Sequence[Rows], rule: WeightRule) -> PackedWeight:
        weight = torch.cat(cast(list[Tensor], rows))
        return PackedWeight(weight.to(self.device, self.dtype))

    def prepare_embedding(self, rows: Rows) -> PackedWeight:
        return PackedWeight(cast(Tensor, rows).to(self.device, self.dtype).contiguous())

    def prepare_tied_head(self, embedding: PackedWeight) -> PackedWeight:
        return embedding

    def weight_bytes(self, weight: PackedWeight) -> int:
        return weight.numel() * weight.element_size()

    def packed_bytes(self, rows: Sequence[RowsHeader], rule: WeightRule) -> int:
        return self.dtype.itemsize * sum(part.num_elements for part in rows)

    def tied_head_bytes(self, embedding: RowsHeader) -> int:
        return 0

    def weights_dtype(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    def embed(self, weight: PackedWeight, token_ids: Tensor) -> Tensor:
        return weight.index_select(0, token_ids)

    def linear(self, x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
        return torch.nn.functional.linear(x, weight, bias)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return rms_norm.rms_norm(x, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        return rms_norm.add_rms_norm(x, residual, weight, eps)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return silu_mul.silu_mul(gate_up)

    def allocate_kv(self, shape: KVShape) -> KVStorage:
        return cast(KVStorage, cuda_kv.allocate(shape, self.kv_kind, self.device))

    def begin_step(self, layout: StepLayout, kv: KVStorage) -> CudaStep:
        return begin_step(layout, self._config, self._upload)

    def decode_buffers(self, num_rows: int, kv: KVStorage) -> DecodeBuffers:
        """Memory for a captured step of up to so many single tokens."""
        return DecodeBuffers(num_rows, cast(CudaKV, kv), self._config, self._upload)

    def rotary_write_kv(
        self,
        qk: Tensor,
        v: Tensor,
        angles: Angles,
        kv: KVStorage,
        layer: int,
        step: CudaStep,
    ) -> Tensor:
        pool = cuda_kv.of_layer(cast(CudaKV, kv), layer)
        coding = self._config.coding
        return rotary_kv_write(qk, v, angles.cos, angles.sin, pool, step.slots, coding)

    def attention(
        self, q: Tensor, kv: KVStorage, layer: int, scale: float, step: CudaStep
    ) -> Tensor:
        pool = cuda_kv.of_layer(cast(CudaKV, kv), layer)
        return attention.attention(q, pool, scale, step, self._config)

    def copy_blocks(self, kv: KVStorage, sources: Tensor, destinations: Tensor) -> None:
        for tensor in cast(CudaKV, kv).tensors:
            block_copy.copy_blocks(tensor, sources, destinations, self._upload)

    def read_blocks(self, kv: KVStorage, block_ids: Tensor) -> Tensor:
        return cuda_kv.read_blocks(cast(CudaKV, kv), block_ids.to(self.device))

    def fill_blocks(self, kv: KVStorage, block_ids: Tensor, value: float) -> None:
        cuda_kv.fill_blocks(cast(CudaKV, kv), block_ids.to(self.device), value)


def arch_of(device: torch.device) -> int:
    """The config table's key for a device; interpreted kernels take the oldest chip's."""
    if device.type != "cuda":
        return AMPERE
    major, minor = torch.cuda.get_device_capability(device)
    return major * 10 + minor
