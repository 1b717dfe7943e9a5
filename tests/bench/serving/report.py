"""The table that a person reads."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from tests.bench.serving.summary import Pair, Row, rows, same_answers
from tests.bench.serving.timeline import UNITS

LABELS = {
    "output_rate": "output rate",
    "ttft_p50": "TTFT p50",
    "ttft_p99": "TTFT p99",
    "tpot_p50": "TPOT p50",
    "tpot_p99": "TPOT p99",
    "itl_before_p50": "between tokens, before: p50",
    "itl_before_p99": "between tokens, before: p99",
    "itl_during_p50": "between tokens, during: p50",
    "itl_during_max": "between tokens, during: longest",
    "late_ttft": "TTFT of the late prompt",
}


def print_report(console: Console, title: str, pairs: Sequence[Pair]) -> None:
    found = rows(pairs)
    table = Table(title=title, title_justify="left")
    for name in ("case", "", "octavo", "transformers", "unit", "ratio", "lowest-highest", "pairs"):
        is_text = name in ("case", "", "unit")
        table.add_column(name, justify="left" if is_text else "right", no_wrap=True)
    for before, row in zip([None, *found], found, strict=False):
        if before is not None and before.case != row.case:
            table.add_section()
        table.add_row(*_cells(row, is_first=before is None or before.case != row.case))
    console.print(table)
    console.print("ratio: octavo / transformers, of passes taken one right after the other.")
    if any(row.num_noisy for row in found):
        console.print(
            "! others used the machine or it slowed down in every pair: do not quote these."
        )
    shares = ", ".join(f"{case} {share:.0%}" for case, share in same_answers(pairs).items())
    console.print(f"Answers with the same tokens on both sides: {shares}.")


def _cells(row: Row, *, is_first: bool) -> list[str]:
    return [
        row.case if is_first else "",
        LABELS[row.metric],
        figure(row.ours),
        figure(row.peers),
        UNITS[row.metric],
        f"{row.ratio:.2f}x",
        f"{row.lowest:.2f}-{row.highest:.2f}",
        f"{row.num_pairs}{' !' if row.num_noisy else ''}",
    ]


def figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
