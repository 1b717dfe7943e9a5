"""The step loop over the shadow-KV executor; every turn checks the core's invariants."""

from __future__ import annotations

import asyncio
import random

import pytest

from common.plan import SamplingParams
from scheduler_service.engine.messages import Readiness
from tests.support.builders import random_ids
from tests.support.engine_harness import GREEDY, Harness, Received, engine
from tests.support.fake_executor_client import FakeExecutorClient
from tests.support.shadow_model import ShadowModel, expected_output

MODEL = ShadowModel(vocab_size=1000)


def expected(
    prompt: list[int], count: int, params: SamplingParams = GREEDY, index: int = 0
) -> list[int]:
    return expected_output(MODEL, prompt, count, params, index=index)


async def test_a_request_streams_its_tokens_and_ends_once() -> None:
    prompt = random_ids(1, 10)
    async with engine() as harness:
        received = harness.worker.submit(prompt, max_tokens=20)
        await harness.worker.ended(received)
    assert received.tokens == {0: expected(prompt, 20)}
    assert received.num_cached_tokens == 0
    assert received.finished[0].reason == "length"
    assert received.finished[0].num_output_tokens == 20


@pytest.mark.parametrize("num_blocks", [40, 400], ids=["preempting", "roomy"])
@pytest.mark.parametrize("depth", [1, 2])
async def test_any_depth_and_pool_gives_the_tokens_of_the_model(
    depth: int, num_blocks: int
) -> None:
    rng = random.Random(7)
    asks = [(random_ids(i, rng.randrange(1, 90)), rng.randrange(1, 40)) for i in range(40)]
    client = FakeExecutorClient(num_blocks=num_blocks)
    async with engine(client, run_ahead_depth=depth) as harness:
        received: list[Received] = []
        for prompt, max_tokens in asks:
            received.append(harness.worker.submit(prompt, max_tokens=max_tokens))
            if rng.random() < 0.5:
                await harness.worker.until(lambda: True)
                await asyncio.sleep(0)
        await harness.worker.ended(*received)
        assert (
            harness.core.counters.num_free_blocks + (harness.core.counters.num_evictable_blocks)
            == num_blocks
        )
    for (prompt, max_tokens), each in zip(asks, received, strict=True):
        assert each.tokens == {0: expected(prompt, max_tokens)}


async def test_choices_of_one_request_are_told_apart() -> None:
    params = SamplingParams(temperature=1.0, seed=5)
    prompt = random_ids(3, 9)
    async with engine() as harness:
        received = harness.worker.submit(prompt, max_tokens=12, params=params, n=3)
        await harness.worker.ended(received, n=3)
    for index in range(3):
        assert received.tokens[index] == expected(prompt, 12, params, index)


async def test_a_step_sends_a_worker_one_message_however_many_sequences_ran() -> None:
    async with engine(max_num_batched_tokens=256) as harness:
        received = [harness.worker.submit(random_ids(i, 4), max_tokens=30) for i in range(12)]
        await harness.worker.ended(*received)
        num_steps = len(harness.client.plans)
        with_tokens = [outputs for outputs in harness.worker.outputs if outputs.handles]
    assert sum(len(outputs.handles) for outputs in with_tokens) == 12 * 30
    assert len(with_tokens) <= num_steps


async def test_depth_two_has_two_steps_in_flight_and_depth_one_a_single_one() -> None:
    for depth in (1, 2):
        async with engine(run_ahead_depth=depth) as harness:
            harness.client.hold()
            received = harness.worker.submit(random_ids(1, 4), max_tokens=20)
            await harness.worker.until(lambda: len(harness.client.plans) == depth)  # noqa: B023
            await harness.worker.call("server_info")  # a turn later there is no further one
            assert len(harness.client.plans) == depth
            harness.client.resume()
            await harness.worker.ended(received)


async def test_an_aborted_request_frees_its_blocks_within_two_steps() -> None:
    async with engine(enable_prefix_caching=False) as harness:
        received = harness.worker.submit(random_ids(1, 30), max_tokens=500)
        other = harness.worker.submit(random_ids(2, 4), max_tokens=100)
        await harness.worker.until(lambda: received.num_tokens > 5 and other.num_tokens > 5)
        harness.client.hold()
        harness.worker.abort(received)
        await harness.worker.ended(received)
        num_tokens = received.num_tokens
        assert received.finished[0].reason == "abort"
        harness.client.release(2)
        num_plans = len(harness.client.plans)
        await harness.worker.until(lambda: len(harness.client.plans) == num_plans + 2)
        in_use = harness.core.counters.num_referenced_blocks
        assert in_use <= -(-(4 + other.num_tokens + 2) // harness.client.block_size)
        harness.client.resume()
        await harness.worker.ended(other)
        assert received.num_tokens == num_tokens, "nothing is delivered after the abort"
        assert other.tokens[0] == expected(random_ids(2, 4), 100)


async def test_a_worker_that_dies_takes_its_requests_along_and_no_others() -> None:
    async with engine(enable_prefix_caching=False) as harness:
        dying = harness.join(2)
        doomed = [dying.submit(random_ids(i, 8), max_tokens=500) for i in range(3)]
        kept = harness.worker.submit(random_ids(9, 8), max_tokens=60)
        await dying.until(lambda: all(each.num_tokens for each in doomed))
        unseen = dying.submit(random_ids(10, 8), max_tokens=500)
        harness.loop.worker_left(dying)
        await harness.worker.ended(kept)
        assert kept.tokens[0] == expected(random_ids(9, 8), 60)
        await harness.worker.until(harness.loop.idle.is_set)
        assert harness.core.counters.num_referenced_blocks == 0
        assert not unseen.finished


async def test_a_stop_string_rewinds_and_ends_the_choice() -> None:
    async with engine() as harness:
        received = harness.worker.submit(random_ids(1, 8), max_tokens=500)
        await harness.worker.until(lambda: received.num_tokens >= 10)
        harness.worker.finish(received, 0, 7)
        await harness.worker.ended(received)
    assert received.finished[0].reason == "stop"
    assert received.finished[0].num_output_tokens == 7


async def test_a_full_queue_refuses_with_a_hint_and_harms_nobody() -> None:
    async with engine(max_num_seqs=1, max_num_waiting=2) as harness:
        harness.client.hold()
        running = harness.worker.submit(random_ids(0, 4), max_tokens=4)
        await harness.worker.until(lambda: len(harness.client.plans) > 0)
        waiting = [harness.worker.submit(random_ids(i, 4), max_tokens=4) for i in (1, 2)]
        refused = harness.worker.submit(random_ids(3, 4), max_tokens=4)
        await harness.worker.until(lambda: refused.refused is not None)
        assert refused.refused is not None
        assert refused.refused.kind == "queue_full"
        assert refused.refused.retry_after_s > 0
        harness.client.resume()
        await harness.worker.ended(running, *waiting)


async def test_a_request_that_ends_before_its_prompt_was_computed_ends_every_choice() -> None:
    async with engine(max_num_seqs=3) as harness:
        harness.client.hold()
        running = [harness.worker.submit(random_ids(i, 4), max_tokens=4) for i in range(3)]
        await harness.worker.until(lambda: len(harness.client.plans) > 0)
        waiting = harness.worker.submit(random_ids(1, 30), max_tokens=4, n=3)
        expiring = harness.worker.submit(random_ids(2, 4), max_tokens=4, n=2, timeout_s=0.02)
        harness.worker.abort(waiting)
        await harness.worker.ended(waiting, n=3)
        await harness.worker.ended(expiring, n=2)
        assert {finished.reason for finished in waiting.finished.values()} == {"abort"}
        assert {finished.reason for finished in expiring.finished.values()} == {"expired"}
        harness.client.resume()
        await harness.worker.ended(*running)
        await harness.worker.until(harness.loop.idle.is_set)


async def test_a_deadline_that_passes_in_the_queue_costs_no_device_work() -> None:
    async with engine(max_num_seqs=1) as harness:
        harness.client.hold()
        running = harness.worker.submit(random_ids(0, 4), max_tokens=4)
        late = harness.worker.submit(random_ids(1, 40), max_tokens=4, timeout_s=0.02)
        await harness.worker.ended(late)
        assert late.finished[0].reason == "expired"
        harness.client.resume()
        await harness.worker.ended(running)
        assert harness.client.shadow.num_computed_tokens == 4 + 3


async def test_a_deadline_ends_a_running_request_too() -> None:
    async with engine() as harness:
        received = harness.worker.submit(random_ids(0, 4), max_tokens=250, timeout_s=0.05)
        await harness.worker.until(lambda: received.num_tokens > 0)
        harness.client.hold()
        await harness.worker.ended(received)
        assert received.finished[0].reason == "expired"
        assert received.tokens[0] == expected(random_ids(0, 4), received.num_tokens)


async def test_an_impossible_request_is_refused_by_the_field_at_fault() -> None:
    async with engine() as harness:
        received = harness.worker.submit(random_ids(0, 4), max_tokens=100_000)
        fine = harness.worker.submit(random_ids(0, 4), max_tokens=3)
        await harness.worker.ended(fine)
        assert received.refused is not None
        assert received.refused.kind == "invalid"
        assert received.refused.field == "max_tokens"


async def test_a_live_request_id_cannot_be_used_twice_but_again_later() -> None:
    async with engine() as harness:
        first = harness.worker.submit(random_ids(0, 4), max_tokens=50, request_id="same")
        second = harness.worker.submit(random_ids(1, 4), max_tokens=5, request_id="same")
        await harness.worker.ended(first)
        assert second.refused is not None
        assert second.refused.field == "request_id"
        third = harness.worker.submit(random_ids(1, 4), max_tokens=5, request_id="same")
        await harness.worker.ended(third)
        assert third.tokens[0] == expected(random_ids(1, 4), 5)


async def test_abort_by_id_says_whether_the_request_was_live() -> None:
    async with engine() as harness:
        other = harness.join(2)
        received = harness.worker.submit(random_ids(0, 4), max_tokens=500, request_id="x")
        await harness.worker.until(lambda: received.num_tokens > 0)
        assert await other.abort_by_id("x") is True
        await harness.worker.ended(received)
        assert received.finished[0].reason == "abort"
        assert await other.abort_by_id("x") is False


async def test_prior_outputs_are_not_sent_again() -> None:
    prompt = random_ids(4, 11)
    whole = expected(prompt, 30)
    async with engine() as harness:
        received = harness.worker.submit(prompt, max_tokens=30, prior_outputs=[(0, whole[:12])])
        await harness.worker.ended(received)
    assert received.tokens[0] == whole[12:]
    assert received.finished[0].num_output_tokens == 30


async def test_logprobs_reach_only_those_who_asked() -> None:
    params = SamplingParams(temperature=0.0, num_logprobs=2)
    async with engine() as harness:
        with_them = harness.worker.submit(random_ids(1, 5), max_tokens=6, params=params)
        without = harness.worker.submit(random_ids(2, 5), max_tokens=6)
        await harness.worker.ended(with_them, without)
    assert [entry.token_ids[0] for entry in with_them.logprobs[0]] == with_them.tokens[0]
    assert not without.logprobs


async def test_a_failed_sequence_harms_no_other() -> None:
    async with engine() as harness:
        doomed = harness.worker.submit(random_ids(1, 5), max_tokens=60, request_id="doomed")
        fine = harness.worker.submit(random_ids(2, 5), max_tokens=60)
        await harness.worker.until(lambda: doomed.num_tokens > 2)
        harness.client.shadow.fail(sequence_of(harness, "doomed"))
        await harness.worker.ended(doomed, fine)
    assert doomed.finished[0].reason == "error"
    assert doomed.finished[0].message
    assert fine.tokens[0] == expected(random_ids(2, 5), 60)


def sequence_of(harness: Harness, request_id: str, choice: int = 0):  # type: ignore[no-untyped-def]
    from scheduler_service.core.events import SequenceKey

    return harness.core.sequence_id_of(SequenceKey(request_id, choice))


async def test_an_idle_loop_sleeps() -> None:
    async with engine() as harness:
        received = harness.worker.submit(random_ids(1, 5), max_tokens=5)
        await harness.worker.ended(received)
        await harness.worker.until(harness.loop.idle.is_set)
        turns = 0
        turn = harness.loop.turn

        def counted() -> None:
            nonlocal turns
            turns += 1
            turn()

        harness.loop.turn = counted  # type: ignore[method-assign]
        await asyncio.sleep(0.2)
        assert turns == 0


async def test_draining_refuses_new_requests_and_lets_running_ones_end() -> None:
    async with engine() as harness:
        running = harness.worker.submit(random_ids(1, 5), max_tokens=40)
        await harness.worker.until(lambda: running.num_tokens > 0)
        harness.loop.drain()
        refused = harness.worker.submit(random_ids(2, 5), max_tokens=4)
        await harness.worker.ended(running)
        await harness.loop.idle.wait()
    assert refused.refused is not None and refused.refused.kind == "unavailable"
    assert running.tokens[0] == expected(random_ids(1, 5), 40)
    assert harness.worker.readiness[-1].draining
    assert not harness.worker.readiness[-1].ready


async def test_aborting_all_ends_everything() -> None:
    async with engine() as harness:
        received = [harness.worker.submit(random_ids(i, 5), max_tokens=500) for i in range(3)]
        await harness.worker.until(lambda: all(each.num_tokens for each in received))
        harness.loop.drain()
        harness.loop.abort_all()
        await harness.worker.ended(*received)
    assert {each.finished[0].reason for each in received} == {"abort"}


async def test_silence_while_requests_run_is_told_and_ends_with_a_token() -> None:
    async with engine(no_token_timeout=0.05) as harness:
        harness.client.hold()
        received = harness.worker.submit(random_ids(1, 5), max_tokens=5)
        await harness.worker.until(lambda: not harness.worker.readiness[-1].ready)
        assert "no token" in harness.worker.readiness[-1].reason
        harness.client.resume()
        await harness.worker.ended(received)
        assert harness.worker.readiness[-1] == Readiness(True)


async def test_workers_are_told_the_model_before_readiness() -> None:
    client = FakeExecutorClient(num_blocks=10, block_size=4, max_model_len=4096)
    async with engine(client, served_model_name="mine") as harness:
        late = harness.join(2)
        await late.until(lambda: late.model is not None)
        assert harness.worker.model == late.model
        assert late.model is not None
        assert late.model.name == "mine"
        assert late.model.max_model_len == 40
        assert late.readiness == [Readiness(True)]


async def test_the_prefix_cache_can_be_emptied_while_nothing_runs() -> None:
    prompt = random_ids(1, 41)
    async with engine() as harness:
        first = harness.worker.submit(prompt, max_tokens=2)
        await harness.worker.ended(first)
        again = harness.worker.submit(prompt, max_tokens=2)
        await harness.worker.ended(again)
        assert again.num_cached_tokens == 40
        assert await harness.worker.call("reset_prefix_cache") is True
        cold = harness.worker.submit(prompt, max_tokens=2)
        await harness.worker.ended(cold)
        assert cold.num_cached_tokens == 0


async def test_invariants_can_be_inspected() -> None:
    async with engine() as harness:
        dump = await harness.worker.call("dump_invariants")
        assert isinstance(dump, dict)
        assert dump["fake:1"]["broken_invariant"] == ""
