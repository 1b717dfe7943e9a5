"""Stop strings in text that arrives in pieces.

Text is held back only while its end may be the beginning of a stop string. What matches does not
depend on how the text was cut: it is the stop string completed first and, of several completed by
the same character, the longest. Each character costs one step of Knuth, Morris and Pratt's
automaton per stop string.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """The stop strings of one request, prepared once for all its choices."""

    def __init__(self, strings: Sequence[str]) -> None:
        # The longest first, so that it wins when several end at the same character.
        self.strings = tuple(sorted(set(strings), key=len, reverse=True))
        self.first_characters = frozenset(string[0] for string in self.strings)
        self.borders = tuple(_borders(string) for string in self.strings)

    def __bool__(self) -> bool:
        return bool(self.strings)


class StopMatcher:
    """Of one choice. `match` is set by the piece that completes a stop string."""

    def __init__(self, stop: StopStrings) -> None:
        self._stop = stop
        self._held = ""
        self._states = [0] * len(stop.strings)
        """Per stop string, how much of it the text so far ends with."""
        self.match: str | None = None

    def push(self, text: str) -> str:
        """Returns the text that is surely no part of a stop string.

        On a match that is what stands before the matched string; what follows it is gone.
        """
        if not self._held and self._stop.first_characters.isdisjoint(text):
            return text
        buffer = self._held + text
        for end in range(len(self._held) + 1, len(buffer) + 1):
            completed = self._step(buffer[end - 1])
            if completed is not None:
                self.match = completed
                self._held = ""
                return buffer[: end - len(completed)]
        return self._release(buffer)

    def push_unstoppable(self, text: str) -> str:
        """Like `push`, but a stop string that `text` completes is text like any other."""
        for character in text:
            self._step(character)
        return self._release(self._held + text)

    def flush(self) -> str:
        """What is still held, when no more text can follow."""
        held, self._held = self._held, ""
        return held

    def _step(self, character: str) -> str | None:
        """Takes one character; returns the longest stop string that it completes."""
        longest: str | None = None
        for i, string in enumerate(self._stop.strings):
            borders = self._stop.borders[i]
            state = self._states[i]
            while state and string[state] != character:
                state = borders[state - 1]
            if string[state] == character:
                state += 1
            if state == len(string):
                longest = longest or string
                state = borders[-1]
            self._states[i] = state
        return longest

    def _release(self, buffer: str) -> str:
        num_held = max(self._states, default=0)
        cut = len(buffer) - num_held
        self._held = buffer[cut:]
        return buffer[:cut]


def _borders(string: str) -> tuple[int, ...]:
    """For each prefix of `string`, the length of its longest proper prefix that is its suffix."""
    borders = [0] * len(string)
    length = 0
    for i in range(1, len(string)):
        while length and string[i] != string[length]:
            length = borders[length - 1]
        if string[i] == string[length]:
            length += 1
        borders[i] = length
    return tuple(borders)
