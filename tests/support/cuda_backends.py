"""The GPU backend for a test's device, which may be the CPU under Triton's interpreter."""

from __future__ import annotations

import torch

from executor_service.kernels.cuda import CudaBackend, arch_of
from executor_service.kernels.kv_kind import KVKind
from executor_service.kernels.launch_config import AttentionShape

TOLERANCES = {torch.float32: 4e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}
"""Of values of magnitude 1 to 4, against float64 over the same rounded inputs."""


def make_backend(
    device: torch.device,
    dtype: torch.dtype,
    *,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 64,
    max_context: int = 1024,
    kv_kind: KVKind | None = None,
    arch: int | None = None,
    window: int | None = None,
    soft_cap: float | None = None,
) -> CudaBackend:
    """arch: None is the device's."""
    shape = AttentionShape(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_context=max_context,
        window=window,
        soft_cap=soft_cap,
    )
    return CudaBackend(device, dtype, shape, arch or arch_of(device), kv_kind)
