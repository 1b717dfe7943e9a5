from __future__ import annotations

from octavo.timing import AnswerTiming


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_ttft_tpot_and_rate_are_of_arrivals() -> None:
    clock = Clock()
    timing = AnswerTiming(clock)
    for now, num_tokens in ((0.5, 2), (0.6, 0), (0.7, 1), (1.0, 3)):
        clock.now = now
        timing.arrived(num_tokens)
    assert timing.ttft_s == 0.5
    assert timing.tpot_s is not None
    # Four tokens came after the first arrival, over half a second.
    assert abs(timing.tpot_s - 0.125) < 1e-9
    assert timing.tokens_per_s == 6.0
    assert timing.summary() == "TTFT 500 ms | TPOT 125.0 ms | 6.0 tokens/s | 6 tokens"


def test_what_is_unknown_is_a_dash() -> None:
    clock = Clock()
    timing = AnswerTiming(clock)
    assert timing.summary() == "TTFT - | TPOT - | - tokens/s | 0 tokens"
    clock.now = 0.5
    timing.arrived(1)
    assert timing.summary() == "TTFT 500 ms | TPOT - | 2.0 tokens/s | 1 token"
