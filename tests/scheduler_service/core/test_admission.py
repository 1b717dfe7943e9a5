from __future__ import annotations

from scheduler_service.core.admission import MAX_PASSES
from scheduler_service.core.twins import MAX_TWIN_WAITS
from tests.simulation.scenario import DEPTHS, run_steps, run_until, small_world
from tests.support.builders import make_request, random_ids


@DEPTHS
def test_a_prompt_starts_only_if_all_of_it_fits_beside_what_others_still_need(depth: int) -> None:
    """24 blocks: two prompts of 13 blocks each never run at once, however small their chunks."""
    world = small_world(depth=depth, max_num_batched_tokens=16)
    for i in range(2):
        world.add(make_request(f"r{i}", random_ids(i, 200), max_tokens=2))
    while world.scheduler.has_work:
        if not world.plan():
            world.deliver()
        assert world.scheduler.counters.num_running <= 1
    assert world.scheduler.counters.num_preemptions == 0


@DEPTHS
def test_one_that_does_not_fit_is_passed_at_most_max_passes_times(depth: int) -> None:
    world = small_world(depth=depth)
    world.add(make_request("holds", random_ids(1, 200), max_tokens=100))
    run_until(world, "holds", 1)
    world.add(make_request("large", random_ids(2, 200), max_tokens=2))
    for i in range(3 * MAX_PASSES):
        world.add(make_request(f"small{i}", random_ids(10 + i, 16), max_tokens=2))
    world.drain()
    assert list(world.num_cached_tokens).index("large") <= 1 + MAX_PASSES


@DEPTHS
def test_twins_wait_for_the_prefix_that_is_being_computed(depth: int) -> None:
    world = small_world(depth=depth)
    prompt = random_ids(1, 100)
    for i in range(3):
        world.add(make_request(f"r{i}", prompt, max_tokens=2))
    world.drain()
    assert list(world.num_cached_tokens.values()) == [0, 96, 96]
    assert world.scheduler.counters.num_computed_tokens == 100 + 1 + 2 * (4 + 1)


def test_a_twin_goes_on_when_the_one_it_waits_for_ends() -> None:
    world = small_world(max_num_batched_tokens=16)
    prompt = random_ids(1, 100)
    for i in range(2):
        world.add(make_request(f"r{i}", prompt, max_tokens=2))
    run_steps(world, 2)
    assert world.scheduler.counters.num_running == 1
    world.abort("r0")
    run_steps(world, 1)
    assert world.num_cached_tokens["r1"] == 32
    world.drain()


def test_a_twin_waits_for_a_bounded_time_only() -> None:
    """Its owner's next block never comes: it is the tail of an answer that ends nowhere."""
    world = small_world(block_size=4, num_blocks=1000, max_model_len=4000)
    world.add(make_request("owner", random_ids(1, 4), max_tokens=2000))
    run_until(world, "owner", 2)
    answer = world.choice("owner").expected
    # Always one block ahead of what is confirmed.
    prompt = [*world.choice("owner").request.prompt_token_ids, *answer]
    world.add(make_request("twin", prompt, max_tokens=2))
    steps = 0
    while "twin" not in world.num_cached_tokens:
        run_steps(world, 1)
        steps += 1
    assert steps <= MAX_TWIN_WAITS + 1
    world.abort("owner")
    world.drain()
