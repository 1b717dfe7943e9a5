"""Prompts that begin alike: computed once, stored once, never mixed up.

C numbers name acceptance cases.
"""

from __future__ import annotations

import random

import pytest

from scheduler_service.core.request import CacheRoot, Request
from tests.simulation.scenario import DEPTHS, large_world, run_steps, small_world
from tests.simulation.world import ROOT_SHIFT
from tests.support.builders import make_request, random_ids


@DEPTHS
@pytest.mark.parametrize("length", [15, 16, 17, 31, 32, 33, 48, 64])
def test_c08_a_fully_cached_prompt_still_computes_its_last_token(depth: int, length: int) -> None:
    world = small_world(depth=depth)
    prompt = random_ids(8, length)
    cached = []
    for i in range(3):
        world.add(make_request(f"r{i}", prompt, max_tokens=24))
        plans = run_steps(world, 1000)
        first = plans[0]
        cached.append(world.num_cached_tokens[f"r{i}"])
        assert first.starts[0] == cached[-1]
        assert sum(p.lengths[0] for p in plans if p.starts[0] < length) == length - cached[-1]
    world.check_clean()
    assert cached == [0, (length - 1) // 16 * 16, (length - 1) // 16 * 16]


@DEPTHS
def test_c10_only_equal_tokens_hit(depth: int) -> None:
    world = small_world(depth=depth, vocab_size=1 << 17)
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
    world = small_world(depth=depth)
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
    world = small_world(depth=depth, num_blocks=100)
    base = random_ids(14, 96)
    for i in range(8):
        world.add(make_request(f"r{i}", base[:shared] + random_ids(i, 96 - shared), max_tokens=8))
    world.plan()
    world.break_stream(num_run=0)  # what was planned was never written
    world.drain()


@DEPTHS
def test_a_hundred_requests_with_one_system_prompt_hold_and_compute_it_once(depth: int) -> None:
    world = large_world(depth=depth, max_num_seqs=128, max_num_batched_tokens=512)
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
    world = large_world(depth=depth)
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
def test_salted_requests_share_nothing_with_others(depth: int) -> None:
    world = small_world(depth=depth)
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
