"""Forward passes: steps of single tokens replay a captured graph, others go kernel by kernel.

A decode step is hundreds of short launches, which the host issues more slowly than the chip runs
them. A CUDA graph holds the launches of one forward pass over buffers that never move; there is one
for each of a few batch sizes, and a step takes the least that holds it, its other rows filled up
with a token in the pool's spare block. Sampling is never inside.

`CudaCapture` has been run on no GPU yet. Everything around it is tested with a capture that
records the computation and runs it again on replay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from executor_service.kernels.backend import Backend, KVStorage
from executor_service.kernels.decode_buffers import DecodeBuffers
from executor_service.models.llama import LlamaModel
from executor_service.runner.batch import InputBatch

_MAX_ROWS = 512
_WARM_UP_RUNS = 2


class Captured(Protocol):
    """A computation that can be run again. Its output lies in `output` after each run."""

    @property
    def output(self) -> Tensor: ...

    def replay(self) -> None: ...


class Capture(Protocol):
    """Turns a computation over fixed buffers into one that is run again as a whole."""

    def __call__(self, compute: Callable[[], Tensor]) -> Captured: ...


class GraphBackend(Backend, Protocol):
    """A backend with steps in fixed memory."""

    def decode_buffers(self, num_rows: int, kv: KVStorage) -> DecodeBuffers: ...


def bucket_sizes(max_chunks: int) -> list[int]:
    """Batch sizes to capture: close together where steps are short, up to `max_chunks` or 512."""
    most = min(max_chunks, _MAX_ROWS)
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, _MAX_ROWS + 1, 32)]
    return [size for size in sizes if size < most] + [most]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bucket:
    token_ids: Tensor
    """[num_rows] int64"""
    positions: Tensor
    """[num_rows] int64"""
    buffers: DecodeBuffers
    captured: Captured


class DecodeGraphs:
    """The model's forward pass over one pool."""

    def __init__(
        self,
        model: LlamaModel,
        backend: GraphBackend,
        kv: KVStorage,
        sizes: Sequence[int],
        capture: Capture,
    ) -> None:
        self._model = model
        self._backend = backend
        self._kv = kv
        # The largest first, as the others then find room in the memory it took.
        with torch.inference_mode():
            buckets = {size: self._bucket(size, capture) for size in sorted(sizes, reverse=True)}
        self._buckets = dict(sorted(buckets.items()))

    @torch.inference_mode()
    def forward(self, batch: InputBatch) -> Tensor:
        """Normed hidden states [num_tokens, hidden]; valid until the next call.

        Tokens and positions of the batch may be on the device already: then nothing waits, as a
        graph's inputs are set by copies in the same stream, behind the replay before.
        """
        num_tokens = len(batch.token_ids)
        bucket = self._choose(num_tokens) if num_tokens == len(batch.chunks) else None
        if bucket is None:
            return self._model.forward(batch.token_ids, batch.positions, batch.layout, self._kv)
        bucket.token_ids[:num_tokens].copy_(batch.token_ids)
        bucket.token_ids[num_tokens:] = 0
        bucket.positions[:num_tokens].copy_(batch.positions)
        bucket.positions[num_tokens:] = 0
        bucket.buffers.fill(batch.layout)
        bucket.captured.replay()
        return bucket.captured.output[:num_tokens]

    def _choose(self, num_rows: int) -> _Bucket | None:
        """The least that holds the rows; None if none does."""
        return next((self._buckets[size] for size in self._buckets if size >= num_rows), None)

    def _bucket(self, size: int, capture: Capture) -> _Bucket:
        device = self._backend.device
        token_ids = torch.zeros(size, dtype=torch.int64, device=device)
        positions = torch.zeros(size, dtype=torch.int64, device=device)
        buffers = self._backend.decode_buffers(size, self._kv)

        def compute() -> Tensor:
            return self._model.forward_step(token_ids, positions, buffers.step, self._kv)

        return _Bucket(
            token_ids=token_ids,
            positions=positions,
            buffers=buffers,
            captured=capture(compute),
        )


class CudaCapture:
    """`Capture` by CUDA graphs that share one memory pool, as only one of them runs at a time."""

    def __init__(self) -> None:
        self._memory = torch.cuda.graph_pool_handle()

    def __call__(self, compute: Callable[[], Tensor]) -> Captured:
        # Before capture, which allows neither: kernels are compiled, cuBLAS takes its workspace.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP_RUNS):
                compute()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory):
            output = compute()
        return _CudaCaptured(graph, output)


@dataclass(frozen=True, slots=True)
class _CudaCaptured:
    _graph: torch.cuda.CUDAGraph
    output: Tensor

    def replay(self) -> None:
        self._graph.replay()
