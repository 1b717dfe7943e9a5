"""How a plan gets from scheduler to executor: as it is, or through the codec of a step stream."""

from __future__ import annotations

from typing import Protocol

from common.codec import PlanDecoder, PlanEncoder
from common.plan import StepPlan
from common.protocol import ROWS_PER_SEQUENCE
from proto import executor_pb2


class Wire(Protocol):
    """One stream after another. Plans are sent in order; a prefix of them is received."""

    def send(self, plan: StepPlan) -> None: ...

    def receive(self) -> StepPlan:
        """The oldest plan sent and not received."""
        ...

    def reset(self) -> None:
        """The stream ended."""
        ...


class DirectWire:
    def __init__(self) -> None:
        self._sent: list[StepPlan] = []

    def send(self, plan: StepPlan) -> None:
        self._sent.append(plan)

    def receive(self) -> StepPlan:
        return self._sent.pop(0)

    def reset(self) -> None:
        self._sent.clear()


class CodecWire:
    """Encodes at the point of sending and decodes at the point of execution."""

    def __init__(self, max_num_seqs: int) -> None:
        self._max_rows = max_num_seqs * ROWS_PER_SEQUENCE
        self._encoder = PlanEncoder(self._max_rows)
        self._sent: list[executor_pb2.StepMessage] = []
        self._decoder = self._new_decoder()

    def _new_decoder(self) -> PlanDecoder:
        return PlanDecoder(self._max_rows, incarnation=1, epoch=1)

    def send(self, plan: StepPlan) -> None:
        self._sent.append(self._encoder.encode(plan, incarnation=1, epoch=1))

    def receive(self) -> StepPlan:
        return self._decoder.decode(self._sent.pop(0))

    def reset(self) -> None:
        self._sent.clear()
        self._encoder.reset()
        self._decoder = self._new_decoder()
