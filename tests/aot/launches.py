"""Which kernels the GPU backend launches, and with what: recorded from the backend itself.

The backend runs its operations on small CPU tensors of a model's widths while the launch is
replaced by a note. So what is compiled here is what the product compiles, its constants too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import triton

from executor_service.kernels.backend import Angles, KVShape, KVStorage, StepLayout
from executor_service.kernels.cuda import CudaBackend
from executor_service.kernels.kv_kind import KVKind
from executor_service.kernels.launch_config import AttentionShape
from executor_service.kernels.logit_adjust import Adjustments, adjust_logits
from executor_service.kernels.token_draw import DrawColumns, draw_tokens

BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelWidths:
    """One kind of model to compile for."""

    name: str
    dtype: torch.dtype
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    max_context: int
    kv_kind: KVKind | None = None
    """None: that of dtype"""
    window: int | None = None
    soft_cap: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    kernel: Any
    """triton's JITFunction"""
    arguments: dict[str, Any]
    options: dict[str, int]

    @property
    def name(self) -> str:
        """The kernel's, and what work it is compiled for where there are several kinds."""
        work = self.arguments.get("WORK")
        return str(self.kernel.__name__) + (f" of {work}" if work else "")


def launches(model: ModelWidths, arch: int) -> list[Launch]:
    """Every launch of steps of a chunk, of a single token and of both, a copy and two draws."""
    recorded = attention_launches(model, arch)
    with _recorded(recorded):
        _elementwise(model, arch)
        _sample(model)
    return recorded


def attention_launches(model: ModelWidths, arch: int) -> list[Launch]:
    """Those whose code depends on heads alone."""
    recorded: list[Launch] = []
    with _recorded(recorded):
        _attend(model, arch)
    return recorded


@contextmanager
def _recorded(into: list[Launch]) -> Iterator[None]:
    def note(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        names = set(kernel.arg_names)
        options = {name: value for name, value in kwargs.items() if name not in names}
        named = {name: value for name, value in kwargs.items() if name in names}
        arguments = {**dict(zip(kernel.arg_names, args, strict=False)), **named}
        into.append(Launch(kernel=kernel, arguments=arguments, options=options))

    with mock.patch.object(triton.runtime.jit.JITFunction, "run", note):
        yield


def _backend(model: ModelWidths, arch: int) -> CudaBackend:
    shape = AttentionShape(
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        max_context=model.max_context,
        window=model.window,
        soft_cap=model.soft_cap,
    )
    return CudaBackend(torch.device("cpu"), model.dtype, shape, arch, model.kv_kind)


def _attend(model: ModelWidths, arch: int) -> None:
    backend = _backend(model, arch)
    shape = KVShape(
        num_layers=2,
        num_blocks=8,
        block_size=BLOCK_SIZE,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
    )
    kv = backend.allocate_kv(shape)
    for lengths in ([15, 1], [1, 1], [15, 2]):
        _step(model, backend, kv, lengths)
    backend.copy_blocks(kv, torch.tensor([0]), torch.tensor([1]))


def _step(model: ModelWidths, backend: CudaBackend, kv: KVStorage, lengths: list[int]) -> None:
    """Two chunks, the first at the start of its sequence."""
    num_tokens = sum(lengths)
    layout = StepLayout(
        starts=torch.tensor([0, 7], dtype=torch.int32),
        lengths=torch.tensor(lengths, dtype=torch.int32),
        block_tables=torch.tensor([[0], [1]], dtype=torch.int32),
        slot_mapping=torch.arange(num_tokens),
    )
    heads = model.num_heads + 2 * model.num_kv_heads
    qkv = torch.zeros(num_tokens, heads, model.head_dim, dtype=model.dtype)
    qk, v = qkv.split([model.num_heads + model.num_kv_heads, model.num_kv_heads], dim=1)
    zeros = torch.zeros(num_tokens, model.head_dim // 2)
    step = backend.begin_step(layout, kv)
    q = backend.rotary_write_kv(qk, v, Angles(zeros, zeros), kv, 1, step)
    backend.attention(q, kv, 1, model.head_dim**-0.5, step)


def _elementwise(model: ModelWidths, arch: int) -> None:
    backend = _backend(model, arch)
    x = torch.zeros(16, model.hidden_size, dtype=model.dtype)
    weight = torch.zeros(model.hidden_size, dtype=model.dtype)
    backend.add_rms_norm(x, x.clone(), weight, 1e-5)
    heads = torch.zeros(16, model.num_heads, model.head_dim, dtype=model.dtype)
    backend.rms_norm(heads, weight[: model.head_dim].clone(), 1e-5)
    backend.silu_mul(torch.zeros(16, 2 * model.intermediate_size, dtype=model.dtype))


def _sample(model: ModelWidths) -> None:
    logits = torch.zeros(2, model.vocab_size)
    ints, floats = torch.zeros(4, dtype=torch.int32), torch.zeros(4)
    adjust_logits(
        logits,
        Adjustments(
            bias_ends=ints,
            bias_tokens=ints,
            bias_values=floats,
            seen_ends=ints,
            seen_tokens=ints,
            seen_counts=ints,
            drawn=ints,
            sources=ints,
            banned_ends=ints,
            banned_tokens=ints,
            repetition=floats,
            presence=floats,
            frequency=floats,
        ),
    )
    draw_tokens(
        logits,
        DrawColumns(
            temperatures=floats,
            top_k=ints,
            top_p=floats.double(),
            min_p=floats,
            seeds=ints.long(),
            positions=ints,
            indexes=ints,
        ),
    )
