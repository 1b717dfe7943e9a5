# ruff: noqa: T201 - a command prints
"""Compiles for each chip, prints a line a kernel, and compares with the committed table."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import triton

from tests.aot.compiled import compile_launch, specialization
from tests.aot.figures import SHARED_LIMITS, Figures, problems
from tests.aot.launches import Launch, attention_launches, launches
from tests.aot.models import HEADS, MODELS, VARIANTS

_SPILLS_ELSEWHERE = 64
"""That the compiler of another version may show: its registers are not what launches were chosen
for, and so few cost a little time."""
TABLE = Path(__file__).parent / "table.json"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.aot", description=__doc__)
    parser.add_argument("--write", action="store_true", help="make the table anew")
    parser.add_argument("--arch", type=int, choices=SHARED_LIMITS, action="append")
    arguments = parser.parse_args()
    archs = arguments.arch or list(SHARED_LIMITS)
    table = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    with tempfile.TemporaryDirectory() as cache:
        os.environ.setdefault("TRITON_CACHE_DIR", cache)
        found = {f"sm_{arch}": dict(_compiled(arch)) for arch in archs}
    is_tables = arguments.write or table.get("triton") == triton.__version__
    most_spills = 0 if is_tables else _SPILLS_ELSEWHERE
    wrong = [
        f"{chip}: {name}: {problem}"
        for arch, (chip, rows) in zip(archs, found.items(), strict=True)
        for name, figures in rows.items()
        for problem in problems(name, figures, arch, most_spills)
    ]
    made = {chip: {name: f.as_json() for name, f in rows.items()} for chip, rows in found.items()}
    if arguments.write:
        table = {**table, "triton": triton.__version__, **made}
        TABLE.write_text(json.dumps(table, indent=1) + "\n")
    elif not is_tables:
        print(
            f"the table is of triton {table.get('triton')}, this is {triton.__version__}:"
            f" figures are not compared, limits are, with up to {most_spills} spills"
        )
    else:
        wrong += [line for chip in made for line in _differences(chip, table[chip], made[chip])]
    print(*wrong, sep="\n")
    print(f"{sum(map(len, made.values()))} kernels compiled, {len(wrong)} problems")
    return 1 if wrong else 0


def _compiled(arch: int) -> Iterator[tuple[str, Figures]]:
    known: dict[str, Figures] = {}
    recorded = [(model, launches(model, arch)) for model in MODELS]
    recorded += [(model, attention_launches(model, arch)) for model in (*HEADS, *VARIANTS)]
    for model, of_model in recorded:
        counts: Counter[str] = Counter()
        for key, launch in {_key(launch): launch for launch in of_model}.items():
            kernel = launch.name
            counts[kernel] += 1
            name = f"{model.name}: {kernel}" + (f" {counts[kernel]}" if counts[kernel] > 1 else "")
            if key not in known:
                known[key] = compile_launch(launch, arch)
            print(f"sm_{arch} {name}: {known[key].as_json()}", flush=True)
            yield name, known[key]


def _key(launch: Launch) -> str:
    return f"{launch.kernel.__name__} {specialization(launch)} {launch.options}"


def _differences(
    chip: str, table: dict[str, dict[str, int]], made: dict[str, dict[str, int]]
) -> Iterator[str]:
    for name in sorted(table.keys() | made.keys()):
        if table.get(name) != made.get(name):
            yield f"{chip}: {name}: the table says {table.get(name)}, it is {made.get(name)}"


if __name__ == "__main__":
    sys.exit(main())
