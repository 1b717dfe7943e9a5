"""What an executor found out about itself at start."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorSpec:
    fingerprint: str
    """Of model and tokenizer: equal for executors that may stand in for each other."""
    model_name: str
    block_size: int
    num_blocks: int
    max_rows: int
    """Sequences that one stream may have open."""
    max_chunks: int
    """Of one step."""
    max_model_len: int
    max_num_batched_tokens: int
    vocab_size: int
    kv_bytes_per_token: int
    dtype: str
    kv_cache_dtype: str
    device: str
    weights_bytes: int
    kv_bytes: int
