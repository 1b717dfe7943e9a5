"""The tables that a person reads: one for each workload and one of ours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rich.console import Console
from rich.table import Table

from tests.bench.serving.peers.standings import CaseStandings
from tests.bench.serving.report import LABELS, figure
from tests.bench.serving.summary import Row
from tests.bench.serving.timeline import UNITS

SHORT = {
    "output_rate": "rate",
    "ttft_p50": "TTFT p50",
    "ttft_p99": "TTFT p99",
    "tpot_p50": "TPOT p50",
    "itl_before_p50": "ITL before p50",
    "itl_during_p50": "ITL during p50",
    "itl_during_max": "ITL during max",
    "late_ttft": "late TTFT",
}
"""Metrics shown. Those of the late prompt take the place of the others where there is one."""


def print_report(console: Console, title: str, cases: Iterable[CaseStandings]) -> None:
    console.print(title)
    any_noisy = False
    for case in cases:
        console.print(_table(case))
        for line in _against_best(case):
            console.print(line, highlight=False)
        console.print()
        any_noisy |= any(standing.rows["output_rate"].num_noisy for standing in case.peers)
    console.print("ratio: octavo / peer, of passes in one round; in brackets lowest-highest.")
    if any_noisy:
        console.print(
            "! others used the machine or it slowed down in every round: do not quote these."
        )


def print_left_out(console: Console, out: Mapping[str, str]) -> None:
    for name, reason in out.items():
        console.print(f"left out: {name}: {reason}", highlight=False, markup=False)


def _table(case: CaseStandings) -> Table:
    metrics = [metric for metric in SHORT if metric in case.ours]
    if "late_ttft" in metrics:
        metrics = [metric for metric in metrics if not metric.startswith("t")]
    table = Table(
        title=f"{case.case}, {case.own} and {case.weight_class} peers", title_justify="left"
    )
    table.add_column("", no_wrap=True)
    for metric in metrics:
        table.add_column(f"{SHORT[metric]}\n{UNITS[metric]}", justify="right", no_wrap=True)
    table.add_column("same\nanswers", justify="right")
    table.add_row(case.own, *(figure(case.ours[metric].ours) for metric in metrics), "")
    for standing in case.peers:
        mark = " !" if standing.rows["output_rate"].num_noisy else ""
        cells = [_cell(standing.rows[metric]) for metric in metrics]
        table.add_row(f"{standing.peer}{mark}", *cells, f"{standing.same_answers:.0%}")
    return table


def _cell(row: Row) -> str:
    return f"{figure(row.peers)} ({row.ratio:.2f}x)"


def _against_best(case: CaseStandings) -> Iterable[str]:
    for metric in ("output_rate", "ttft_p99", "tpot_p50", "itl_during_max"):
        best = case.best(metric)
        if metric in case.ours and best is not None:
            row = best.rows[metric]
            yield (
                f"{LABELS[metric]}: {row.ratio:.2f}x the best, {best.peer}"
                f" ({row.lowest:.2f}-{row.highest:.2f}, rounds: {row.num_pairs})"
            )
