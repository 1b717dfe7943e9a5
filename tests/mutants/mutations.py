"""The list. A mutation is one line of the product, its broken form, and the test that must fail."""

from __future__ import annotations

from dataclasses import dataclass

CORE = "scheduler_service/core"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    invariant: str
    """I1 to I8."""
    what: str
    file: str
    old: str
    """Occurs exactly once in the file."""
    new: str
    test: str
    """pytest node id."""


MUTATIONS: tuple[Mutation, ...] = ()
