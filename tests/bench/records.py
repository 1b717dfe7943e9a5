"""What every benchmark leaves behind: a JSON list of figures in one form."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    case: str
    metric: str
    value: float
    unit: str
    peer: str | None = None
    """Whose figure it is; None: ours."""
    ratio: float | None = None
    """With a peer: our figure divided by the peer's."""


def write_records(path: Path, records: Iterable[Record]) -> None:
    lines = (json.dumps(asdict(record)) for record in records)
    path.write_text("[\n" + ",\n".join(f"  {line}" for line in lines) + "\n]\n")


def print_records(title: str, records: Iterable[Record]) -> None:
    """A table of figures that have no peer."""
    # Not where figures are only made and written: machines with a GPU need not have it.
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for name in ("case", "metric", "value", "unit"):
        table.add_column(name, justify="right" if name == "value" else "left")
    for record in records:
        table.add_row(record.case, record.metric, f"{record.value:,.1f}", record.unit)
    Console().print(table)
