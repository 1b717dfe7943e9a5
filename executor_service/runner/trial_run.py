"""Runs the largest steps that the flags allow, before there is a KV pool, to see what they take.

The pool of the trial has a handful of blocks. Two steps bound all others: one of as many prompt
tokens as a step may have, all rows of it sampled with every rule; and one of as many decodes as it
may have, each at the model's full length, kernel by kernel. The tables of the second name one block
again and again: what it reads means nothing, but that it reads takes what it takes.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from common.plan import TOKEN_TYPECODE, SamplingParams, SequenceId, SequenceSpec, StepPlan
from executor_service.kernels.backend import KVShape
from executor_service.kernels.device_stream import DeviceStream
from executor_service.kernels.transfers import Uploads
from executor_service.memory.gpu_memory import MemoryMeter, StepNeeds
from executor_service.memory.kv_pool import KVPool
from executor_service.models.llama import LlamaModel
from executor_service.runner.batch import InputBatch
from executor_service.runner.cuda_graphs import Capture, DecodeGraphs, GraphBackend
from executor_service.runner.device_runner import DeviceRunner
from executor_service.runner.spec import ExecutorSpec

_EVERY_RULE = SamplingParams(
    temperature=0.7, top_k=50, top_p=0.9, min_p=0.01, repetition_penalty=1.1, frequency_penalty=0.1
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLimits:
    """What bounds a step."""

    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    block_size: int

    @property
    def num_rows(self) -> int:
        return min(self.max_num_seqs, self.max_num_batched_tokens)


class Trial:
    """Of one model on one device. `measure` leaves nothing behind but what every run would."""

    def __init__(
        self,
        limits: StepLimits,
        model: LlamaModel,
        backend: GraphBackend,
        *,
        stream: DeviceStream,
        uploads: Uploads,
        meter: MemoryMeter,
    ) -> None:
        self._limits = limits
        self._model = model
        self._backend = backend
        self._stream = stream
        self._uploads = uploads
        self._meter = meter

    def measure(self, graph_sizes: list[int], capture: Capture) -> StepNeeds:
        """`graph_sizes` are those to be captured later, ascending; `capture` is for the trial
        alone. All graphs share the memory of the largest; what each takes for itself is that of
        the least."""
        pool = self._pool()
        first = self._graph_bytes(pool, graph_sizes[-1], capture)
        each = self._graph_bytes(pool, graph_sizes[0], capture) if len(graph_sizes) > 1 else 0
        runner = self._runner(pool)
        plans = largest_prompts(self._limits), longest_decodes(self._limits)
        # The first run of each compiles kernels and takes workspaces, which stay.
        for plan in plans:
            runner.execute(plan)
        step = max(self._meter.peak_of(partial(runner.execute, plan)) for plan in plans)
        return StepNeeds(step=step, graphs=first + (len(graph_sizes) - 1) * each)

    def _graph_bytes(self, pool: KVPool, size: int, capture: Capture) -> int:
        def graphs() -> DecodeGraphs:
            return DecodeGraphs(self._model, self._backend, pool.storage, [size], capture)

        graphs()  # compiles, which takes memory once
        before = self._meter.read().free
        kept = graphs()
        taken = before - self._meter.read().free
        del kept
        return max(0, taken)

    def _pool(self) -> KVPool:
        config, limits = self._model.config, self._limits
        shape = KVShape(
            num_layers=config.num_layers,
            num_blocks=_num_blocks(limits),
            block_size=limits.block_size,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
        )
        return KVPool(self._backend, shape)

    def _runner(self, pool: KVPool) -> DeviceRunner:
        limits = self._limits
        spec = ExecutorSpec(
            fingerprint="",
            model_name="",
            block_size=limits.block_size,
            num_blocks=pool.shape.num_blocks,
            max_rows=limits.num_rows + 1,
            max_model_len=limits.max_model_len,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            vocab_size=self._model.config.vocab_size,
            kv_bytes_per_token=0,
            dtype="",
            kv_cache_dtype="",
            device="",
            weights_bytes=0,
            kv_bytes=0,
        )
        return DeviceRunner(
            spec,
            {},
            self._model,
            pool,
            forward=partial(self._kernel_by_kernel, pool),
            stream=self._stream,
            uploads=self._uploads,
        )

    def _kernel_by_kernel(self, pool: KVPool, batch: InputBatch) -> Tensor:
        return self._model.forward(batch.token_ids, batch.positions, batch.layout, pool.storage)


def largest_prompts(limits: StepLimits) -> StepPlan:
    """All tokens that a step may have, over as many sequences as may sample."""
    plan = StepPlan(step_id=0)
    rows = limits.num_rows
    share, extra = divmod(limits.max_num_batched_tokens, rows)
    first_block = 0
    for row in range(rows):
        length = min(share + (row < extra), limits.max_model_len)
        num_blocks = -(-length // limits.block_size)
        table = array(TOKEN_TYPECODE, range(first_block, first_block + num_blocks))
        _add(plan, row, start=0, length=length, table=table)
        first_block += num_blocks
    return plan


def longest_decodes(limits: StepLimits) -> StepPlan:
    """As many decodes as a step may have, each the last token that its sequence can have."""
    plan = StepPlan(step_id=0)
    num_blocks = -(-limits.max_model_len // limits.block_size)
    for row in range(limits.num_rows):
        table = array(TOKEN_TYPECODE, [0] * (num_blocks - 1) + [1 + row])
        _add(plan, row, start=limits.max_model_len - 1, length=1, table=table)
    return plan


def _add(plan: StepPlan, row: int, *, start: int, length: int, table: array[int]) -> None:
    end = start + length
    spec = SequenceSpec(
        sequence_id=SequenceId(row), index=0, num_prompt_tokens=end, params=_EVERY_RULE
    )
    plan.sequences.append(spec)
    plan.starts.append(start)
    plan.lengths.append(length)
    plan.token_buffers.append(array(TOKEN_TYPECODE, bytes(4 * end)))
    plan.token_lengths.append(end)
    plan.table_buffers.append(table)
    plan.table_lengths.append(len(table))
    plan.num_samples.append(1)
    plan.sampled.append(spec)


def _num_blocks(limits: StepLimits) -> int:
    """That both plans name."""
    prompts = sum(map(len, largest_prompts(limits).table_buffers))
    return max(prompts, limits.num_rows + 1)
