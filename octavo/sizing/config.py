"""Flags of `octavo size`."""

from __future__ import annotations

from dataclasses import dataclass

from common.config import option
from common.errors import ConfigError
from common.kv_size import DTYPE_BYTES, KV_CACHE_DTYPES
from executor_service.config import check_dtypes
from octavo.sizing.card import CARDS, CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeConfig:
    model: str | None = option(
        None, help="config.json or a directory with it, a GGUF file, or the alias smollm2-135m"
    )
    layers: int | None = option(None, help="layers of the model; auto: the model's")
    kv_heads: int | None = option(None, help="KV heads per layer; auto: the model's")
    head_dim: int | None = option(None, help="elements per head; auto: the model's")
    params: float | None = option(None, help="parameters, e.g. 7e9; auto: the model's")
    dtype: str = option(
        "auto",
        choices=("auto", *DTYPE_BYTES),
        help="of weights; auto: bfloat16; on the CPU as a GGUF file stores them, else float32",
    )
    kv_cache_dtype: str = option(
        "auto", choices=("auto", *KV_CACHE_DTYPES), help="of the KV cache; auto: as `up` takes it"
    )
    device: str = option(
        "a100", choices=(*CARDS, CPU), help="whose figures to take; cpu: this machine's free memory"
    )
    memory_bytes: int | None = option(
        None, flag="--memory", help="memory, e.g. 80GiB; auto: the device's"
    )
    flops: float | None = option(None, help="FLOP per second, e.g. 312e12; auto: the device's")
    bandwidth: float | None = option(
        None, help="bytes per second of memory, e.g. 2e12; auto: the device's"
    )
    gpu_memory_utilization: float = option(
        0.9, help="share of a GPU's memory that weights and KV cache may take together"
    )
    block_size: int = option(16, help="token slots per KV block")
    length: int = option(4096, help="tokens of a request, outputs included")

    def __post_init__(self) -> None:
        check_dtypes(self.device, self.dtype, self.kv_cache_dtype)
        names = ("layers", "kv_heads", "head_dim", "params", "flops", "bandwidth")
        for name in (*names, "block_size", "length"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"--{name.replace('_', '-')} must be above 0, not {value}")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ConfigError("--gpu-memory-utilization must be above 0 and at most 1")
        if self.device == CPU and (self.flops is None) != (self.bandwidth is None):
            raise ConfigError("--device cpu: its speed takes both --flops and --bandwidth")
