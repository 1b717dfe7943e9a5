"""How much of a GPU's memory the KV pool may take: what is left beside the steps themselves.

What a step takes is measured, not estimated: the largest one is run before the pool is sized.
`CudaMeter` has been run on no GPU yet; the rule is tested with a meter that is told its figures.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch

from common.errors import ConfigError
from common.kv_size import MIB, size_text

RESERVE_BYTES = 256 * MIB
"""For what no trial shows: the allocator's rounding, kernels that are compiled later, logprobs of
prompts, and 8 bytes for each distinct token of each history that a penalty reads."""


class Memory(NamedTuple):
    """Bytes."""

    free: int
    total: int


class StepNeeds(NamedTuple):
    """Bytes, beside weights and pool."""

    step: int
    """At the peak of the largest step."""
    graphs: int
    """Of all captured graphs, for good."""


class MemoryMeter(Protocol):
    """What a device's memory is taken by."""

    def read(self) -> Memory:
        """What nobody holds, torch's own cache given back first, and what there is."""
        ...

    def peak_of(self, run: Callable[[], object]) -> int:
        """The most bytes that tensors took while it ran, above what they took before."""
        ...


class CudaMeter:
    """`MemoryMeter` of one GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def read(self) -> Memory:
        gc.collect()
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        return Memory(*torch.cuda.mem_get_info(self._device))

    def peak_of(self, run: Callable[[], object]) -> int:
        torch.cuda.synchronize(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_allocated(self._device)
        run()
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_allocated(self._device) - before


def pool_bytes(utilization: float, needs: StepNeeds, memory: Memory) -> int:
    """What is free, less what is to be left alone and what steps and graphs take.

    `memory` as it is once weights are loaded and a trial has been run and dropped: what the trial
    left behind (code of kernels, workspaces) is gone from it. Raises ConfigError if that leaves
    nothing.
    """
    left_alone = round((1 - utilization) * memory.total)
    kept = left_alone + needs.step + needs.graphs + RESERVE_BYTES
    if kept >= memory.free:
        raise ConfigError(
            f"{size_text(memory.free)} of the GPU are free beside the weights; "
            f"--gpu-memory-utilization leaves {size_text(left_alone)} alone, the largest step "
            f"(--max-num-batched-tokens, --max-num-seqs) took {size_text(needs.step)} and "
            f"graphs take {size_text(needs.graphs)}: nothing is left for the KV pool"
        )
    return memory.free - kept
