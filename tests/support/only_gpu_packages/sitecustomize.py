"""On PYTHONPATH: a process, and all that it starts, sees no packages but those of a GPU machine.

Torch, triton, transformers, grpcio and pytest, those named in ALSO_PACKAGES, and what all of these
say they need. Python imports a module of this name when it starts.
"""

from __future__ import annotations

import os
import re
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import (
    Distribution,
    PackageNotFoundError,
    packages_distributions,
    requires,
)
from typing import Any

ROOTS = ("torch", "triton", "transformers", "grpcio", "pytest")


def allowed_distributions() -> set[str]:
    found: set[str] = set()
    waiting = deque((*ROOTS, *os.environ.get("ALSO_PACKAGES", "").split()))
    while waiting:
        name = _normal(waiting.popleft())
        if name in found:
            continue
        found.add(name)
        try:
            needed = requires(name) or []
        except PackageNotFoundError:
            continue
        for requirement in needed:
            if "extra ==" not in requirement:
                waiting.append(re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0])
    return found


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


class OnlyAllowed:
    """Finds what `PathFinder` finds, less packages that some other distribution brought."""

    def __init__(self) -> None:
        self._allowed = allowed_distributions()
        self._blocked = {
            package
            for package, distributions in packages_distributions().items()
            if not self._allowed & {_normal(name) for name in distributions}
        }

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: Any = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] in self._blocked:
            return None
        return PathFinder.find_spec(name, path, target)

    def find_distributions(self, *context: Any) -> Iterator[Distribution]:
        """So that pytest loads no plugin of theirs."""
        found = PathFinder.find_distributions(*context)
        return (each for each in found if _normal(each.metadata["Name"]) in self._allowed)


sys.meta_path[sys.meta_path.index(PathFinder)] = OnlyAllowed()
