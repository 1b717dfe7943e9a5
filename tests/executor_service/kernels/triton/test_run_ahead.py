"""Steps launched before the answers of the step before are there: the same answers, in order.

The device's stream does nothing until it is waited for, so what is read or written too early shows.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from common.kv_size import GIB
from common.plan import ErrorCode, SamplingParams, StepPlan
from executor_service.config import ExecutorConfig
from executor_service.kernels.device_stream import DeviceStream
from executor_service.runner.cuda_device import CudaDevice
from executor_service.runner.cuda_graphs import Capture
from executor_service.runner.device_runner import DeviceRunner
from executor_service.runner.load import load_on
from executor_service.runner.model_runner import ModelRunner
from tests.support.fuzzed_sequences import Ask
from tests.support.plan_fuzz import PlanFuzzer
from tests.support.plans import GREEDY, add_chunk, make_spec
from tests.support.run_ahead import RunAhead, codes
from tests.support.tiny_llama import VOCAB_SIZE, save_tiny, tiny_model
from tests.support.tiny_runner import NUM_BLOCKS, generate, tiny_runner
from tests.support.told_meter import ToldMeter

NUM_OUTPUTS = 4
LIMITS = {"max_num_seqs": 7, "max_num_batched_tokens": 128, "max_model_len": 128}


def prompt(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(10, VOCAB_SIZE - 10), k=length)


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(**({"temperature": 1.0} | fields))


COUNTING: list[tuple[list[int], SamplingParams]] = [
    (prompt(33, 1), GREEDY),
    (prompt(5, 2), params(seed=42, temperature=0.8)),
    (prompt(1, 3), params(seed=7, top_p=0.9, top_k=30)),
    (prompt(20, 7), params(seed=4, min_tokens=3, stop_token_ids=tuple(range(100)))),
]
"""Whose sampling needs to know how many tokens there were, not which."""
READING: list[tuple[list[int], SamplingParams]] = [
    (prompt(16, 5), params(temperature=0.0, repetition_penalty=1.3)),
    (prompt(8, 6), params(seed=3, presence_penalty=1.0, frequency_penalty=0.5)),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tiny_model("llama"), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def on_cpu(directory: Path) -> ModelRunner:
    return tiny_runner(directory)  # type: ignore[return-value]


@pytest.fixture(scope="module")
def expected(on_cpu: ModelRunner) -> list[list[int]]:
    return generate(on_cpu, COUNTING + READING, NUM_OUTPUTS)


@pytest.fixture(scope="module")
def loaded(
    directory: Path, device: torch.device, stream: DeviceStream, capture: Capture
) -> DeviceRunner:
    opened = CudaDevice(
        device,
        torch.float32,
        stream=stream,
        new_capture=lambda: capture,
        meter=ToldMeter(free=GIB),
    )
    fields: dict[str, Any] = {"model": str(directory), "threads": 1, "num_blocks": NUM_BLOCKS}
    config = ExecutorConfig(**(fields | LIMITS))
    runner = load_on(opened, config, lambda done, total, what: None)
    assert isinstance(runner, DeviceRunner)
    return runner


@pytest.fixture
def runner(loaded: DeviceRunner, stream: DeviceStream) -> Iterator[DeviceRunner]:
    loaded.pool.poison(range(NUM_BLOCKS))
    yield loaded
    loaded.forget_samples()
    # Nothing sent by any step may have been changed before it arrived.
    stream.mark().wait()


def test_answers_are_the_cpu_s_with_two_steps_in_flight(
    runner: DeviceRunner, expected: list[list[int]]
) -> None:
    """Prompts in chunks first, then decodes of all kinds of sampling together."""
    ahead = RunAhead(runner)
    sequences = [ahead.start(tokens, rules, NUM_OUTPUTS) for tokens, rules in COUNTING + READING]
    for some in (sequences[:3], sequences[3:]):
        ahead.run(some, NUM_OUTPUTS, chunk=17)
    assert [sequence.outputs for sequence in sequences] == expected


def count_waits(runner: DeviceRunner, stream: Any, requests: list[Any]) -> list[int]:
    """What each launch of a decode waits for, beyond its own upload memory's turn."""
    ahead = RunAhead(runner)
    sequences = [ahead.start(tokens, rules, 8) for tokens, rules in requests]
    waits = []
    for step in range(4):
        before = stream.num_waits
        ahead.launch(sequences)
        waits.append(stream.num_waits - before)
        if step:
            ahead.take()
    ahead.take()
    return waits


@pytest.mark.parametrize("requests", [COUNTING[3:], READING], ids=["counting", "reading"])
def test_a_decode_waits_for_no_token(
    requests: list[tuple[list[int], SamplingParams]], runner: DeviceRunner, stream: Any
) -> None:
    if not hasattr(stream, "num_waits"):
        pytest.skip("only the stream of tests counts")
    # Each launch takes upload memory in turn; its copies have arrived long since.
    assert count_waits(runner, stream, requests) == [1] * 4


def test_nothing_is_allocated_on_the_host_once_steps_have_run(
    runner: DeviceRunner, stream: Any
) -> None:
    if not hasattr(stream, "num_host_memories"):
        pytest.skip("only the stream of tests counts")
    ahead = RunAhead(runner)
    sequence = ahead.start(prompt(9, 9), GREEDY, 30)
    counts = []
    for _ in range(5):
        ahead.launch([sequence])
        counts.append(stream.num_host_memories)
        if len(counts) > 1:
            ahead.take()
    assert counts[-1] == counts[3]


def test_a_step_waits_for_nothing_that_was_launched_after_it(
    runner: DeviceRunner, stream: Any
) -> None:
    if not hasattr(stream, "num_passed"):
        pytest.skip("only the stream of tests can be looked at")
    ahead = RunAhead(runner)
    sequence = ahead.start(prompt(9, 9), GREEDY, 30)
    first, second = ahead.launch([sequence]), ahead.launch([sequence])
    first.result()
    passed = stream.num_passed
    second.result()
    assert stream.num_passed > passed


def test_results_are_read_on_another_thread_while_steps_are_launched(
    runner: DeviceRunner, expected: list[list[int]]
) -> None:
    ahead = RunAhead(runner, depth=99)
    sequence = ahead.start(*READING[0], NUM_OUTPUTS)
    found: list[int] = []
    launched = threading.Semaphore(0)

    def read() -> None:
        for _ in range(NUM_OUTPUTS):
            launched.acquire()
            found.extend(ahead.take().tokens)

    thread = threading.Thread(target=read)
    thread.start()
    for _ in range(NUM_OUTPUTS):
        # Its history must have grown, as a scheduler's has, before the step after next.
        while len(sequence.tokens) < sequence.computed - 1:
            assert thread.is_alive()
        ahead.launch([sequence])
        launched.release()
    thread.join()
    assert found == expected[len(COUNTING)]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, which interprets
@pytest.mark.parametrize("rules", [GREEDY, params(seed=3, frequency_penalty=0.5)])
def test_a_token_that_is_none_ends_its_sequence_alone(
    runner: DeviceRunner, expected: list[list[int]], rules: SamplingParams
) -> None:
    """The step in flight named it as input by then; it fails for the same cause."""
    ahead = RunAhead(runner)
    good = ahead.start(*COUNTING[1], NUM_OUTPUTS)
    bad = ahead.start(prompt(20, 8), rules, NUM_OUTPUTS)
    ahead.launch([good, bad])
    ahead.launch([good, bad])
    ahead.take()
    ahead.take()
    runner.pool.poison(bad.table[:1])
    ahead.launch([bad, good])
    ahead.launch([bad, good])
    ahead.launch([good])
    for _ in range(3):
        ahead.take()
    assert good.outputs == expected[1]
    assert codes(bad) == [ErrorCode.NON_FINITE] * 2
    assert bad.errors[1].message == "its input failed in the step before"
    assert len(bad.outputs) == 2


def test_a_wrong_plan_costs_the_step_in_flight_nothing(
    runner: DeviceRunner, expected: list[list[int]]
) -> None:
    ahead = RunAhead(runner)
    good = ahead.start(*COUNTING[1], NUM_OUTPUTS)
    ahead.launch([good])
    wrong = StepPlan(step_id=77)
    add_chunk(wrong, make_spec(99, 3), [1, 2], [5], start=2, length=1, samples=[make_spec(99, 3)])
    (error,) = runner.launch(wrong).result().errors
    assert error.code == ErrorCode.INVALID_PLAN
    ahead.take()
    # The step before named nobody: what is in flight is gone with it.
    ahead.launch([good])
    ahead.launch([good])
    ahead.take()
    ahead.take()
    assert good.outputs == expected[1][:3]


def test_samples_are_forgotten_with_the_stream(runner: DeviceRunner) -> None:
    ahead = RunAhead(runner)
    sequence = ahead.start(prompt(10, 3), GREEDY, 3)
    ahead.launch([sequence])
    runner.forget_samples()
    ahead.launch([sequence])
    ahead.take()
    ahead.take()
    assert codes(sequence) == [ErrorCode.INVALID_PLAN]


def test_choices_of_one_prompt_go_on_apart(runner: DeviceRunner, on_cpu: ModelRunner) -> None:
    """Three samples of one row; each is the input of its own sequence in the next step."""
    tokens, rules = prompt(16, 1), params(seed=6, temperature=1.3)
    specs = [make_spec(i + 1, 16, index=i, params=rules) for i in range(3)]
    found = []
    for executor in (on_cpu, runner):
        first = StepPlan(step_id=1)
        add_chunk(first, specs[0], tokens, [3], length=16, samples=specs)
        second = StepPlan(step_id=2)
        for i in (2, 0, 1):
            add_chunk(second, specs[i], tokens, [3, 10 + i], start=16, length=1, samples=[specs[i]])
        if isinstance(executor, DeviceRunner):
            launched = [executor.launch(plan) for plan in (first, second)]
            found.append([list(step.result().tokens) for step in launched])
        else:
            found.append([list(executor.execute(plan).tokens) for plan in (first, second)])
    assert found[0] == found[1]
    assert len(set(found[0][0])) > 1


def test_logprobs_are_the_cpu_s(runner: DeviceRunner, on_cpu: ModelRunner) -> None:
    rules = params(seed=8, num_logprobs=3, num_prompt_logprobs=2)
    tokens = prompt(6, 4)
    spec, silent = make_spec(1, 6, params=rules), make_spec(2, 6)
    plan = StepPlan(step_id=1)
    add_chunk(plan, silent, tokens, [2], length=6, samples=[silent])
    add_chunk(plan, spec, tokens, [7], length=6, samples=[spec])
    wanted, found = on_cpu.execute(plan), runner.execute(plan)
    assert found.tokens == wanted.tokens
    assert found.logprobs is not None
    assert wanted.logprobs is not None
    assert found.logprobs[0] is None
    pairs = list(
        zip(
            [found.logprobs[1], *found.prompt_logprobs[0].positions],
            [wanted.logprobs[1], *wanted.prompt_logprobs[0].positions],
            strict=True,
        )
    )
    assert len(pairs) == 6
    for mine, theirs in pairs:
        assert mine is not None
        assert theirs is not None
        assert mine.token_ids == theirs.token_ids
        assert mine.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_wrong_plans_cost_those_they_concern_a_step_and_others_nothing(
    runner: DeviceRunner, expected: list[list[int]]
) -> None:
    asks = [
        Ask(tuple(tokens), rules, (tuple(outputs),))
        for (tokens, rules), outputs in zip(COUNTING + READING, expected, strict=True)
    ]
    fuzzer = PlanFuzzer(runner, asks, seed=5)  # type: ignore[arg-type]
    for _ in range(5):
        fuzzer.step()
    assert fuzzer.num_faults > 0
