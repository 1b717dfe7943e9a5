# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Changes logits before temperature: bias, penalties by history, masked ends.

The lists of a row are short beside the vocabulary, so they are made on the host and only the logits
they name are touched. The host does not know a row's last token while the step that draws it runs:
the kernel takes that one from where it was drawn.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

_ENTRIES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjustments:
    """Three lists for each row, one row's after another's; no list names a token twice."""

    bias_ends: Tensor
    """[num_rows + 1] int32: row i has [ends[i], ends[i + 1]) of the list"""
    bias_tokens: Tensor
    """int32"""
    bias_values: Tensor
    """float32"""
    seen_ends: Tensor
    seen_tokens: Tensor
    """int32, distinct tokens of prompt and outputs"""
    seen_counts: Tensor
    """int32, how often each is among the outputs"""
    drawn: Tensor
    """[num_draws] int32, the tokens of the step before"""
    sources: Tensor
    """[num_rows] int32, which of them is one output more than the lists know of; -1: none"""
    banned_ends: Tensor
    banned_tokens: Tensor
    """int32, what may not be sampled"""
    repetition: Tensor
    """[num_rows] float32, 1 for none"""
    presence: Tensor
    """[num_rows] float32"""
    frequency: Tensor
    """[num_rows] float32"""


@triton.jit
def _penalized(logits, counts, repetition, presence, frequency):
    """counts: fp32, how often each token is among the outputs."""
    logits = tl.where(logits > 0, tl.div_rn(logits, repetition), logits * repetition)
    return tl.where(counts > 0, logits - presence - frequency * counts, logits)


@triton.jit
def logit_adjust_kernel(
    logits_ptr,  # [num_rows, vocab_size] fp32, dense, changed in place
    bias_ends_ptr,  # [num_rows + 1] int32
    bias_tokens_ptr,  # [num_biases] int32
    bias_values_ptr,  # [num_biases] fp32
    seen_ends_ptr,  # [num_rows + 1] int32
    seen_tokens_ptr,  # [num_seen] int32
    seen_counts_ptr,  # [num_seen] int32
    drawn_ptr,  # [num_draws] int32
    sources_ptr,  # [num_rows] int32
    banned_ends_ptr,  # [num_rows + 1] int32
    banned_tokens_ptr,  # [num_banned] int32
    repetition_ptr,  # [num_rows] fp32
    presence_ptr,  # [num_rows] fp32
    frequency_ptr,  # [num_rows] fp32
    vocab_size,
    ENTRIES: tl.constexpr,
):
    """Equals `executor_service.runner.penalties.adjust`, bit by bit.

    Grid: (num_rows,). Masks: entries past a row's list. Computes in fp32. The lists may name the
    same token, so all of one is written before the next is read. The token of `sources` counts once
    more where the list has it, and else is penalized behind the list.
    """
    row = tl.program_id(0)
    row_ptr = logits_ptr + row.to(tl.int64) * vocab_size
    entries = tl.arange(0, ENTRIES)

    end = tl.load(bias_ends_ptr + row + 1)
    for first in range(tl.load(bias_ends_ptr + row), end, ENTRIES):
        there = first + entries < end
        tokens = tl.load(bias_tokens_ptr + first + entries, mask=there, other=0)
        bias = tl.load(bias_values_ptr + first + entries, mask=there, other=0.0)
        logits = tl.load(row_ptr + tokens, mask=there, other=0.0)
        tl.store(row_ptr + tokens, logits + bias, mask=there)
    tl.debug_barrier()

    repetition = tl.load(repetition_ptr + row)
    presence = tl.load(presence_ptr + row)
    frequency = tl.load(frequency_ptr + row)
    source = tl.load(sources_ptr + row)
    last = tl.load(drawn_ptr + source, mask=source >= 0, other=-1)
    matches = tl.zeros([ENTRIES], tl.int32)
    end = tl.load(seen_ends_ptr + row + 1)
    for first in range(tl.load(seen_ends_ptr + row), end, ENTRIES):
        there = first + entries < end
        tokens = tl.load(seen_tokens_ptr + first + entries, mask=there, other=0)
        counts = tl.load(seen_counts_ptr + first + entries, mask=there, other=0)
        again = (there & (tokens == last)).to(tl.int32)
        matches += again
        counts = (counts + again).to(tl.float32)
        logits = tl.load(row_ptr + tokens, mask=there, other=0.0)
        logits = _penalized(logits, counts, repetition, presence, frequency)
        tl.store(row_ptr + tokens, logits, mask=there)
    is_new = (last >= 0) & (tl.sum(matches, axis=0) == 0)
    logit = tl.load(row_ptr + last, mask=is_new, other=0.0)
    logit = _penalized(logit, 1.0, repetition, presence, frequency)
    tl.store(row_ptr + last, logit, mask=is_new)
    tl.debug_barrier()

    end = tl.load(banned_ends_ptr + row + 1)
    for first in range(tl.load(banned_ends_ptr + row), end, ENTRIES):
        there = first + entries < end
        tokens = tl.load(banned_tokens_ptr + first + entries, mask=there, other=0)
        tl.store(row_ptr + tokens, tl.full([ENTRIES], float("-inf"), tl.float32), mask=there)


def adjust_logits(logits: Tensor, adjustments: Adjustments) -> None:
    """In place. logits: [num_rows, vocab_size] float32, contiguous."""
    num_rows, vocab_size = logits.shape
    logit_adjust_kernel[(num_rows,)](
        logits,
        adjustments.bias_ends,
        adjustments.bias_tokens,
        adjustments.bias_values,
        adjustments.seen_ends,
        adjustments.seen_tokens,
        adjustments.seen_counts,
        adjustments.drawn,
        adjustments.sources,
        adjustments.banned_ends,
        adjustments.banned_tokens,
        adjustments.repetition,
        adjustments.presence,
        adjustments.frequency,
        vocab_size,
        ENTRIES=_ENTRIES,
        num_warps=4,
        # The host rounds the product of frequency and count before it is taken away.
        enable_fp_fusion=False,
    )
