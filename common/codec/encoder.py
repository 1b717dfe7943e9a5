"""The scheduler's end of the codec: a plan becomes what grew since the plan before."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from operator import attrgetter, getitem, sub

from common.codec.columns import pack, pack_u64
from common.codec.spec import write_spec
from common.errors import InvariantError
from common.plan import TOKEN_TYPECODE, SequenceId, SequenceSpec, StepPlan
from proto import executor_pb2

_sequence_id = attrgetter("sequence_id")


class PlanEncoder:
    """Encodes the plans of one stream, in the order of sending."""

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        self.reset()

    def reset(self) -> None:
        """Forgets everything: a new stream begins."""
        self._num_messages = 0
        self._row_of: dict[SequenceId, int] = {}
        self._free_rows = list(range(self._max_rows - 1, -1, -1))
        self._num_tokens_sent = [0] * self._max_rows
        self._num_blocks_sent = [0] * self._max_rows

    @property
    def num_rows(self) -> int:
        """Rows in use."""
        return len(self._row_of)

    def encode(self, plan: StepPlan, *, incarnation: int, epoch: int) -> executor_pb2.StepMessage:
        """The next message of the stream. It has to be sent, or the stream be given up."""
        message = self._next_message(plan.step_id, incarnation, epoch)
        body = message.plan
        num_decodes = plan.num_decodes
        if plan.sampled[:num_decodes] != plan.sequences[:num_decodes]:
            raise InvariantError(f"step {plan.step_id}: a decode does not sample its own sequence")
        self._release(body, plan.released)
        rows = self._rows(body, plan.sequences)
        body.num_decodes = num_decodes
        body.rows = pack(rows)
        body.starts = plan.starts.tobytes()
        body.lengths = plan.lengths[num_decodes:].tobytes()
        body.num_samples = plan.num_samples[num_decodes:].tobytes()
        if len(plan.sampled) > num_decodes:
            body.sample_rows = pack(self._rows(body, plan.sampled[num_decodes:]))
        self._grow_tokens(body, plan, rows)
        self._grow_tables(body, plan, rows)
        body.copy_sources = plan.copy_sources.tobytes()
        body.copy_destinations = plan.copy_destinations.tobytes()
        if plan.masked:
            body.masked_sequences = pack_u64(sorted(plan.masked))
        return message

    def encode_mask(
        self, step_id: int, sequence_id: SequenceId, allowed: bytes, *, incarnation: int, epoch: int
    ) -> executor_pb2.StepMessage:
        """The mask of one sampled sequence of a plan sent before."""
        message = self._next_message(step_id, incarnation, epoch)
        message.mask.sequence_id = sequence_id
        message.mask.allowed = allowed
        return message

    def encode_skip(
        self, step_id: int, sequence_id: SequenceId, *, incarnation: int, epoch: int
    ) -> executor_pb2.StepMessage:
        """Lets one flagged sequence of a plan sent before sample without a mask."""
        message = self._next_message(step_id, incarnation, epoch)
        message.skip.sequence_id = sequence_id
        return message

    def _next_message(self, step_id: int, incarnation: int, epoch: int) -> executor_pb2.StepMessage:
        message = executor_pb2.StepMessage(
            incarnation=incarnation,
            epoch=epoch,
            step_id=step_id,
            message_number=self._num_messages,
        )
        self._num_messages += 1
        return message

    def _release(self, body: executor_pb2.StepPlan, released: list[SequenceId]) -> None:
        # Ids without a row are those of sequences that this stream, being newer, never saw.
        rows = [self._row_of.pop(sequence) for sequence in released if sequence in self._row_of]
        self._free_rows.extend(rows)
        body.released = pack(rows)

    def _rows(self, body: executor_pb2.StepPlan, specs: list[SequenceSpec]) -> list[int]:
        try:
            return self._known_rows(specs)
        except KeyError:
            for spec in specs:
                if spec.sequence_id not in self._row_of:
                    self._open_row(body, spec)
            return self._known_rows(specs)

    def _known_rows(self, specs: list[SequenceSpec]) -> list[int]:
        return list(map(self._row_of.__getitem__, map(_sequence_id, specs)))

    def _open_row(self, body: executor_pb2.StepPlan, spec: SequenceSpec) -> None:
        if not self._free_rows:
            raise InvariantError(f"all {self._max_rows} rows of the stream are in use")
        row = self._free_rows.pop()
        self._row_of[spec.sequence_id] = row
        self._num_tokens_sent[row] = 0
        self._num_blocks_sent[row] = 0
        write_spec(body.new_rows.add(), row, spec)

    def _grow_tokens(self, body: executor_pb2.StepPlan, plan: StepPlan, rows: list[int]) -> None:
        sent = list(map(self._num_tokens_sent.__getitem__, rows))
        growth = list(map(sub, plan.token_lengths, sent))
        usual = [1] * plan.num_decodes + [0] * (len(rows) - plan.num_decodes)
        if growth != usual:
            unusual = [chunk for chunk, count in enumerate(growth) if count != usual[chunk]]
            body.token_growth_chunks = pack(unusual)
            body.token_growth_counts = _counts(growth, unusual, "token history")
        body.tokens = _growth(plan.token_buffers, sent, growth)
        for row, length in zip(rows, plan.token_lengths, strict=True):
            self._num_tokens_sent[row] = length

    def _grow_tables(self, body: executor_pb2.StepPlan, plan: StepPlan, rows: list[int]) -> None:
        sent = list(map(self._num_blocks_sent.__getitem__, rows))
        growth = list(map(sub, plan.table_lengths, sent))
        if not any(growth):
            return
        grown = [chunk for chunk, count in enumerate(growth) if count]
        body.block_growth_chunks = pack(grown)
        body.block_growth_counts = _counts(growth, grown, "block table")
        body.blocks = _growth(plan.table_buffers, sent, growth)
        for row, length in zip(rows, plan.table_lengths, strict=True):
            self._num_blocks_sent[row] = length


def _counts(growth: Sequence[int], chunks: Sequence[int], what: str) -> bytes:
    if min(growth) < 0:
        raise InvariantError(f"a {what} shrank since the last plan")
    return pack(growth[chunk] for chunk in chunks)


def _growth(buffers: list[array[int]], firsts: Sequence[int], growth: list[int]) -> bytes:
    """The growth[i] entries of each buffer from firsts[i] on, one buffer after the other."""
    if growth.count(1) == len(growth):  # a plan of decodes
        return pack(map(getitem, buffers, firsts))
    flat = array(TOKEN_TYPECODE)
    for buffer, first, count in zip(buffers, firsts, growth, strict=True):
        if count:
            flat += buffer[first : first + count]
    return flat.tobytes()
