"""What the device's sampler is asked for one row."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from common.plan import SequenceSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawTask:
    """One token to draw."""

    spec: SequenceSpec
    row: int
    """Of the logits; several tasks of one request may share it."""
    position: int
    """Of the token: as many tokens as stand before it, those in flight too."""
    history: array[int]
    """All tokens before it that the host knows, where `reads_history` says that they are read; else
    anything."""
    in_flight: int | None = None
    """Which draw of the step before gives the one token more that stands behind `history`; None if
    none does, or it is not read."""

    @property
    def num_outputs(self) -> int:
        return self.position - self.spec.num_prompt_tokens
