from __future__ import annotations

import io

import pytest
from rich.console import Console

from tests.bench.serving.noise import Noise
from tests.bench.serving.report import print_report
from tests.bench.serving.summary import PEER, Pair, Sample, records, rows, same_answers
from tests.bench.serving.timeline import Outcome, Timeline

QUIET = Noise(foreign=0.0, run_delay=0.0, probe_gflops=300.0)
LOUD = Noise(foreign=0.5, run_delay=2.0, probe_gflops=100.0)


def sample(rate: float, noise: Noise = QUIET, tokens: tuple[int, ...] = (1, 2)) -> Sample:
    answers = [Timeline(0.0, [1.0] * len(tokens), list(tokens))]
    return Sample(
        figures={"output_rate": rate, "ttft_p50": 1 / rate},
        noise=noise,
        outcome=Outcome(answers=answers),
    )


def pair(ours: float, peers: float, noise: Noise = QUIET, case: str = "W1") -> Pair:
    return Pair(case=case, ours=sample(ours, noise), peers=sample(peers))


def test_ratios_are_of_pairs_and_their_median_and_ends_are_told() -> None:
    row = rows([pair(10, 5), pair(30, 10), pair(20, 5)])[0]
    assert (row.case, row.metric, row.ours, row.peers) == ("W1", "output_rate", 20, 5)
    assert (row.ratio, row.lowest, row.highest) == (3.0, 2.0, 4.0)
    assert (row.num_pairs, row.num_noisy) == (3, 0)


def test_noisy_pairs_do_not_count_beside_clean_ones() -> None:
    row = rows([pair(10, 5), pair(99, 1, LOUD)])[0]
    assert (row.ratio, row.num_pairs, row.num_noisy) == (2.0, 1, 0)


def test_noisy_pairs_are_marked_where_there_are_no_others() -> None:
    quiet_other = pair(1, 1, case="W2")
    first = rows([pair(10, 5, LOUD), pair(12, 4, LOUD), quiet_other])[0]
    assert (first.ratio, first.num_pairs, first.num_noisy) == (2.5, 2, 2)


def test_every_metric_of_every_case_has_a_row() -> None:
    found = rows([pair(10, 5), pair(8, 4, case="W2"), pair(20, 5)])
    assert [(row.case, row.metric) for row in found] == [
        ("W1", "output_rate"),
        ("W1", "ttft_p50"),
        ("W2", "output_rate"),
        ("W2", "ttft_p50"),
    ]


def test_equal_answers_are_counted_by_case() -> None:
    other = Pair(case="W1", ours=sample(1), peers=sample(1, tokens=(1, 3)))
    assert same_answers([pair(1, 1), other]) == {"W1": 0.5}


def test_records_hold_ours_without_a_peer_and_the_peers_with_the_ratio() -> None:
    found = records([pair(10, 5)])
    ours, peers = (r for r in found if r.metric == "output_rate")
    assert (ours.value, ours.peer, ours.ratio) == (10, None, None)
    assert (peers.value, peers.peer, peers.ratio) == (5, PEER, 2.0)
    assert next(r.value for r in found if r.metric == "noisy_pairs") == 0


@pytest.mark.parametrize(("noise", "marked"), [(QUIET, False), (LOUD, True)])
def test_the_table_marks_figures_not_to_quote(noise: Noise, *, marked: bool) -> None:
    out = io.StringIO()
    # The quiet case tells how fast the machine can be.
    pairs = [pair(10, 5, noise), pair(4, 2, case="W2")]
    print_report(Console(file=out, width=120), "title", pairs)
    assert ("do not quote" in out.getvalue()) == marked
    assert "2.00x" in out.getvalue()
