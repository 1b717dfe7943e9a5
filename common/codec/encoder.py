"""The scheduler's end of the codec: a plan becomes what grew since the plan before."""

from __future__ import annotations

from array import array
from operator import attrgetter, getitem

import numpy as np

from common.codec.columns import INT32, Int64s, pack_u64, view
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
        self._num_tokens_sent = np.zeros(self._max_rows, np.int64)
        self._num_blocks_sent = np.zeros(self._max_rows, np.int64)

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
        body.rows = rows.astype(INT32).tobytes()
        body.starts = plan.starts.tobytes()
        body.lengths = plan.lengths[num_decodes:].tobytes()
        body.num_samples = plan.num_samples[num_decodes:].tobytes()
        if len(plan.sampled) > num_decodes:
            sampled = self._rows(body, plan.sampled[num_decodes:])
            body.sample_rows = sampled.astype(INT32).tobytes()
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
        body.released = array(TOKEN_TYPECODE, rows).tobytes()

    def _rows(self, body: executor_pb2.StepPlan, specs: list[SequenceSpec]) -> Int64s:
        try:
            return self._known_rows(specs)
        except KeyError:
            for spec in specs:
                if spec.sequence_id not in self._row_of:
                    self._open_row(body, spec)
            return self._known_rows(specs)

    def _known_rows(self, specs: list[SequenceSpec]) -> Int64s:
        rows = map(self._row_of.__getitem__, map(_sequence_id, specs))
        return np.fromiter(rows, np.int64, len(specs))

    def _open_row(self, body: executor_pb2.StepPlan, spec: SequenceSpec) -> None:
        if not self._free_rows:
            raise InvariantError(f"all {self._max_rows} rows of the stream are in use")
        row = self._free_rows.pop()
        self._row_of[spec.sequence_id] = row
        self._num_tokens_sent[row] = 0
        self._num_blocks_sent[row] = 0
        write_spec(body.new_rows.add(), row, spec)

    def _grow_tokens(self, body: executor_pb2.StepPlan, plan: StepPlan, rows: Int64s) -> None:
        sent = self._num_tokens_sent[rows]
        lengths = view(plan.token_lengths).astype(np.int64)
        growth = lengths - sent
        usual = np.zeros(len(rows), np.int64)
        usual[: plan.num_decodes] = 1
        (unusual,) = np.nonzero(growth != usual)
        if unusual.size:
            body.token_growth_chunks = unusual.astype(INT32).tobytes()
            body.token_growth_counts = _counts(growth[unusual], "token history")
        body.tokens = _growth(plan.token_buffers, sent, growth)
        self._num_tokens_sent[rows] = lengths

    def _grow_tables(self, body: executor_pb2.StepPlan, plan: StepPlan, rows: Int64s) -> None:
        sent = self._num_blocks_sent[rows]
        lengths = view(plan.table_lengths).astype(np.int64)
        growth = lengths - sent
        (grown,) = np.nonzero(growth)
        if grown.size:
            body.block_growth_chunks = grown.astype(INT32).tobytes()
            body.block_growth_counts = _counts(growth[grown], "block table")
            buffers = [plan.table_buffers[chunk] for chunk in grown.tolist()]
            body.blocks = _growth(buffers, sent[grown], growth[grown])
            self._num_blocks_sent[rows] = lengths


def _counts(growth: Int64s, what: str) -> bytes:
    if growth.min() < 0:
        raise InvariantError(f"a {what} shrank since the last plan")
    return growth.astype(INT32).tobytes()


def _growth(buffers: list[array[int]], firsts: Int64s, growth: Int64s) -> bytes:
    """The growth[i] entries of each buffer from firsts[i] on, one buffer after the other."""
    if growth.size and growth.min() == growth.max() == 1:  # a plan of decodes
        entries = map(getitem, buffers, firsts.tolist())
        return np.fromiter(entries, INT32, len(buffers)).tobytes()
    flat = array(TOKEN_TYPECODE)
    for chunk in np.flatnonzero(growth).tolist():
        first = int(firsts[chunk])
        flat.extend(buffers[chunk][first : first + int(growth[chunk])])
    return flat.tobytes()
