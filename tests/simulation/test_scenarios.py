"""Situations that have broken schedulers, one test each. C numbers name acceptance cases."""

from __future__ import annotations

import random

import pytest

from common.plan import StepPlan
from scheduler_service.core.request import CacheRoot, FinishReason, Request
from tests.simulation.world import ROOT_SHIFT, World
from tests.support.builders import make_limits, make_request, random_ids

DEPTHS = pytest.mark.parametrize("depth", [1, 2])


def _world(**limits: int | bool) -> World:
    return World(make_limits(**limits))


def _config_l(**limits: int | bool) -> World:
    return _world(**{"num_blocks": 600, "max_model_len": 8192, **limits})


def _plans(world: World, count: int) -> list[StepPlan]:
    """Runs `count` steps to their results, as fast as depth allows; returns their plans."""
    plans: list[StepPlan] = []
    while len(plans) < count and world.scheduler.has_work:
        if world.plan():
            plans.append(world.in_flight[-1].plan)
        else:
            world.deliver()
    while world.deliver():
        pass
    return plans


def _end(world: World, request_id: str, choice: int = 0) -> FinishReason:
    end = world.choice(request_id, choice).end
    assert end is not None
    return end.reason


@DEPTHS
def test_c01_a_prompt_that_finds_the_pool_full_waits_and_completes(depth: int) -> None:
    world = _world(depth=depth)
    for i in range(3):
        world.add(make_request(f"r{i}", random_ids(i, 80), max_tokens=60))
    _plans(world, 6)
    world.add(make_request("late", random_ids(9, 200), max_tokens=8))
    world.drain()
    assert all(_end(world, c.request.request_id) is FinishReason.LENGTH for c in world.choices())


@DEPTHS
def test_c02_a_sequence_that_alone_outgrows_the_pool_ends_by_length(depth: int) -> None:
    world = _world(num_blocks=4, depth=depth)
    assert not world.add(make_request("explicit", random_ids(1, 40), max_tokens=100))
    world.add(make_request("clipped", random_ids(1, 40), max_tokens=None))
    world.drain()
    assert _end(world, "clipped") is FinishReason.LENGTH
    assert len(world.choice("clipped").tokens) == 4 * 16 - 40
    assert world.scheduler.counters.num_preemptions == 0
    world.add(make_request("probe", random_ids(2, 16)))
    world.drain()


@DEPTHS
def test_c05_mass_aborts_while_the_pool_is_saturated_leave_nothing(depth: int) -> None:
    world = _world(depth=depth)
    rng = random.Random(5)
    for round_ in range(5):
        for i in range(64):
            prompt = random_ids(round_ * 64 + i, rng.randint(100, 150))
            world.add(make_request(f"{round_}-{i}", prompt, max_tokens=64))
        _plans(world, 40)
        world.plan()
        for choice in world.ledger.live():
            world.abort(choice.request.request_id)
        while world.deliver():
            pass
        world.check_clean()
    assert world.scheduler.counters.num_preemptions > 0
    for i in range(8):
        world.add(make_request(f"fresh{i}", random_ids(1000 + i, 50)))
    world.drain()


def test_c07_fenced_blocks_do_not_make_victims_in_a_row() -> None:
    world = _world(depth=2, num_blocks=12, max_num_seqs=6, max_num_batched_tokens=256)
    world.add(make_request("needy", random_ids(9, 32), max_tokens=40))
    for i in range(5):
        world.add(make_request(f"r{i}", random_ids(i, 17), max_tokens=30))
    while world.scheduler.counters.num_preemptions == 0:
        before = world.scheduler.counters.num_preemptions
        if not world.plan():
            world.deliver()
        assert world.scheduler.counters.num_preemptions - before <= 1
    for _ in range(4):
        world.plan()  # nothing more can be had before a result comes
        assert world.scheduler.counters.num_preemptions == 1
    world.drain()


@DEPTHS
@pytest.mark.parametrize("length", [15, 16, 17, 31, 32, 33, 48, 64])
def test_c08_a_fully_cached_prompt_still_computes_its_last_token(depth: int, length: int) -> None:
    world = _world(depth=depth)
    prompt = random_ids(8, length)
    cached = []
    for i in range(3):
        world.add(make_request(f"r{i}", prompt, max_tokens=24))
        plans = _plans(world, 1000)
        first = plans[0]
        cached.append(world.num_cached_tokens[f"r{i}"])
        assert first.starts[0] == cached[-1]
        assert sum(p.lengths[0] for p in plans if p.starts[0] < length) == length - cached[-1]
    world.check_clean()
    assert cached == [0, (length - 1) // 16 * 16, (length - 1) // 16 * 16]


@DEPTHS
def test_c10_only_equal_tokens_hit(depth: int) -> None:
    world = _world(depth=depth, vocab_size=1 << 17)
    base = random_ids(10, 64, 1 << 17)
    for name, position, delta in (("a", 20, (1, -31)), ("b", 40, (31, -1)), ("c", 3, (5, -155))):
        variant = list(base)
        variant[position] += delta[0]
        variant[position + 1] += delta[1]
        world.add(make_request(f"base-{name}", base))
        world.drain()
        world.add(make_request(name, variant))
        world.drain()
        assert world.num_cached_tokens[name] == position // 16 * 16


@DEPTHS
def test_c13_recompute_after_preemption_is_no_prefix_hit(depth: int) -> None:
    world = _world(depth=depth)
    rng = random.Random(13)
    for i in range(16):
        world.add(make_request(f"r{i}", random_ids(i, rng.randint(60, 100)), max_tokens=64))
    world.drain()
    counters = world.scheduler.counters
    assert counters.num_preemptions > 0
    assert counters.num_prefix_hit_tokens == 0
    assert set(world.num_cached_tokens.values()) == {0}
    assert counters.num_recomputed_tokens > 0


@DEPTHS
@pytest.mark.parametrize("shared", [96, 80])
def test_c14_twins_never_read_what_no_result_has_confirmed(depth: int, shared: int) -> None:
    world = _world(depth=depth, num_blocks=100)
    base = random_ids(14, 96)
    for i in range(8):
        world.add(make_request(f"r{i}", base[:shared] + random_ids(i, 96 - shared), max_tokens=8))
    world.plan()
    world.break_stream(num_run=0)  # what was planned was never written
    world.drain()


@DEPTHS
def test_c20_running_fills_up_once_the_prompts_are_done(depth: int) -> None:
    world = _config_l(max_num_seqs=4, depth=depth)
    for i in range(6):
        world.add(make_request(f"r{i}", random_ids(i, 150), max_tokens=200))
    _plans(world, 600 // 64 + 1 + 2)
    assert world.scheduler.counters.num_running == 4
    world.abort("r1")
    world.abort("r2")
    # Two prompts of 150 tokens beside two decodes take five steps.
    _plans(world, 5 + 2)
    assert world.scheduler.counters.num_running == 4
    world.drain()


@DEPTHS
def test_c22_a_head_of_queue_that_does_not_fit_is_passed_a_bounded_number_of_times(
    depth: int,
) -> None:
    world = _world(depth=depth)
    for i in range(2):
        world.add(make_request(f"long{i}", random_ids(i, 96), max_tokens=90))
    _plans(world, 10)
    world.add(make_request("X", random_ids(7, 240), max_tokens=4))
    for i in range(300):
        world.add(make_request(f"small{i}", random_ids(100 + i, 16), max_tokens=4))
    world.drain()
    order = [request_id for request_id in world.num_cached_tokens if request_id != "X"]
    started = list(world.num_cached_tokens).index("X")
    assert started < 2 + 100, f"X was passed by {started - 2} of {len(order)}"


@DEPTHS
@pytest.mark.parametrize("preempt_after", [(5,), (40,), (90,), (5, 40)])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_c23_a_preempted_sequence_recomputes_prompt_and_outputs(
    depth: int, preempt_after: tuple[int, ...], temperature: float
) -> None:
    world = _world(depth=depth, max_num_batched_tokens=32)
    request = make_request("A", random_ids(23, 3), max_tokens=120, temperature=temperature, seed=7)
    world.add(request)
    for count in preempt_after:
        while len(world.choice("A").tokens) < count:
            world.plan() or world.deliver()
        sequence_id = world.scheduler.sequence_id_of(world.choice("A").key)
        assert sequence_id is not None
        world.preempt(sequence_id)
    world.drain()
    assert len(world.choice("A").tokens) == 120
    assert world.scheduler.counters.num_preemptions == len(preempt_after)


@DEPTHS
def test_c34_results_nobody_waits_for_are_ignored_and_counted(depth: int) -> None:
    world = _world(depth=depth)
    world.add(make_request("a", random_ids(1, 20)))
    world.plan()
    old = world.in_flight[0]
    world.break_stream(num_run=1)
    assert old.result is not None
    stale = world.scheduler.counters.num_stale_results
    world.scheduler.apply(old.result)  # of a stream that ended
    world.check()
    world.plan()
    world.deliver()
    world.repeat_result(0)  # twice
    world.abort("a")
    world.add(make_request("a2", random_ids(1, 20)))
    world.repeat_result(0)  # older than what runs now
    assert world.scheduler.counters.num_stale_results == stale + 3
    world.drain()


@DEPTHS
def test_the_seventeenth_token_takes_the_second_block_and_the_end_returns_both(depth: int) -> None:
    world = _world(depth=depth, enable_prefix_caching=False)
    world.add(make_request("r", random_ids(1, 16), max_tokens=3))
    seen = set()
    while world.scheduler.has_work:
        if world.plan():
            plan = world.in_flight[-1].plan
            seen.add((plan.starts[0] + plan.lengths[0], plan.table_lengths[0]))
        else:
            world.deliver()
    assert seen == {(16, 1), (17, 2), (18, 2)}
    assert world.scheduler.counters.num_free_blocks == world.limits.num_blocks


@DEPTHS
def test_a_hundred_requests_with_one_system_prompt_hold_and_compute_it_once(depth: int) -> None:
    world = _config_l(depth=depth, max_num_seqs=128, max_num_batched_tokens=512)
    system = random_ids(6, 2048)
    for i in range(100):
        world.add(make_request(f"r{i}", system + random_ids(i, 10), max_tokens=8))
    most = 0
    while world.scheduler.has_work:
        if not world.plan():
            world.deliver()
        most = max(most, world.scheduler.counters.num_referenced_blocks)
    counters = world.scheduler.counters
    # 128 blocks of the prompt, and two of its own for each request
    assert most <= 128 + 2 * 100
    assert counters.num_computed_tokens == 2048 + 100 * (10 + 7)
    assert counters.num_preemptions == 0


@DEPTHS
@pytest.mark.parametrize("n", [2, 4])
def test_choices_share_the_prompt_and_copy_only_its_tail(depth: int, n: int) -> None:
    world = _config_l(depth=depth)
    world.add(make_request("r", random_ids(1, 50), n=n, max_tokens=8, temperature=1.0, seed=3))
    most = 0
    while world.scheduler.has_work:
        if not world.plan():
            world.deliver()
        most = max(most, world.scheduler.counters.num_referenced_blocks)
    # 3 full blocks shared; the tail of 50 tokens once each: 50 + 8 outputs fit in 4 blocks
    assert most == 3 + n
    assert world.executor.num_copies == n - 1
    assert world.scheduler.counters.num_computed_tokens == 50 + n * 7


@DEPTHS
def test_a_killed_clients_blocks_are_back_within_two_steps(depth: int) -> None:
    world = _world(depth=depth, enable_prefix_caching=False)
    world.add(make_request("other", random_ids(1, 16), max_tokens=100))
    world.add(make_request("killed", random_ids(2, 100), max_tokens=100))
    _plans(world, 8)
    while world.plan():
        pass
    before = world.scheduler.counters.num_free_blocks
    world.abort("killed")
    for _ in range(2):
        world.deliver()
        world.plan()
    assert world.scheduler.counters.num_free_blocks >= before + 7 - 1


@DEPTHS
def test_a_deadline_that_passes_in_the_queue_costs_no_device_work(depth: int) -> None:
    world = _world(depth=depth, max_num_seqs=1)
    world.add(make_request("runs", random_ids(1, 16), max_tokens=20))
    world.add(make_request("waits", random_ids(2, 30), max_tokens=20, deadline=5.0))
    _plans(world, 3)
    world.expire(4.9)
    assert world.choice("waits").end is None
    world.expire(5.0)
    assert _end(world, "waits") is FinishReason.EXPIRED
    world.drain()
    assert world.scheduler.counters.num_computed_tokens == 16 + 19


def test_planning_a_step_never_changes_the_one_in_flight() -> None:
    """Preempting, forking, growing and committing between two plans leave the first as it was."""
    world = _world(depth=2, num_blocks=12)
    for i in range(4):
        world.add(make_request(f"r{i}", random_ids(i, 20), n=2, max_tokens=30, temperature=1.0))
    while world.scheduler.has_work:
        world.plan()  # compares every plan in flight with what it was
        world.plan()
        world.deliver()


def test_a_full_queue_refuses_and_forgets_the_request() -> None:
    world = _world(max_num_waiting=2)
    assert world.add(make_request("a", random_ids(1, 10)))
    assert world.add(make_request("b", random_ids(2, 10)))
    assert not world.add(make_request("c", random_ids(3, 10)))
    assert not world.scheduler.abort("c")
    world.drain()
    assert world.add(make_request("c", random_ids(3, 10)))
    world.drain()


@DEPTHS
def test_one_failed_sequence_leaves_its_batch_mates_alone(depth: int) -> None:
    world = _world(depth=depth)
    for i in range(4):
        world.add(make_request(f"r{i}", random_ids(i, 10), n=2, temperature=1.0))
    _plans(world, 2)
    bad = world.scheduler.sequence_id_of(world.choice("r1", 1).key)
    assert bad is not None
    world.fail_next(bad)
    world.drain()
    ends = {c.key: c.end.reason for c in world.choices() if c.end is not None}
    assert [key for key, reason in ends.items() if reason is FinishReason.ERROR] == [("r1", 1)]


@DEPTHS
def test_salted_requests_share_nothing_with_others(depth: int) -> None:
    world = _world(depth=depth)
    prompt = random_ids(1, 40)
    roots = [CacheRoot(), CacheRoot(tenant="a"), CacheRoot(cache_salt="a"), CacheRoot(adapter="a")]

    def ask(name: str, number: int) -> Request:
        seed = number << ROOT_SHIFT
        return make_request(name, prompt, seed=seed, cache_root=roots[number])

    for number in range(4):
        world.add(ask(f"cold{number}", number))
        world.drain()
        world.add(ask(f"warm{number}", number))
        world.drain()
        cached = [world.num_cached_tokens[f"{kind}{number}"] for kind in ("cold", "warm")]
        assert cached == [0, 32]
