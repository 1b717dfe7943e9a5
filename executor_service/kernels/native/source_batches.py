"""Which C sources are compiled together: as many batches as there are cores, each about as long."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

_MAX_BATCHES = 6
"""More would wait for the longest source anyway."""
_COMPILE_S = {
    "attention_floats.c": 0.6,
    "linear_q4.c": 1.2,
    "linear_f32.c": 0.8,
    "linear_q6.c": 0.5,
    "linear_int8.c": 0.4,
}
"""Seconds of one core for what makes many kernels of one text, so that batches take about as long
as each other. A wrong figure costs a wait and nothing else."""
_USUAL_COMPILE_S = 0.15
_LONGEST_COMPILE_S = 2.5


def source_batches(
    sources: Sequence[Path], longest: str, count: int, directory: Path
) -> list[Path]:
    """Files in the directory that include all sources; `longest`: the name of the slowest."""
    seconds = {**_COMPILE_S, longest: _LONGEST_COMPILE_S}

    def weight(source: Path) -> float:
        return seconds.get(source.name, _USUAL_COMPILE_S)

    batches: list[list[Path]] = [[] for _ in range(min(count, _MAX_BATCHES))]
    weights = [0.0] * len(batches)
    for source in sorted(sources, key=weight, reverse=True):
        least = weights.index(min(weights))
        batches[least].append(source)
        weights[least] += weight(source)
    paths = []
    for i, batch in enumerate(batches):
        path = directory / f"batch{i}.c"
        path.write_text("".join(f'#include "{source.name}"\n' for source in batch))
        paths.append(path)
    return paths
