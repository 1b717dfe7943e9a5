from __future__ import annotations

import io
from dataclasses import dataclass

import pytest
from rich.console import Console

from tests.bench.records import Record
from tests.bench.serving.noise import Noise
from tests.bench.serving.peers.contest import Entry
from tests.bench.serving.peers.contestant import WeightClass
from tests.bench.serving.peers.report import print_report
from tests.bench.serving.peers.standings import CaseStandings, case_standings, records
from tests.bench.serving.summary import Sample
from tests.bench.serving.timeline import Outcome, Timeline

QUIET = Noise(foreign=0.0, run_delay=0.0, probe_gflops=300.0)


@dataclass(frozen=True)
class Named:
    name: str
    weight_class: WeightClass

    def started(self, threads: int) -> None:
        raise NotImplementedError


OURS = [
    Named("octavo", WeightClass.QUANTIZED),
    Named("octavo float32", WeightClass.FLOAT32),
    Named("octavo int8", WeightClass.QUANTIZED),
]
PEERS = [
    Named("fast int8", WeightClass.QUANTIZED),
    Named("slow int8", WeightClass.QUANTIZED),
    Named("fp32", WeightClass.FLOAT32),
    Named("absent", WeightClass.FLOAT32),
]


def entry(name: str, rate: float, number: int = 0, ttft: float = 1.0) -> Entry:
    figures = {"output_rate": rate, "ttft_p99": ttft}
    outcome = Outcome(answers=[Timeline(0.0, [1.0], [7 if "fast" in name else 8])])
    sample = Sample(figures=figures, noise=QUIET, outcome=outcome)
    return Entry(round=number, case="W1", name=name, sample=sample)


ENTRIES = [
    entry("octavo", 100, ttft=0.5),
    entry("fast int8", 50, ttft=4.0),
    entry("slow int8", 10, ttft=1.0),
    entry("octavo float32", 30),
    entry("fp32", 20),
    entry("octavo", 120, 1, ttft=0.5),
    entry("fast int8", 40, 1, ttft=4.0),
    entry("octavo", 90, 2, ttft=0.5),
]


@pytest.fixture
def cases() -> list[CaseStandings]:
    return case_standings(ENTRIES, OURS, PEERS)  # type: ignore[arg-type]


def test_ours_is_compared_with_peers_of_its_own_class(cases: list[CaseStandings]) -> None:
    quantized, float32 = cases
    assert [standing.peer for standing in quantized.peers] == ["fast int8", "slow int8"]
    assert [standing.peer for standing in float32.peers] == ["fp32"]
    assert (quantized.label, float32.label) == ("W1", "W1 float32")
    assert float32.peers[0].rows["output_rate"].ratio == 1.5


def test_ratios_are_of_passes_in_one_round(cases: list[CaseStandings]) -> None:
    row = cases[0].peers[0].rows["output_rate"]
    assert (row.lowest, row.highest, row.num_pairs) == (2.0, 3.0, 2)
    assert row.ratio == 2.5
    assert cases[0].ours["output_rate"].ours == 100


def test_each_of_ours_in_a_class_is_compared_with_all_its_peers() -> None:
    entries = [*ENTRIES, entry("octavo int8", 25)]
    cases = case_standings(entries, OURS, PEERS)  # type: ignore[arg-type]
    assert [case.label for case in cases] == ["W1", "W1 float32", "W1 int8"]
    ratios = [standing.rows["output_rate"].ratio for standing in cases[2].peers]
    assert ratios == [0.5, 2.5]


def test_the_best_is_by_metric(cases: list[CaseStandings]) -> None:
    rate, wait = cases[0].best("output_rate"), cases[0].best("ttft_p99")
    assert rate is not None
    assert wait is not None
    assert (rate.peer, wait.peer) == ("fast int8", "slow int8")


def test_records_hold_ours_each_peer_and_the_best(cases: list[CaseStandings]) -> None:
    found = records(cases, ENTRIES)
    rates = [r for r in found if (r.case, r.metric) == ("W1", "output_rate")]
    assert [(r.peer, r.value, r.ratio) for r in rates] == [
        (None, 100, None),
        ("fast int8", 45, 2.5),
        ("slow int8", 10, 10.0),
        ("best quantized: fast int8", 45, 2.5),
    ]
    assert {r.unit for r in rates} == {"tokens/s"}
    same = Record(case="W1", metric="same_answers", value=1.0, unit="share", peer="slow int8")
    assert same in found


def test_the_report_names_everybody_and_the_ratio_to_the_best(cases: list[CaseStandings]) -> None:
    out = io.StringIO()
    print_report(Console(file=out, width=140), "title", cases)
    text = out.getvalue()
    assert all(name in text for name in ("octavo", "fast int8", "slow int8", "fp32"))
    assert "output rate: 2.50x the best, fast int8 (2.00-3.00, rounds: 2)" in text
    assert "TTFT p99: 0.50x the best, slow int8" in text
