"""The live state of one choice of a request.

Two counts carry all of scheduling. `num_computed_tokens`: KV that a result has confirmed.
`num_planned_tokens`: that plus what is in flight. A sequence wants `num_planned_tokens` to catch up
with `planned_len`, its tokens plus those being sampled; a chunk that gets there samples the next.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import Enum

from common.plan import TOKEN_TYPECODE, SequenceId, SequenceSpec
from scheduler_service.core.block_table import BlockTable
from scheduler_service.core.events import SequenceKey
from scheduler_service.core.radix_node import RadixNode
from scheduler_service.core.request import Request


class SequenceStatus(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


_TRANSITIONS = {
    SequenceStatus.WAITING: {SequenceStatus.RUNNING, SequenceStatus.FINISHED},
    SequenceStatus.RUNNING: {SequenceStatus.WAITING, SequenceStatus.FINISHED},
    SequenceStatus.FINISHED: set(),
}


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """One choice: its tokens, its place in the queue and its share of the KV cache."""

    spec: SequenceSpec
    request: Request
    key: SequenceKey
    arrival: int
    """Order of requests at `Scheduler.add`; kept through preemptions."""
    tokens: array[int]
    """Prompt and outputs; append-only, plans hold views of it."""
    max_len: int
    """Tokens at which it ends by length."""
    end_token_ids: frozenset[int]
    forks_left: int = 0
    """Further choices to fork off when the prompt is computed."""
    status: SequenceStatus = SequenceStatus.WAITING

    num_computed_tokens: int = 0
    num_planned_tokens: int = 0
    num_pending: int = 0
    """Tokens being sampled by steps in flight."""
    num_in_flight: int = 0
    """Steps in flight that compute a chunk of it or sample it."""
    last_step_id: int = -1
    """The last step whose plan names it or one of its blocks."""
    life: int = 0
    """Grows whenever its KV is given up, so that late results are not taken for the new KV."""

    table: BlockTable = field(default_factory=BlockTable)
    node: RadixNode | None = None
    """Acquired in the tree while it runs with prefix caching."""
    num_committed_blocks: int = 0
    """Leading blocks of the table that the tree holds, by these ids or as duplicates."""

    was_admitted: bool = False
    max_computed_len: int = 0
    """Most tokens ever computed; computing below it again is recompute."""
    num_times_passed: int = 0
    """Requests admitted before it out of turn since it reached the head of the queue."""
    num_twin_waits: int = 0
    """Steps it was passed over because another sequence was computing its prefix."""
    awaited: tuple[RadixNode, bytes] | None = None
    """The prefix it was last passed over for; see `twins.PrefixesInProgress`."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def sequence_id(self) -> SequenceId:
        return self.spec.sequence_id

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - self.spec.num_prompt_tokens

    @property
    def planned_len(self) -> int:
        """Tokens it will have when all steps in flight have ended."""
        return len(self.tokens) + self.num_pending

    @property
    def num_tokens_to_plan(self) -> int:
        """0 if there is nothing to plan: it has caught up, or its end by length is planned."""
        planned_len = len(self.tokens) + self.num_pending
        return planned_len - self.num_planned_tokens if planned_len < self.max_len else 0

    def move_to(self, status: SequenceStatus) -> None:
        assert status in _TRANSITIONS[self.status], f"{self.key}: {self.status} -> {status}"
        self.status = status

    def give_up_kv(self) -> None:
        """Forgets the KV; the caller has released it."""
        self.table = BlockTable()
        self.node = None
        self.num_committed_blocks = 0
        self.num_computed_tokens = 0
        self.num_planned_tokens = 0
        self.life += 1


def token_bytes(tokens: array[int]) -> bytes:
    """Tokens as the radix tree compares them."""
    assert tokens.typecode == TOKEN_TYPECODE
    return tokens.tobytes()
