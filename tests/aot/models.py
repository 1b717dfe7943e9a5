"""What kernels are compiled for: models, every head size with and without groups, pools."""

from __future__ import annotations

import dataclasses

import torch

from executor_service.kernels.kv_kind import KVKind
from tests.aot.launches import ModelWidths

MODELS = (
    ModelWidths(
        name="llama-3-8b bfloat16",
        dtype=torch.bfloat16,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        hidden_size=4096,
        intermediate_size=14336,
        vocab_size=128256,
        max_context=8192,
    ),
    ModelWidths(
        name="smollm2-135m float16",
        dtype=torch.float16,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        hidden_size=576,
        intermediate_size=1536,
        vocab_size=49152,
        max_context=8192,
    ),
    ModelWidths(
        name="smollm2-135m float32",
        dtype=torch.float32,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        hidden_size=576,
        intermediate_size=1536,
        vocab_size=49152,
        max_context=8192,
    ),
)

HEADS = (
    ModelWidths(
        name="heads of 80, bfloat16",
        dtype=torch.bfloat16,
        num_heads=32,
        num_kv_heads=32,
        head_dim=80,
        hidden_size=2560,
        intermediate_size=10240,
        vocab_size=51200,
        max_context=2048,
    ),
    ModelWidths(
        name="heads of 96, bfloat16",
        dtype=torch.bfloat16,
        num_heads=32,
        num_kv_heads=32,
        head_dim=96,
        hidden_size=3072,
        intermediate_size=8192,
        vocab_size=32064,
        max_context=131072,
    ),
    ModelWidths(
        name="heads of 256, bfloat16",
        dtype=torch.bfloat16,
        num_heads=8,
        num_kv_heads=4,
        head_dim=256,
        hidden_size=2304,
        intermediate_size=9216,
        vocab_size=256000,
        max_context=8192,
    ),
    ModelWidths(
        name="heads of 128, float32",
        dtype=torch.float32,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        hidden_size=4096,
        intermediate_size=14336,
        vocab_size=128256,
        max_context=8192,
    ),
    ModelWidths(
        name="heads of 256, float32",
        dtype=torch.float32,
        num_heads=8,
        num_kv_heads=4,
        head_dim=256,
        hidden_size=2304,
        intermediate_size=9216,
        vocab_size=256000,
        max_context=8192,
    ),
)
"""Compiled for their attention alone."""


def _variants() -> tuple[ModelWidths, ...]:
    """Every kind of pool beside both 16-bit dtypes, windows and caps, on the hardest shapes."""
    by_name = {model.name: model for model in (*MODELS, *HEADS)}
    bases = ("llama-3-8b bfloat16", "smollm2-135m float16", "heads of 80, bfloat16")
    pools = [
        dataclasses.replace(by_name[base], name=f"{base}, {kind.value} KV", kv_kind=kind)
        for base in (*bases, "heads of 256, bfloat16")
        for kind in (KVKind.FP8_E4M3, KVKind.INT8, KVKind.INT4)
    ]
    masks = [
        dataclasses.replace(by_name[base], name=f"{base}, {name}", **options)
        for base in ("llama-3-8b bfloat16", "heads of 256, bfloat16")
        for name, options in (
            ("window", {"window": 4096}),
            ("window and soft cap", {"window": 4096, "soft_cap": 50.0}),
            ("soft cap, int8 KV", {"soft_cap": 50.0, "kv_kind": KVKind.INT8}),
        )
    ]
    return (*pools, *masks)


VARIANTS = _variants()
"""Compiled for their attention alone."""
