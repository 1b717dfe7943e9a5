from __future__ import annotations

import pytest

from tests.bench.serving.workloads import WORKLOADS, Workload


@pytest.mark.parametrize("name", WORKLOADS)
def test_it_is_the_same_every_time(name: str) -> None:
    assert WORKLOADS[name]() == WORKLOADS[name]()
    assert WORKLOADS[name]().name == name


def lengths(workload: Workload) -> list[int]:
    return [len(ask.prompt) for ask in workload.asks]


def outputs(workload: Workload) -> list[int]:
    return [ask.num_outputs for ask in workload.asks]


def test_w1_mixes_lengths() -> None:
    workload = WORKLOADS["W1"]()
    assert (len(workload.asks), workload.concurrency) == (32, 16)
    assert 32 <= min(lengths(workload)) < 80
    assert 200 < max(lengths(workload)) <= 256
    assert 16 <= min(outputs(workload)) < 40
    assert 110 < max(outputs(workload)) <= 128


def test_w2_shares_512_tokens_and_no_more() -> None:
    workload = WORKLOADS["W2"]()
    assert (len(workload.asks), workload.concurrency) == (32, 8)
    assert len({ask.prompt[:512] for ask in workload.asks}) == 1
    assert len({ask.prompt[512:528] for ask in workload.asks}) == 32
    assert all(544 <= length <= 576 for length in lengths(workload))
    assert set(outputs(workload)) == {32}


def test_w3_is_one_stream() -> None:
    workload = WORKLOADS["W3"]()
    assert (lengths(workload), outputs(workload), workload.concurrency) == ([64], [128], 1)


def test_w4_interrupts_while_every_stream_has_far_to_go() -> None:
    workload = WORKLOADS["W4"]()
    assert (len(workload.asks), workload.concurrency) == (8, 8)
    assert workload.interruption is not None
    assert len(workload.interruption.ask.prompt) == 1500
    assert workload.interruption.after_outputs < min(outputs(workload)) / 2
