"""What a client asked, frozen, and the words for how it ends."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from common.plan import SamplingParams


class FinishReason(Enum):
    STOP = "stop"
    """EOS, a stop token or a stop string."""
    LENGTH = "length"
    ABORT = "abort"
    EXPIRED = "expired"
    """Its deadline passed."""
    ERROR = "error"
    """The executor failed this sequence alone."""


class CacheRoot(NamedTuple):
    """What cached KV depends on besides tokens. Typed, so that equal strings in different fields
    can never make two roots equal."""

    tenant: str = ""
    cache_salt: str = ""
    adapter: str = ""
    model_revision: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Request:
    """One accepted ask. Token ids were checked against the vocabulary where it entered."""

    request_id: str
    prompt_token_ids: array[int]
    """array of TOKEN_TYPECODE, never empty, never changed."""
    params: SamplingParams
    n: int = 1
    max_tokens: int | None = None
    """Outputs per choice; None: clipped to what fits the context and the pool."""
    eos_token_ids: frozenset[int] = frozenset()
    """Empty when the client ignores EOS."""
    stop_token_ids: frozenset[int] = frozenset()
    """The client's own; disjoint meaning from EOS: they are reported as the stop reason."""
    deadline: float | None = None
    """On the clock of whoever calls `Scheduler.expire`, seconds."""
    priority: int = 0
    """Lower first, where the policy looks at it."""
    cache_root: CacheRoot = CacheRoot()


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorOutput:
    """Outputs of one choice that were delivered before: by a lost scheduler or executor."""

    index: int
    token_ids: array[int] = field(default_factory=lambda: array("i"))


class RefusedError(ValueError):
    """A request that can never run here. `field` names what to change."""

    def __init__(self, message: str, *, field: str) -> None:
        super().__init__(message)
        self.field = field
