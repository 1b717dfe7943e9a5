"""Runs the largest steps that the flags allow, before there is a KV pool, to see what they take.

The pool of the trial has a handful of blocks. Two steps bound all others, each run kernel by kernel
and with every rule of sampling. One has all that a step may hold, chunks, tokens and samples: as
few prompts as can take the tokens, and decodes at the model's full length. The other has only such
decodes. The tables of decodes name one block again and again: what they read means nothing, but
that they read takes what it takes.
"""

from __future__ import annotations

from array import array
from functools import partial

from torch import Tensor

from common.plan import TOKEN_TYPECODE, SamplingParams, SequenceId, SequenceSpec, StepPlan
from executor_service.kernels.device_stream import DeviceStream
from executor_service.kernels.transfers import Uploads
from executor_service.memory.gpu_memory import MemoryMeter, StepNeeds
from executor_service.memory.kv_pool import KVPool
from executor_service.models.llama import LlamaModel
from executor_service.runner.batch import InputBatch
from executor_service.runner.cuda_graphs import Capture, DecodeGraphs, GraphBackend
from executor_service.runner.device_runner import DeviceRunner
from executor_service.runner.spec import ExecutorSpec
from executor_service.runner.step_limits import StepLimits

_EVERY_RULE = SamplingParams(
    temperature=0.7,
    top_k=50,
    top_p=0.9,
    min_p=0.01,
    repetition_penalty=1.1,
    frequency_penalty=0.1,
    num_logprobs=0,
)


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
        plans = fullest_step(self._limits), longest_decodes(self._limits)
        # The first run of each compiles kernels and takes workspaces, which stay.
        for plan in plans:
            _run(runner, plan)
        step = max(self._meter.peak_of(partial(_run, runner, plan)) for plan in plans)
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
        shape = self._model.config.kv_shape(
            num_blocks=_num_blocks(self._limits), block_size=self._limits.block_size
        )
        return KVPool(self._backend, shape)

    def _runner(self, pool: KVPool) -> DeviceRunner:
        limits = self._limits
        spec = ExecutorSpec(
            fingerprint="",
            model_name="",
            block_size=limits.block_size,
            num_blocks=pool.shape.num_blocks,
            max_rows=limits.max_rows,
            max_chunks=limits.max_chunks,
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


def _run(runner: DeviceRunner, plan: StepPlan) -> None:
    """All that the device does for it; what the host makes of the logprobs takes none of its
    memory."""
    step = runner.launch(plan)
    assert not step.known.failed, "a trial's plan is sound"
    step.done.wait()
    runner.forget_samples()


def fullest_step(limits: StepLimits) -> StepPlan:
    """All chunks, tokens and samples that a step may have.

    The tokens are in as few prompts as can take them; the forks are of the first chunk.
    """
    plan = StepPlan(step_id=0)
    lengths = _fullest_lengths(limits)
    first_block = 1 + len(lengths)
    for row, length in enumerate(lengths):
        if length == 1:
            _add_decode(plan, row, limits)
            continue
        num_blocks = -(-length // limits.block_size)
        table = array(TOKEN_TYPECODE, range(first_block, first_block + num_blocks))
        _add(plan, row, start=0, length=length, table=table)
        first_block += num_blocks
    forks = [_spec(row, plan.token_lengths[0]) for row in range(len(lengths), limits.max_samples)]
    plan.sampled[1:1] = forks
    plan.num_samples[0] += len(forks)
    return plan


def longest_decodes(limits: StepLimits) -> StepPlan:
    """As many decodes as a step may have, each the last token that its sequence can have."""
    plan = StepPlan(step_id=0)
    for row in range(limits.max_chunks):
        _add_decode(plan, row, limits)
    return plan


def _fullest_lengths(limits: StepLimits) -> list[int]:
    """Of as many chunks as there may be, ascending."""
    left = limits.max_num_batched_tokens
    lengths = []
    for num_others in reversed(range(limits.max_chunks)):
        lengths.append(min(limits.max_model_len, left - num_others))
        left -= lengths[-1]
    return lengths[::-1]


def _add_decode(plan: StepPlan, row: int, limits: StepLimits) -> None:
    num_blocks = -(-limits.max_model_len // limits.block_size)
    table = array(TOKEN_TYPECODE, [0] * (num_blocks - 1) + [1 + row])
    _add(plan, row, start=limits.max_model_len - 1, length=1, table=table)


def _add(plan: StepPlan, row: int, *, start: int, length: int, table: array[int]) -> None:
    end = start + length
    spec = _spec(row, end)
    plan.sequences.append(spec)
    plan.starts.append(start)
    plan.lengths.append(length)
    plan.token_buffers.append(array(TOKEN_TYPECODE, bytes(4 * end)))
    plan.token_lengths.append(end)
    plan.table_buffers.append(table)
    plan.table_lengths.append(len(table))
    plan.num_samples.append(1)
    plan.sampled.append(spec)


def _spec(row: int, num_prompt_tokens: int) -> SequenceSpec:
    return SequenceSpec(
        sequence_id=SequenceId(row),
        index=0,
        num_prompt_tokens=num_prompt_tokens,
        params=_EVERY_RULE,
    )


def _num_blocks(limits: StepLimits) -> int:
    """That both plans name."""
    return 1 + max(map(max, fullest_step(limits).table_buffers))
