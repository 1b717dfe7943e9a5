from __future__ import annotations

from octavo.retries import RetryPolicy


def test_pauses_double_up_to_the_bound_with_jitter_below_it() -> None:
    policy = RetryPolicy(first_delay_s=1.0, max_delay_s=5.0)
    for tries, bound in ((1, 1.0), (2, 2.0), (3, 4.0), (4, 5.0), (50, 5.0)):
        delays = [policy.delay_s(tries) for _ in range(200)]
        assert all(bound / 2 <= delay <= bound for delay in delays)
        assert max(delays) - min(delays) > bound / 8


def test_the_default_outlasts_a_restart_but_not_a_minute() -> None:
    policy = RetryPolicy()
    bounds = [
        min(policy.max_delay_s, policy.first_delay_s * 2 ** (tries - 1))
        for tries in range(1, policy.max_tries)
    ]
    assert sum(bounds) / 2 > 5
    assert sum(bounds) < 60
