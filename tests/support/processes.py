"""What a test can see of processes it started, from /proc."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def is_gone(pid: int) -> bool:
    """Whether the process has ended; a zombie that nobody reaped counts."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rsplit(")", 1)[1].split()[0] == "Z"


def descendants(pid: int) -> set[int]:
    """Children, their children and so on, as of now."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(child) for child in task.read_text().split()]
        except OSError:
            continue
        for child in children:
            found |= {child} | descendants(child)
    return found


def command_line(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


def eventually(condition: Callable[[], bool], patience_s: float = 20.0) -> bool:
    """Whether the condition came true in time."""
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
