"""Which core takes a request: the one that has most of its prompt cached, then the least loaded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from scheduler_service.core.request import Request


class Placement(Protocol):
    """What the router asks of one executor's core."""

    def match_length(self, request: Request) -> int:
        """Tokens of the prompt that are cached there."""

    @property
    def num_sequences(self) -> int:
        """Running and waiting."""


PlacementT = TypeVar("PlacementT", bound=Placement)


def rank(placements: Iterable[PlacementT], request: Request) -> list[PlacementT]:
    """Best first; equals keep their order."""
    candidates = list(placements)
    if len(candidates) < 2:
        return candidates
    return sorted(candidates, key=lambda place: (-place.match_length(request), place.num_sequences))
