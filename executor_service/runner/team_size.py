"""How many threads a step of few tokens runs on: as many as have proven fastest.

A step of few tokens waits for memory, which one core can nearly keep busy alone. Where the
scheduler and clients share the cores, whenever one of them takes a core from a thread all other
threads wait at the next barrier; with one thread fewer nobody waits. Where cores are free, the last
thread is worth having. So both are tried, ever more rarely while the answer stays the same, and no
longer than it takes to see that one is far slower: a step of many tokens or of float32 weights
computes more than it waits. Kernels give the same bits on any number of threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from statistics import fmean, median

_FEW_TOKENS = 16
_SAMPLES = 12
_CLEAR = 0.97
"""Of the time, for the other size to be taken: nearer ones are alike."""
_PAUSE = 4.0
"""Times the median: no step takes so long, there was nothing to do."""
_HOPELESS = 1.2
"""Times the usual time: two steps in a row that take longer end a trial."""
_SHORTEST, _LONGEST = 32, 1024
"""Steps between two trials."""
_RARER, _MUCH_RARER = 2, 8
"""Times the steps before, until the next trial: after a lost one, after a hopeless one."""


class TeamSize:
    """Of one model's steps. Not for several threads at once."""

    def __init__(self, most: int) -> None:
        self._most = most
        num_choices = _FEW_TOKENS.bit_length() + 1 if most > 1 else 0
        self._choices = [_Choice(most, most - 1) for _ in range(num_choices)]
        """Of steps of about as many tokens: by the bits of their number."""
        self._last: _Choice | None = None
        """Of the step before."""
        self._last_ended_ns = 0

    def of(self, num_tokens: int) -> int:
        """For the next step, whose end `ended` is told."""
        choice = self._choice(num_tokens)
        return choice.size if choice else self._most

    def ended(self, num_tokens: int, at_ns: int) -> None:
        """What counts is the time since the step before, if that was alike: what the process does
        between steps is slowed by threads of a step as well."""
        choice = self._choice(num_tokens)
        if choice and choice is self._last:
            choice.took(at_ns - self._last_ended_ns)
        self._last, self._last_ended_ns = choice, at_ns

    def _choice(self, num_tokens: int) -> _Choice | None:
        if self._most == 1 or num_tokens > _FEW_TOKENS:
            return None
        return self._choices[num_tokens.bit_length()]


class _Choice:
    """Between two sizes."""

    def __init__(self, taken: int, other: int) -> None:
        self.size = taken
        """Of the next step."""
        self._taken = taken
        self._other = other
        self._steps_left = _SHORTEST
        """Until the next trial, or of this one."""
        self._interval = _SHORTEST
        self._usual: deque[int] = deque(maxlen=_SAMPLES)
        self._tried: deque[int] = deque(maxlen=_SAMPLES)

    def took(self, nanoseconds: int) -> None:
        self._steps_left -= 1
        if self.size == self._taken:
            self._usual.append(nanoseconds)
            if not self._steps_left:
                self._begin_trial()
        elif self._steps_left < _SAMPLES:  # The first step of a size starts or ends threads.
            self._tried.append(nanoseconds)
            if not self._steps_left or self._is_hopeless():
                self._end_trial()

    def _begin_trial(self) -> None:
        self._tried.clear()
        self.size, self._steps_left = self._other, _SAMPLES + 1

    def _is_hopeless(self) -> bool:
        return len(self._tried) == 2 and min(self._tried) > _HOPELESS * _typical(self._usual)

    def _end_trial(self) -> None:
        if self._is_hopeless():
            self._interval = min(_MUCH_RARER * self._interval, _LONGEST)
        elif _typical(self._tried) < _CLEAR * _typical(self._usual):
            self._taken, self._other = self._other, self._taken
            self._interval = _SHORTEST
        else:
            self._interval = min(_RARER * self._interval, _LONGEST)
        self.size, self._steps_left = self._taken, self._interval


def _typical(times: Collection[int]) -> float:
    """The mean: steps that waited for a thread are what it is about, and they are not many."""
    pause = _PAUSE * median(times)
    return fmean(time for time in times if time < pause)
