"""Medians over rounds, and ratios of what was measured side by side."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tests.bench.records import Record
from tests.bench.serving.noise import Noise
from tests.bench.serving.timeline import UNITS, Outcome

PEER = "transformers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One pass of one side."""

    figures: dict[str, float]
    noise: Noise
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """What was measured one right after the other."""

    case: str
    ours: Sample
    peers: Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One metric of one workload."""

    case: str
    metric: str
    ours: float
    peers: float
    ratio: float
    """Ours / peer's: the median of the pairs'."""
    lowest: float
    highest: float
    num_pairs: int
    num_noisy: int
    """Of these. Clean pairs, if there are any, are the only ones that count."""


def rows(pairs: Sequence[Pair]) -> list[Row]:
    best_probe = max(
        sample.noise.probe_gflops for pair in pairs for sample in (pair.ours, pair.peers)
    )

    def is_clean(pair: Pair) -> bool:
        return pair.ours.noise.is_clean(best_probe) and pair.peers.noise.is_clean(best_probe)

    cases = list(dict.fromkeys(pair.case for pair in pairs))
    return [
        row
        for case in cases
        for row in _rows_of([pair for pair in pairs if pair.case == case], is_clean)
    ]


def _rows_of(pairs: Sequence[Pair], is_clean: Callable[[Pair], bool]) -> Iterable[Row]:
    clean = [pair for pair in pairs if is_clean(pair)]
    used = clean or pairs
    for metric in (name for name in UNITS if name in pairs[0].ours.figures):
        ours = [pair.ours.figures[metric] for pair in used]
        peers = [pair.peers.figures[metric] for pair in used]
        ratios = [our / peer for our, peer in zip(ours, peers, strict=True)]
        yield Row(
            case=pairs[0].case,
            metric=metric,
            ours=statistics.median(ours),
            peers=statistics.median(peers),
            ratio=statistics.median(ratios),
            lowest=min(ratios),
            highest=max(ratios),
            num_pairs=len(used),
            num_noisy=0 if clean else len(used),
        )


def same_answers(pairs: Iterable[Pair]) -> dict[str, float]:
    """By case: the share of answers that are the same tokens on both sides."""
    same: dict[str, list[bool]] = {}
    for pair in pairs:
        for ours, peers in zip(pair.ours.outcome.answers, pair.peers.outcome.answers, strict=True):
            same.setdefault(pair.case, []).append(ours.tokens == peers.tokens)
    return {case: statistics.fmean(matches) for case, matches in same.items()}


def records(pairs: Sequence[Pair]) -> list[Record]:
    """Per row our figure and the peer's; then what says how far to trust them."""
    found: list[Record] = []
    for row in rows(pairs):
        unit = UNITS[row.metric]
        found.append(Record(case=row.case, metric=row.metric, value=row.ours, unit=unit))
        found.append(
            Record(
                case=row.case,
                metric=row.metric,
                value=row.peers,
                unit=unit,
                peer=PEER,
                ratio=row.ratio,
            )
        )
        if row.metric == "output_rate":
            noisy = {"metric": "noisy_pairs", "value": row.num_noisy, "unit": "pairs"}
            found.append(Record(case=row.case, **noisy))  # type: ignore[arg-type]
    for case, share in same_answers(pairs).items():
        found.append(Record(case=case, metric="same_answers", value=share, unit="share"))
    probes = [s.noise.probe_gflops for pair in pairs for s in (pair.ours, pair.peers)]
    for metric, value in (("sgemm_best", max(probes)), ("sgemm_worst", min(probes))):
        found.append(Record(case="machine", metric=metric, value=value, unit="GFLOP/s"))
    return found
