from __future__ import annotations

from collections.abc import Mapping

from executor_service.runner.team_size import TeamSize


class Steps:
    """Runs steps one after the other on a clock of its own."""

    def __init__(self, most: int) -> None:
        self.team = TeamSize(most)
        self._now_ns = 0
        self._last_size = most

    def run(self, num_steps: int, times: Mapping[int, int], num_tokens: int = 1) -> list[int]:
        """The sizes that were asked for. Steps take `times` by their size, longer the first time
        after a change."""
        sizes: list[int] = []
        for _ in range(num_steps):
            sizes.append(self.team.of(num_tokens))
            self._now_ns += times[sizes[-1]] + 1000 * (sizes[-1] != self._last_size)
            self.team.ended(num_tokens, self._now_ns)
            self._last_size = sizes[-1]
        return sizes

    def pause(self, nanoseconds: int) -> None:
        self._now_ns += nanoseconds


def test_the_faster_of_all_threads_and_one_fewer_is_taken_within_fifty_steps() -> None:
    assert set(Steps(2).run(500, {2: 130, 1: 110})[50:70]) == {1}
    assert set(Steps(8).run(500, {8: 130, 7: 110})[50:70]) == {7}
    assert set(Steps(2).run(500, {2: 100, 1: 130})[50:70]) == {2}


def test_trials_of_what_is_slower_become_rare() -> None:
    sizes = Steps(2).run(4000, {2: 100, 1: 130})
    assert 0 < sizes[:400].count(1) < 0.12 * 400
    assert 0 < sizes[2000:].count(1) < 0.02 * 2000


def test_a_trial_of_what_is_far_slower_ends_after_three_steps() -> None:
    sizes = Steps(2).run(600, {2: 100, 1: 190})
    first = sizes.index(1)
    assert sizes[first : first + 4] == [1, 1, 1, 2]
    assert 0 < sizes[first + 4 :].count(1) <= 6


def test_one_long_step_does_not_end_a_trial() -> None:
    team, now_ns, alone = TeamSize(2), 0, 0
    for _ in range(60):
        size = team.of(1)
        alone += size == 1
        now_ns += 100 if size == 2 else 200 if alone == 2 else 80
        team.ended(1, now_ns)
    assert team.of(1) == 1


def test_what_becomes_faster_later_is_found() -> None:
    steps = Steps(2)
    steps.run(1000, {2: 100, 1: 130})
    assert steps.run(1200, {2: 150, 1: 130})[-1] == 1


def test_times_that_differ_little_change_nothing() -> None:
    assert Steps(2).run(5000, {2: 100, 1: 98}).count(1) < 150


def test_steps_that_now_and_then_wait_long_are_worse_than_all_a_little_longer() -> None:
    team, now_ns = TeamSize(2), 0
    for step in range(200):
        alone = team.of(1) == 1
        now_ns += 115 if alone else 250 if step % 4 == 0 else 100
        team.ended(1, now_ns)
    assert team.of(1) == 1


def test_pauses_decide_nothing() -> None:
    steps = Steps(2)
    for _ in range(300):
        steps.run(6, {2: 100, 1: 105})
        steps.pause(10_000)
    assert steps.run(20, {2: 100, 1: 105}).count(2) > 10


def test_many_tokens_take_all_threads_and_one_thread_is_never_less() -> None:
    assert set(Steps(2).run(200, {2: 130, 1: 110}, num_tokens=17)) == {2}
    assert set(Steps(1).run(200, {1: 110})) == {1}


def test_steps_of_other_sizes_choose_apart() -> None:
    steps = Steps(2)
    for _ in range(20):
        steps.run(10, {2: 130, 1: 110})
        steps.run(10, {2: 130, 1: 210}, num_tokens=8)
    assert [steps.team.of(1), steps.team.of(8)] == [1, 2]
