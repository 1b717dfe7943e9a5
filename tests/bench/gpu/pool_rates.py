"""What reads and writes the KV pool, by the pool's kind: attention of decodes, writes, copies."""

from __future__ import annotations

import dataclasses

import torch

from executor_service.kernels.block_copy import copy_at_once
from executor_service.kernels.kv_kind import KVKind, kind_of
from executor_service.kernels.merge_splits import allocate_splits, merge_splits
from tests.bench.gpu.kernel_rates import num_tokens
from tests.bench.gpu.paged_inputs import BLOCK_SIZE, paged_inputs
from tests.bench.gpu.rates import Rates

_QUANTIZED = (KVKind.FP8_E4M3, KVKind.INT8, KVKind.INT4)
_WIDE_HEAD = 128


def measure(rates: Rates) -> None:
    kinds = (kind_of(rates.card.dtype), *_QUANTIZED)
    _copy(rates)
    _merge(rates)
    _window(rates)
    for kind in kinds:
        _write(rates, kind)
    wide = dataclasses.replace(rates.shape, head_dim=_WIDE_HEAD)
    for some in (rates, rates.at(wide)):
        for kind in kinds:
            _decode(some, kind)


def _copy(rates: Rates) -> None:
    """Half of a pool's blocks onto the other half."""
    pairs = 4096 if rates.card.is_gpu else 2
    inputs = paged_inputs(rates.card, rates.shape, [(2 * pairs * BLOCK_SIZE - 1, 1)])
    pool = inputs.kv.codes
    blocks = torch.arange(2 * pairs, device=rates.card.device)
    num_bytes = 2 * pairs * BLOCK_SIZE * inputs.slot_bytes
    rates.moves(
        f"block copy, {pairs} blocks",
        num_bytes,
        lambda: copy_at_once(pool, blocks[:pairs], blocks[pairs:]),
    )


def _merge(rates: Rates) -> None:
    decodes, context = (128, 8192) if rates.card.is_gpu else (2, 300)
    inputs = paged_inputs(rates.card, rates.shape, [(context - 1, 1)] * decodes)
    config, step = inputs.config, inputs.step
    splits = allocate_splits(decodes, config, rates.card.device)
    for part in splits:
        part.normal_()
    out = torch.empty_like(inputs.q.contiguous())
    share = -(-context // config.split_slots) / config.max_splits
    num_bytes = share * sum(part.nbytes for part in splits) + out.nbytes
    rates.moves(
        f"merge of splits, {decodes} x {context}",
        num_bytes,
        lambda: merge_splits(splits, step.chunks, step.decodes, config, out),
    )


def _window(rates: Rates) -> None:
    decodes, context, window = (32, 8192, 1024) if rates.card.is_gpu else (2, 40, 20)
    chunks = [(context - 1, 1)] * decodes
    inputs = paged_inputs(rates.card, rates.shape, chunks, window=window)
    num_bytes = decodes * window * inputs.slot_bytes + 2 * inputs.q.nbytes
    case = f"decode attention, {decodes} x {context}, window of {window}"
    rates.moves(case, num_bytes, inputs.attend)


def _write(rates: Rates, kind: KVKind) -> None:
    chunks = [(0, num_tokens(rates) // 4)] * 4
    inputs = paged_inputs(rates.card, rates.shape, chunks, kind=kind)
    case = f"rotary and KV write, {kind.value}"
    rates.moves(case, inputs.rotary_write_bytes, inputs.rotary_write)


def _decode(rates: Rates, kind: KVKind) -> None:
    decodes, context = (32, 2048) if rates.card.is_gpu else (2, 20)
    inputs = paged_inputs(rates.card, rates.shape, [(context - 1, 1)] * decodes, kind=kind)
    num_bytes = decodes * context * inputs.slot_bytes + 2 * inputs.q.nbytes
    size = f"heads of {rates.shape.head_dim}"
    case = f"decode attention, {decodes} x {context}, {size}, {kind.value}"
    rates.moves(case, num_bytes, inputs.attend)
