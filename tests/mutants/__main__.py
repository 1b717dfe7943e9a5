"""`python -m tests.mutants`: every mutation of the list is applied to a copy of the tree, alone.

Exit status 1: a mutant survived its test, a mutation no longer fits the source, or a test fails
without any mutation.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.mutants.mutations import MUTATIONS, Mutation

ROOT = Path(__file__).parents[2]
ROOMS = ("proto", "common", "scheduler_service", "executor_service", "octavo", "tests")
TEST_TIMEOUT_S = 300


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="octavo-mutants-") as name:
        tree = Path(name)
        for room in ROOMS:
            ignored = shutil.ignore_patterns("__pycache__", "node_modules")
            shutil.copytree(ROOT / room, tree / room, ignore=ignored)
        shutil.copy(ROOT / "pyproject.toml", tree)
        tests = sorted({mutation.test for mutation in MUTATIONS})
        say(f"{len(tests)} tests without a mutation ... ", end="")
        failed = run_tests(tree, tests)
        if failed is not None:
            say(f"they must pass:\n{failed}")
            return 1
        say("passed")
        verdicts = [judge(tree, mutation) for mutation in MUTATIONS]
    survivors = verdicts.count(False)
    say(f"{len(verdicts) - survivors} of {len(verdicts)} mutants killed")
    return 1 if survivors else 0


def judge(tree: Path, mutation: Mutation) -> bool:
    """Whether the mutation still fits and its test fails with it."""
    path = tree / mutation.file
    source = path.read_text()
    count = source.count(mutation.old)
    started = time.monotonic()
    if count != 1:
        verdict = f"does not fit: its text occurs {count} times in {mutation.file}"
    else:
        path.write_text(source.replace(mutation.old, mutation.new))
        try:
            verdict = "SURVIVED" if run_tests(tree, [mutation.test]) is None else "killed"
        finally:
            path.write_text(source)
    seconds = time.monotonic() - started
    say(f"{mutation.invariant}  {verdict:<9} {seconds:5.1f} s  {mutation.what}  ({mutation.test})")
    return verdict == "killed"


def run_tests(tree: Path, tests: list[str]) -> str | None:
    """None if all pass, otherwise the end of pytest's output. A crash counts as a failure."""
    command = [sys.executable, "-B", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environ = {**os.environ, "PYTHONPATH": str(tree)}
    result = subprocess.run(
        command,
        cwd=tree,
        env=environ,
        capture_output=True,
        text=True,
        timeout=TEST_TIMEOUT_S,
        check=False,
    )
    if result.returncode == 0:
        return None
    if result.returncode not in (1, 2):
        raise RuntimeError(f"pytest could not run {tests}:\n{result.stdout}{result.stderr}")
    return result.stdout[-3000:]


def say(text: str, *, end: str = "\n") -> None:
    sys.stdout.write(text + end)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
