"""Arithmetic of memory and speed: what a model's weights and KV take, and what bounds a step."""

from __future__ import annotations

import math
from dataclasses import dataclass

KIB = 1024
MIB = 1024**2
GIB = 1024**3

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}

KV_CACHE_DTYPES = (*DTYPE_BYTES, "fp8", "fp8_e4m3", "int8", "int4")
"""What --kv-cache-dtype takes beside auto; fp8 is another name of fp8_e4m3."""
_INT8_SCALE_BYTES = 4
"""For one head's keys or values of one token."""
_INT4_GROUP = 32
_INT4_GROUP_BYTES = 4
"""Scale and offset of so many dimensions of a head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Peak figures of one device."""

    flops: float
    """Floating-point operations per second at the weights' dtype."""
    bandwidth: float
    """Bytes per second of device memory."""

    @property
    def ridge_point(self) -> float:
        """FLOP per byte above which compute, not memory, is the bound."""
        return self.flops / self.bandwidth


A100 = Device(flops=312e12, bandwidth=2e12)


def size_text(num_bytes: float) -> str:
    """For people, in the largest unit of which, rounded, there is one: 96.3 MiB, 1.56 GiB."""
    if round(num_bytes) < KIB:
        return f"{num_bytes:.0f} bytes"
    count, unit = num_bytes / KIB, "KiB"
    for larger in ("MiB", "GiB"):
        if round(count, 1) >= 1024:
            count, unit = count / 1024, larger
    return f"{count:.2f} {unit}" if round(count, 2) < 10 else f"{count:.1f} {unit}"


def larger_size_text(num_bytes: float, limit_bytes: float) -> str:
    """Of a size above the limit; by how much, where both would read the same."""
    text, excess = size_text(num_bytes), math.ceil(num_bytes - limit_bytes)
    if excess <= 0 or text != size_text(limit_bytes):
        return text
    return f"{size_text(excess)} more than {text}"


def kv_element_bytes(dtype: str, head_dim: int) -> float:
    """One of KV_CACHE_DTYPES with its share of the scales beside it."""
    if dtype in DTYPE_BYTES:
        return DTYPE_BYTES[dtype]
    if dtype == "int8":
        return 1 + _INT8_SCALE_BYTES / head_dim
    if dtype == "int4":
        return 0.5 + _INT4_GROUP_BYTES * -(-head_dim // _INT4_GROUP) / head_dim
    return 1


def kv_bytes_per_token(
    *, num_layers: int, num_kv_heads: int, head_dim: int, element_bytes: float
) -> float:
    """Keys and values of one token in all layers; `element_bytes` is below 1 for 4-bit KV."""
    return 2 * num_layers * num_kv_heads * head_dim * element_bytes


def block_bytes(
    *, block_size: int, num_layers: int, num_kv_heads: int, head_dim: int, element_bytes: float
) -> int:
    """One KV block in all layers, as the pool allocates it."""
    return round(
        block_size
        * kv_bytes_per_token(
            num_layers=num_layers,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            element_bytes=element_bytes,
        )
    )


def num_blocks_that_fit(memory_bytes: float, bytes_per_block: float) -> int:
    """Whole blocks in the memory; 0 if not even one fits."""
    return max(0, int(memory_bytes // bytes_per_block))


def num_tokens_that_fit(memory_bytes: float, bytes_per_token: float) -> int:
    return max(0, int(memory_bytes // bytes_per_token))


def num_sequences_that_fit(num_tokens: int, tokens_per_sequence: int) -> int:
    return num_tokens // tokens_per_sequence


def blocks_of(num_tokens: int, block_size: int) -> int:
    """Blocks that hold `num_tokens`."""
    return -(-num_tokens // block_size)


def compute_seconds(*, num_parameters: float, num_tokens: int, device: Device) -> float:
    """Time of the arithmetic of a step: 2 FLOP per parameter and token."""
    return 2 * num_parameters * num_tokens / device.flops


def read_seconds(*, num_bytes: float, device: Device) -> float:
    """Time to read weights (and KV) once, as each decode step must."""
    return num_bytes / device.bandwidth


def step_seconds(
    *,
    num_parameters: float,
    weight_bytes: float,
    num_tokens: int,
    kv_bytes_read: float,
    device: Device,
) -> float:
    """The roofline's lower bound of a step: the longer of computing and reading."""
    return max(
        compute_seconds(num_parameters=num_parameters, num_tokens=num_tokens, device=device),
        read_seconds(num_bytes=weight_bytes + kv_bytes_read, device=device),
    )
