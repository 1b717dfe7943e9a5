from __future__ import annotations

from octavo.retries import RetryPolicy


def test_pauses_double_up_to_the_bound_with_jitter_below_it() -> None:
    policy = RetryPolicy(first_delay_s=1.0, max_delay_s=5.0)
    for tries, bound in ((1, 1.0), (2, 2.0), (3, 4.0), (4, 5.0), (50, 5.0)):
        delays = [policy.delay_s(tries) for _ in range(200)]
        assert all(bound / 2 <= delay <= bound for delay in delays)
        assert max(delays) - min(delays) > bound / 8


def test_a_resume_outlasts_a_restart_and_a_first_call_says_soon_that_nobody_is_there() -> None:
    policy = RetryPolicy()

    def longest_s(tries: int) -> float:
        bounds = (policy.first_delay_s * 2**n for n in range(tries - 1))
        return sum(min(policy.max_delay_s, bound) for bound in bounds)

    assert 20 < longest_s(policy.max_resumes) / 2 < longest_s(policy.max_resumes) < 60
    assert 0.5 < longest_s(policy.max_tries) < 3
