"""Medians of every contestant, and the ratios of ours to the peers of its class."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.bench.records import Record
from tests.bench.serving.peers.contest import Entry
from tests.bench.serving.peers.contestant import Contestant, WeightClass
from tests.bench.serving.summary import Pair, Row, Sample, rows, same_answers
from tests.bench.serving.timeline import UNITS

HIGHER_IS_BETTER = frozenset({"output_rate"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One peer beside ours in one workload."""

    peer: str
    rows: dict[str, Row]
    """By metric."""
    same_answers: float
    """Share of answers with the same tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseStandings:
    """One of ours and the peers of its class in one workload."""

    case: str
    own: str
    """Name of ours."""
    weight_class: WeightClass
    ours: dict[str, Row]
    """Beside itself: every ratio is 1."""
    peers: Sequence[Standing]

    @property
    def label(self) -> str:
        """The default's cases have the workload's own name, others add what follows in theirs."""
        return f"{self.case} {self.own.partition(' ')[2]}".strip()

    def best(self, metric: str) -> Standing | None:
        """Of the peers."""
        able = [standing for standing in self.peers if metric in standing.rows]
        if not able:
            return None
        sign = -1 if metric in HIGHER_IS_BETTER else 1
        return min(able, key=lambda standing: sign * standing.rows[metric].peers)


def case_standings(
    entries: Sequence[Entry], ours: Sequence[Contestant], peers: Sequence[Contestant]
) -> list[CaseStandings]:
    """For each of ours that took part."""
    samples = {(entry.case, entry.name, entry.round): entry.sample for entry in entries}
    found = []
    for case in dict.fromkeys(entry.case for entry in entries):
        for own in ours:
            mine = [(n, s) for (c, name, n), s in samples.items() if (c, name) == (case, own.name)]
            if not mine:
                continue
            standings = [
                _standing(case, peer.name, mine, samples)
                for peer in peers
                if peer.weight_class == own.weight_class
            ]
            itself = [Pair(case=case, ours=sample, peers=sample) for _, sample in mine]
            found.append(
                CaseStandings(
                    case=case,
                    own=own.name,
                    weight_class=own.weight_class,
                    ours={row.metric: row for row in rows(itself)},
                    peers=[standing for standing in standings if standing is not None],
                )
            )
    return found


def _standing(
    case: str,
    peer: str,
    mine: Iterable[tuple[int, Sample]],
    samples: dict[tuple[str, str, int], Sample],
) -> Standing | None:
    """None for a peer that never got so far. Pairs are of one round."""
    pairs = [
        Pair(case=case, ours=sample, peers=samples[case, peer, number])
        for number, sample in mine
        if (case, peer, number) in samples
    ]
    if not pairs:
        return None
    by_metric = {row.metric: row for row in rows(pairs)}
    return Standing(peer=peer, rows=by_metric, same_answers=same_answers(pairs)[case])


def records(cases: Iterable[CaseStandings], entries: Sequence[Entry]) -> list[Record]:
    found: list[Record] = []
    for case in cases:
        for metric, own in case.ours.items():
            unit = UNITS[metric]
            found.append(Record(case=case.label, metric=metric, value=own.ours, unit=unit))
            found += [
                Record(
                    case=case.label,
                    metric=metric,
                    value=standing.rows[metric].peers,
                    unit=unit,
                    peer=standing.peer,
                    ratio=standing.rows[metric].ratio,
                )
                for standing in case.peers
            ]
            best = case.best(metric)
            if best is not None:
                row = best.rows[metric]
                who = f"best {case.weight_class}: {best.peer}"
                best_of = {"value": row.peers, "unit": unit, "peer": who, "ratio": row.ratio}
                found.append(Record(case=case.label, metric=metric, **best_of))  # type: ignore[arg-type]
        found += [
            Record(case=case.label, metric=metric, value=value, unit=unit, peer=standing.peer)
            for standing in case.peers
            for metric, value, unit in (
                ("same_answers", standing.same_answers, "share"),
                ("noisy_pairs", standing.rows["output_rate"].num_noisy, "pairs"),
            )
        ]
    probes = [entry.sample.noise.probe_gflops for entry in entries]
    for metric, value in (("sgemm_best", max(probes)), ("sgemm_worst", min(probes))):
        found.append(Record(case="machine", metric=metric, value=value, unit="GFLOP/s"))
    return found
