"""How often and how fast the client tries again."""

from __future__ import annotations

import random
from dataclasses import dataclass

from common.errors import OctavoError, UnavailableError
from octavo.deadline import Deadline


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Doubling delays with jitter, so that clients of one lost server do not return as one."""

    max_tries: int = 5
    """Of a call that got no answer yet. The default gives up after about 1 s: an address where
    nobody listens should not take longer to say so."""
    max_resumes: int = 20
    """Of a stream that broke, in a row and without a new token. The default lasts about 40 s: a
    scheduler that is started again is back long before."""
    first_delay_s: float = 0.1
    max_delay_s: float = 3.0

    def delay_s(self, tries: int) -> float:
        """The pause after `tries` failures in a row (from 1): between half and all of the bound."""
        bound = min(self.max_delay_s, self.first_delay_s * 2.0 ** (tries - 1))
        return bound * random.uniform(0.5, 1.0)


class UnaryTries:
    """The tries of one call that may be repeated without harm."""

    def __init__(self, policy: RetryPolicy, timeout_s: float) -> None:
        self._policy = policy
        self._deadline = Deadline(timeout_s)
        self._failures = 0

    def timeout_s(self) -> float | None:
        return self._deadline.left_s()

    def failed(self, error: OctavoError) -> float:
        """The pause before the next try in seconds; raises `error` when there is none."""
        self._failures += 1
        if not isinstance(error, UnavailableError) or self._failures >= self._policy.max_tries:
            raise error
        pause_s = self._policy.delay_s(self._failures)
        self._deadline.require(pause_s)
        return pause_s
