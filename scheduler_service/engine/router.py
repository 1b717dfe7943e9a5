"""Which lane takes a request: the one that has most of its prompt cached, then the least loaded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from scheduler_service.core.request import Request


class RoutableCore(Protocol):
    def match_length(self, request: Request) -> int:
        """Tokens of the prompt that are cached there."""

    @property
    def num_sequences(self) -> int:
        """Running and waiting."""


class Routable(Protocol):
    """What the router needs of a lane."""

    @property
    def core(self) -> RoutableCore: ...


LaneT = TypeVar("LaneT", bound=Routable)


def rank(lanes: Iterable[LaneT], request: Request) -> list[LaneT]:
    """Best first; equals keep their order."""
    candidates = list(lanes)
    if len(candidates) < 2:
        return candidates
    return sorted(
        candidates,
        key=lambda lane: (-lane.core.match_length(request), lane.core.num_sequences),
    )
