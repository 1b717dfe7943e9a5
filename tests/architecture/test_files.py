from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("common", "scheduler_service", "executor_service", "octavo", "tests")
MAX_LINES = 400
NAMES_THAT_SAY_NOTHING = {"utils.py", "helpers.py", "base.py", "misc.py", "manager.py"}


def sources() -> list[Path]:
    return [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]


def test_no_file_grows_past_reading() -> None:
    long = {str(path): count for path in sources() if (count := _num_lines(path)) > MAX_LINES}
    assert not long


def test_files_are_named_after_their_concept() -> None:
    assert not [path for path in sources() if path.name in NAMES_THAT_SAY_NOTHING]


def _num_lines(path: Path) -> int:
    return len(path.read_text().splitlines())
