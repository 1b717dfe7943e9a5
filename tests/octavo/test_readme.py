"""What README.md names exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from octavo.__main__ import COMMANDS
from octavo.commands.up import make_parser

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def test_every_file_of_the_map_exists() -> None:
    rows = [line for line in README.split("## Where is what")[1].splitlines() if "| `" in line]
    assert len(rows) > 15
    for row in rows:
        folder = Path()
        for name in re.findall(r"`([^`]+)`", row.split("|")[2]):
            # Later names of a row may leave out the folder of the first.
            path = Path(name) if "/" in name else folder / name
            assert (ROOT / path).exists(), path
            folder = path.parent


def test_every_flag_of_the_table_is_one_of_up() -> None:
    rows = [line for line in README.split("### Flags")[1].splitlines() if line.startswith("| `--")]
    known = {flag for action in make_parser()._actions for flag in action.option_strings}
    flags = {flag for row in rows for flag in re.findall(r"--[a-z-]+", row.split("|")[1])}
    assert len(flags) > 10
    assert flags <= known


def test_every_command_line_names_a_command_that_exists() -> None:
    lines = re.findall(r"^\.venv/bin/python -m octavo (.*)$", README, flags=re.MULTILINE)
    assert {shlex.split(line)[0] for line in lines} <= set(COMMANDS)
    assert lines


@pytest.mark.parametrize("target", sorted(set(re.findall(r"^make ([a-z-]+)", README, re.M))))
def test_every_make_target_exists(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M)
