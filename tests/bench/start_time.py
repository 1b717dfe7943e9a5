"""From a command to the first word of its answer: `python -m tests.bench.start_time`.

`octavo generate` starts both services, asks, and prints as tokens come. The first start compiles
the native kernels, as where no setup has done so; later ones find them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def _first_word_s(model: str, folder: Path) -> float:
    command = [sys.executable, "-m", "octavo", "generate", "The capital of France is"]
    started = time.perf_counter()
    with subprocess.Popen(
        [*command, f"--model={model}", "--max-tokens=8"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"OCTAVO_CACHE_DIR": str(folder)},
    ) as process:
        assert process.stdout is not None
        first = process.stdout.read(1)
        took = time.perf_counter() - started
        process.communicate()
    assert first and process.returncode == 0, "no answer came"
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rounds", type=int, default=3)
    flags = parser.parse_args()
    firsts, laters = [], []
    for _ in range(flags.rounds):
        with tempfile.TemporaryDirectory() as folder:
            firsts.append(_first_word_s(flags.model, Path(folder)))
            laters.append(_first_word_s(flags.model, Path(folder)))
    for name, took in (("first start", firsts), ("later", laters)):
        print(f"{name:12} {statistics.median(took):.1f} s ({min(took):.1f}-{max(took):.1f})")


if __name__ == "__main__":
    main()
