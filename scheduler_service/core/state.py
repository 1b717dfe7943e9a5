"""Everything the core remembers, in one place; planning, applying and ending work on it."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from common.plan import SequenceId
from scheduler_service.core.events import Events, SequenceKey
from scheduler_service.core.forks import SharedTails
from scheduler_service.core.kv_cache import KVCacheManager
from scheduler_service.core.limits import SchedulerLimits
from scheduler_service.core.policy import OrderKey, SchedulingPolicy
from scheduler_service.core.sequence import Sequence
from scheduler_service.core.step_budget import StepCosts
from scheduler_service.core.twins import PrefixesInProgress


@dataclass(slots=True)
class StepInFlight:
    """A plan whose result has not come."""

    step_id: int
    computed: list[tuple[Sequence, int, int, int]] = field(default_factory=list)
    """(sequence, its life, first position, end) of the KV that the result confirms. Every sequence
    that the step names has one entry, forked children included."""
    sampled: list[Sequence] = field(default_factory=list)
    forked: list[tuple[Sequence, list[Sequence]]] = field(default_factory=list)
    """(parent, children) that exist from this plan on."""
    copied: list[Sequence] = field(default_factory=list)
    """Whose tail is the destination of a copy in this plan."""


@dataclass(slots=True)
class Tallies:
    """Counts since the start; only ever grow."""

    num_preemptions: int = 0
    num_stale_results: int = 0
    num_starved: int = 0
    """Sequences that alone found no block and ended by length."""
    num_computed_tokens: int = 0
    num_recomputed_tokens: int = 0
    num_recompute_avoided_tokens: int = 0
    num_prefix_queried_tokens: int = 0
    """Prompt tokens of sequences admitted for the first time."""
    num_prefix_hit_tokens: int = 0
    """Of those, found in the tree."""
    num_twin_waits: int = 0
    num_voided_steps: int = 0


class WaitingQueue:
    """Waiting sequences in the policy's order."""

    __slots__ = ("_key", "_sequences")

    def __init__(self, key: Callable[[Sequence], OrderKey]) -> None:
        self._key = key
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def add(self, sequence: Sequence) -> None:
        if not self._sequences or self._key(self._sequences[-1]) <= self._key(sequence):
            self._sequences.append(sequence)
        else:
            insort(self._sequences, sequence, key=self._key)

    def remove(self, sequence: Sequence) -> None:
        self._sequences.remove(sequence)


@dataclass(slots=True)
class SchedulerState:
    limits: SchedulerLimits
    policy: SchedulingPolicy
    kv: KVCacheManager
    waiting: WaitingQueue
    prefixes: PrefixesInProgress
    tails: SharedTails = field(default_factory=SharedTails)
    sequences: dict[SequenceId, Sequence] = field(default_factory=dict)
    """Every sequence that has not ended."""
    requests: dict[str, dict[int, Sequence]] = field(default_factory=dict)
    """Request id -> choice -> live sequence."""
    running: dict[SequenceId, Sequence] = field(default_factory=dict)
    """In admission order."""
    in_flight: deque[StepInFlight] = field(default_factory=deque)
    released: list[SequenceId] = field(default_factory=list)
    """For the next plan: sequences whose row on the stream may be dropped."""
    events: Events = field(default_factory=Events)
    tallies: Tallies = field(default_factory=Tallies)
    costs: StepCosts | None = None
    """None: not known yet."""
    next_step_id: int = 0
    last_ended_step: int = -1
    next_sequence_id: int = 1
    next_arrival: int = 0

    @classmethod
    def new(cls, limits: SchedulerLimits, policy: SchedulingPolicy) -> SchedulerState:
        return cls(
            limits=limits,
            policy=policy,
            kv=KVCacheManager(limits),
            waiting=WaitingQueue(policy.order),
            prefixes=PrefixesInProgress(limits.block_size),
        )

    def new_sequence_id(self) -> SequenceId:
        self.next_sequence_id += 1
        return SequenceId(self.next_sequence_id - 1)

    def enter(self, sequence: Sequence) -> None:
        """The sequence lives from now on."""
        key: SequenceKey = sequence.key
        self.sequences[sequence.sequence_id] = sequence
        self.requests.setdefault(key.request_id, {})[key.choice] = sequence
