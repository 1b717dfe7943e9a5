"""The scheduler's largest plans are those that an executor measures, captures and accepts."""

from __future__ import annotations

from array import array

from common.plan import TOKEN_TYPECODE, SamplingParams
from executor_service.runner.step_limits import StepLimits
from scheduler_service.core.limits import SchedulerLimits
from scheduler_service.core.policy import Fcfs
from scheduler_service.core.request import Request
from scheduler_service.core.scheduler import Scheduler

MAX_NUM_SEQS, MAX_NUM_BATCHED_TOKENS, MAX_MODEL_LEN, BLOCK_SIZE = 8, 64, 256, 16
EXECUTOR = StepLimits(
    max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
    max_num_seqs=MAX_NUM_SEQS,
    max_model_len=MAX_MODEL_LEN,
    block_size=BLOCK_SIZE,
)


def scheduler_with(choices: list[int]) -> Scheduler:
    """Of requests of two tokens each, with so many choices."""
    scheduler = Scheduler(
        SchedulerLimits(
            block_size=BLOCK_SIZE,
            num_blocks=1000,
            max_num_seqs=MAX_NUM_SEQS,
            max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
            max_model_len=MAX_MODEL_LEN,
        ),
        Fcfs(),
    )
    for i, n in enumerate(choices):
        scheduler.add(
            Request(
                request_id=str(i),
                prompt_token_ids=array(TOKEN_TYPECODE, [i, i]),
                params=SamplingParams(temperature=0.0),
                max_tokens=9,
                n=n,
            )
        )
    return scheduler


def test_a_step_samples_as_much_as_an_executor_measures() -> None:
    """The first request fills six places. The forks of the other two are too many for that step,
    so both have one token left when all places are taken, and all their forks wait for one."""
    scheduler = scheduler_with([6, 5, 5])
    assert scheduler.schedule() is not None
    plan = scheduler.schedule()
    assert plan is not None
    assert plan.num_chunks == EXECUTOR.max_chunks
    assert len(plan.sampled) == EXECUTOR.max_samples == EXECUTOR.max_rows
