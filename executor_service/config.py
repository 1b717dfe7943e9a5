"""Flags of one executor process."""

from __future__ import annotations

from dataclasses import dataclass

from common import log
from common.config import option
from common.errors import ConfigError
from common.kv_size import KV_CACHE_DTYPES

MAX_TOKENS, MAX_SEQS = 1 << 24, 1 << 20
"""Of a step: native code counts in 32 bits."""
CPU_DTYPES = ("auto", "float32")
"""The CPU computes in float32, whatever weights are stored as."""
CPU_KV_CACHE_DTYPES = ("auto", "float32", "bfloat16", "float16", "int8")
"""All but auto are torch's names."""

OTHER_VARIABLES = frozenset({"OCTAVO_NATIVE", "OCTAVO_CACHE_DIR", "OCTAVO_MODELS"})
"""That are no flags: `kernels/native/build.py` reads them, and the last one docker-compose.yml."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorConfig:
    """What the operator chooses. What is found out at start lives in `ExecutorSpec`."""

    model: str = option(
        "smollm2-135m",
        help="directory of safetensors, GGUF file, hub name, or the built-in alias smollm2-135m",
    )
    revision: str | None = option(None, help="branch, tag or commit of a hub name")
    served_model_name: str | None = option(None, help="name that clients use; the model's if unset")
    host: str = option("127.0.0.1", help="address to serve gRPC on; 0.0.0.0 for every interface")
    port: int = option(50051, help="port of the Executor service; 0 takes a free one")
    metrics_port: int | None = option(None, help="port of HTTP /metrics; unset: not served")

    dtype: str = option(
        "auto",
        choices=("auto", "float32", "float16", "bfloat16"),
        help="of weights and activations; float32 dequantizes a GGUF file",
    )
    quantization: str = option(
        "auto",
        choices=("auto", "none", "int8", "q4_0", "q4_1", "q8_0", "q4_k", "q6_k"),
        help="of weights on the CPU; auto: as the file stores them or int8, none: float32",
    )
    kv_cache_dtype: str = option(
        "auto",
        choices=("auto", *KV_CACHE_DTYPES),
        help="of the KV pool; auto on the CPU: bfloat16 beside quantized weights, else float32; "
        "on a GPU: as --dtype. fp8 and int4 are the GPU's alone",
    )
    device: str = option(
        "cpu", choices=("cpu", "cuda"), help="cuda: the first visible NVIDIA GPU, by Triton kernels"
    )
    threads: int | None = option(
        None,
        help="compute threads of one executor; auto: cores / --num-executors, all cores where it is"
        " started by itself",
    )

    block_size: int = option(16, help="token slots per KV block")
    num_blocks: int | None = option(
        None,
        help="blocks in the KV pool, whatever --kv-cache-memory-bytes says; "
        "auto: what memory allows",
    )
    kv_cache_memory_bytes: int | None = option(
        None, help="memory of the KV pool, e.g. 2GiB; auto: a share of what is free"
    )
    gpu_memory_utilization: float = option(
        0.9, help="share of device memory that weights, activations and pool may take together"
    )
    max_num_seqs: int = option(
        256, help="sequences in one step; a stream's memory has two rows for each"
    )
    max_num_batched_tokens: int = option(2048, help="tokens in one step")
    max_model_len: int | None = option(
        None, help="most tokens of a prompt with its outputs; auto: the model's limit"
    )

    shutdown_timeout: float = option(
        20.0, help="seconds that SIGTERM leaves the owner's stream to end"
    )
    log_level: str = option("info", choices=log.LEVELS, help="least level to log")
    log_format: str = option("text", choices=log.FORMATS, help="of log lines")
    status_fd: int | None = option(None, help="pipe to report status on; set by a parent process")
    parent_fd: int | None = option(None, help="pipe that ends with the parent; set by it")

    def __post_init__(self) -> None:
        at_least_one = ("block_size", "max_num_seqs", "max_num_batched_tokens")
        optional = ("num_blocks", "kv_cache_memory_bytes", "max_model_len", "threads")
        for name in (*at_least_one, *optional):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"--{name.replace('_', '-')} must be at least 1, not {value}")
        for name, most in (("max_num_batched_tokens", MAX_TOKENS), ("max_num_seqs", MAX_SEQS)):
            if getattr(self, name) > most:
                raise ConfigError(f"--{name.replace('_', '-')} must be at most {most}")
        self._check_quantization()
        check_dtypes(self.device, self.dtype, self.kv_cache_dtype)
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ConfigError("--gpu-memory-utilization must be above 0 and at most 1")
        for name in ("port", "metrics_port"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < 65536:
                raise ConfigError(f"--{name.replace('_', '-')} must be below 65536, not {value}")
        if self.shutdown_timeout < 0:
            raise ConfigError("--shutdown-timeout must not be negative")

    def _check_quantization(self) -> None:
        if self.quantization in ("auto", "none"):
            return
        flag = f"--quantization {self.quantization}"
        if self.dtype != "auto":
            raise ConfigError(f"{flag} and --dtype {self.dtype} contradict each other")
        if self.device != "cpu":
            raise ConfigError(f"{flag}: --device {self.device} has no quantized weights")


def check_dtypes(device: str, dtype: str, kv_cache_dtype: str) -> None:
    """ConfigError, naming the flag, for what the device does not have."""
    if device != "cpu":
        return
    if dtype not in CPU_DTYPES:
        raise ConfigError(
            f"--dtype {dtype}: the CPU computes in float32; use {' or '.join(CPU_DTYPES)}, or"
            " --device cuda (--quantization int8 makes weights small on the CPU)"
        )
    if kv_cache_dtype not in CPU_KV_CACHE_DTYPES:
        raise ConfigError(
            f"--kv-cache-dtype {kv_cache_dtype}: the CPU has {', '.join(CPU_KV_CACHE_DTYPES)};"
            " --device cuda has it"
        )
