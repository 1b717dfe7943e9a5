"""Which steps replay a graph, and what the graph then reads: everything but the capture itself."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from executor_service.kernels.backend import KVShape, KVStorage, StepLayout
from executor_service.kernels.cuda_kv import allocate
from executor_service.kernels.decode_buffers import DecodeBuffers
from executor_service.kernels.kv_kind import KVKind
from executor_service.kernels.launch_config import AMPERE, AttentionShape, attention_config
from executor_service.kernels.transfers import upload_now
from executor_service.runner.batch import InputBatch
from executor_service.runner.cuda_graphs import DecodeGraphs, bucket_sizes
from tests.support.recorded_capture import RecordingCapture

NUM_BLOCKS = 20
BLOCK_SIZE = 16
SPARE_SLOT = NUM_BLOCKS * BLOCK_SIZE
SHAPE = AttentionShape(num_heads=4, num_kv_heads=2, head_dim=64, max_context=100)
POOL = KVShape(
    num_layers=1, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, num_kv_heads=2, head_dim=64
)
KV = cast(KVStorage, allocate(POOL, KVKind.FLOAT16, torch.device("cpu")))


class FakeBackend:
    """Only what `DecodeGraphs` asks of a backend."""

    device = torch.device("cpu")

    def decode_buffers(self, num_rows: int, kv: KVStorage) -> DecodeBuffers:
        config = attention_config(SHAPE, torch.float16, AMPERE, KVKind.FLOAT16)
        return DecodeBuffers(num_rows, kv, config, partial(upload_now, device=self.device))


class FakeModel:
    """Its hidden states tell what it read: [token, position, slot, first block]."""

    def __init__(self) -> None:
        self.eager: list[int] = []

    def forward(
        self, token_ids: Tensor, positions: Tensor, layout: StepLayout, kv: KVStorage
    ) -> Tensor:
        self.eager.append(len(token_ids))
        return self._hidden(token_ids, positions, layout.slot_mapping, layout.block_tables[:, 0])

    def forward_step(
        self, token_ids: Tensor, positions: Tensor, step: Any, kv: KVStorage
    ) -> Tensor:
        return self._hidden(token_ids, positions, step.slots, step.chunks.tables[:, 0])

    def _hidden(self, *columns: Tensor) -> Tensor:
        if len(columns[0]) != len(columns[3]):
            return torch.zeros(len(columns[0]), 4)
        return torch.stack([column.float() for column in columns], dim=1)


def decodes(positions: list[int]) -> InputBatch:
    count = len(positions)
    return InputBatch(
        chunks=list(range(count)),
        token_ids=torch.arange(100, 100 + count),
        positions=torch.tensor(positions),
        layout=StepLayout(
            starts=torch.tensor(positions, dtype=torch.int32),
            lengths=torch.ones(count, dtype=torch.int32),
            block_tables=torch.arange(1, count + 1, dtype=torch.int32).unsqueeze(1),
            slot_mapping=torch.arange(1, count + 1) * BLOCK_SIZE,
        ),
        first_rows=list(range(count + 1)),
    )


def prompt(length: int) -> InputBatch:
    return InputBatch(
        chunks=[0],
        token_ids=torch.arange(length),
        positions=torch.arange(length),
        layout=StepLayout(
            starts=torch.zeros(1, dtype=torch.int32),
            lengths=torch.tensor([length], dtype=torch.int32),
            block_tables=torch.zeros(1, 1, dtype=torch.int32),
            slot_mapping=torch.arange(length),
        ),
        first_rows=[0, length],
    )


class Setup:
    def __init__(self, sizes: list[int]) -> None:
        self.model: Any = FakeModel()
        self.capture = RecordingCapture()
        backend: Any = FakeBackend()
        self.graphs = DecodeGraphs(self.model, backend, KV, sizes, self.capture)

    def replayed(self) -> list[int]:
        """Rows of the graph that each replay ran, in order of capture."""
        return [len(c.output) for c in self.capture.recorded for _ in range(c.num_replays)]


def test_the_largest_graph_is_captured_first() -> None:
    assert [len(c.output) for c in Setup([1, 4, 2]).capture.recorded] == [4, 2, 1]


@pytest.mark.parametrize(("rows", "graph"), [(1, 1), (2, 2), (3, 4), (4, 4)])
def test_a_step_takes_the_least_graph_that_holds_it(rows: int, graph: int) -> None:
    setup = Setup([1, 2, 4])
    found = setup.graphs.forward(decodes([5] * rows))
    assert setup.replayed() == [graph]
    assert len(found) == rows
    assert not setup.model.eager


def test_a_graph_reads_the_step_it_is_replayed_for() -> None:
    setup = Setup([4])
    for positions in ([7, 8, 9, 10], [3], [50, 51]):
        batch = decodes(positions)
        found = setup.graphs.forward(batch).clone()
        assert torch.equal(
            found,
            FakeModel().forward(batch.token_ids, batch.positions, batch.layout, KV),
        )
        filled = setup.capture.recorded[0].output[len(positions) :]
        assert filled.tolist() == [[0, 0, SPARE_SLOT, NUM_BLOCKS]] * (4 - len(positions))


@pytest.mark.parametrize("batch", [prompt(2), prompt(9), decodes([1] * 5)])
def test_other_steps_go_kernel_by_kernel(batch: InputBatch) -> None:
    setup = Setup([1, 2, 4])
    setup.graphs.forward(batch)
    assert setup.model.eager == [len(batch.token_ids)]
    assert not setup.replayed()


def test_a_prompt_of_one_token_is_a_decode() -> None:
    """There is no prefill phase: its chunk is as long as a decode's."""
    setup = Setup([1])
    setup.graphs.forward(prompt(1))
    assert setup.replayed() == [1]


def test_bucket_sizes_reach_the_limit_and_waste_little() -> None:
    for most in (1, 3, 7, 8, 100, 256, 512, 5000):
        sizes = bucket_sizes(most)
        assert sizes == sorted(set(sizes))
        assert sizes[-1] == min(most, 512)
        for rows in range(1, sizes[-1] + 1):
            chosen = next(size for size in sizes if size >= rows)
            assert chosen - rows < max(8, rows / 4) or chosen <= 8
