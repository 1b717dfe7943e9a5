"""From the chunks of a stream to one whole answer."""

from __future__ import annotations

from dataclasses import dataclass, field

from common.errors import ServerError
from octavo.types import Choice, Chunk, Delta, Finished, Generation, Started, TokenLogprobs, Usage


@dataclass(slots=True, eq=False)
class _Parts:
    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)


class Collector:
    """Add every chunk in order, then take the `result`."""

    def __init__(self) -> None:
        self._parts: dict[int, _Parts] = {}
        self._finished: dict[int, Finished] = {}
        self._started: Started | None = None
        self._usage: Usage | None = None

    def add(self, chunk: Chunk) -> None:
        match chunk:
            case Delta():
                parts = self._parts.setdefault(chunk.index, _Parts())
                parts.text.append(chunk.text)
                parts.token_ids.extend(chunk.token_ids)
                parts.logprobs.extend(chunk.logprobs)
            case Finished():
                self._finished[chunk.index] = chunk
            case Started():
                self._started = chunk
            case Usage():
                self._usage = chunk

    def result(self) -> Generation:
        """ServerError if a choice ended by an error of the server: a half answer is none."""
        if self._started is None or self._usage is None:
            raise ServerError("the stream is not complete")
        for finished in self._finished.values():
            if finished.reason == "error":
                raise ServerError(f"choice {finished.index} failed: {finished.message}")
        choices = tuple(self._choice(index) for index in sorted(self._finished))
        return Generation(started=self._started, choices=choices, usage=self._usage)

    def _choice(self, index: int) -> Choice:
        parts = self._parts.get(index, _Parts())
        return Choice(
            index=index,
            text="".join(parts.text),
            token_ids=tuple(parts.token_ids),
            logprobs=tuple(parts.logprobs),
            finished=self._finished[index],
        )
