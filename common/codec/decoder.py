"""The executor's end of the codec: messages of one stream become whole plans again.

Views of a decoded plan stay valid while later plans are decoded. A row's buffer has room to spare
and is written only beyond what earlier plans saw; when the room runs out a copy takes over and the
earlier plans keep the old buffer. It is never resized, so it may be viewed by numpy meanwhile.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from operator import add, lt

from common.codec.columns import unpack, unpack_u64
from common.codec.spec import read_spec
from common.errors import ResyncError
from common.plan import TOKEN_TYPECODE, SequenceId, SequenceSpec, StepPlan
from proto import executor_pb2

_MIN_ROOM = 64


class PlanDecoder:
    """Decodes the messages of one stream, in order. After a ResyncError it is of no more use."""

    def __init__(self, max_rows: int, *, incarnation: int, epoch: int) -> None:
        self._max_rows = max_rows
        self._incarnation = incarnation
        self._epoch = epoch
        self._num_messages = 0
        self._last_step_id: int | None = None
        self._specs: list[SequenceSpec | None] = [None] * max_rows
        self._row_of: dict[SequenceId, int] = {}
        self._histories = _Columns(max_rows)
        self._tables = _Columns(max_rows)

    @property
    def num_rows(self) -> int:
        """Rows in use."""
        return len(self._row_of)

    def check(self, message: executor_pb2.StepMessage) -> None:
        """Counts a message of any kind; ResyncError if it is not this stream's next."""
        if message.incarnation != self._incarnation:
            raise ResyncError("the message is for another incarnation of this executor")
        if message.epoch != self._epoch:
            raise ResyncError(f"the message has epoch {message.epoch}, the owner {self._epoch}")
        if message.message_number != self._num_messages:
            raise ResyncError(
                f"message {message.message_number} came where {self._num_messages} was due"
            )
        self._num_messages += 1

    def decode(self, message: executor_pb2.StepMessage) -> StepPlan:
        """The plan of the stream's next message."""
        self.check(message)
        if message.WhichOneof("body") != "plan":
            raise ResyncError("the message holds no plan")
        if self._last_step_id is not None and message.step_id != self._last_step_id + 1:
            raise ResyncError(f"step {message.step_id} came after step {self._last_step_id}")
        self._last_step_id = message.step_id
        body = message.plan
        released = self._release(unpack(body.released, "released"))
        self._open_rows(body)
        rows = unpack(body.rows, "rows")
        plan = StepPlan(step_id=message.step_id, num_decodes=body.num_decodes, released=released)
        plan.sequences = self._specs_of(rows, "rows")
        self._read_chunks(plan, body)
        self._grow(plan, body, rows)
        plan.copy_sources = unpack(body.copy_sources, "copy_sources")
        plan.copy_destinations = unpack(body.copy_destinations, "copy_destinations")
        if len(plan.copy_sources) != len(plan.copy_destinations):
            raise ResyncError("copy columns differ in length")
        if body.masked_sequences:
            masked = unpack_u64(body.masked_sequences, "masked_sequences")
            plan.masked = frozenset(map(SequenceId, masked))
        return plan

    def _release(self, rows: Sequence[int]) -> list[SequenceId]:
        released = []
        for row, spec in zip(rows, self._specs_of(rows, "released"), strict=True):
            if self._specs[row] is None:
                raise ResyncError(f"row {row} is released twice")
            self._specs[row] = None
            del self._row_of[spec.sequence_id]
            self._histories.clear(row)
            self._tables.clear(row)
            released.append(spec.sequence_id)
        return released

    def _open_rows(self, body: executor_pb2.StepPlan) -> None:
        for new in body.new_rows:
            if new.row >= self._max_rows or self._specs[new.row] is not None:
                raise ResyncError(f"new row {new.row} is in use or beyond {self._max_rows}")
            if new.sequence_id in self._row_of:
                raise ResyncError(f"sequence {new.sequence_id} has a row already")
            spec = read_spec(new)
            self._specs[new.row] = spec
            self._row_of[spec.sequence_id] = new.row

    def _specs_of(self, rows: Sequence[int], name: str) -> list[SequenceSpec]:
        if not rows:
            return []
        if max(rows) >= self._max_rows:
            raise ResyncError(f"column {name} names a row beyond {self._max_rows}")
        specs = [spec for spec in map(self._specs.__getitem__, rows) if spec is not None]
        if len(specs) != len(rows):
            raise ResyncError(f"column {name} names a row that is not in use")
        return specs

    def _read_chunks(self, plan: StepPlan, body: executor_pb2.StepPlan) -> None:
        num_chunks, num_decodes = len(plan.sequences), body.num_decodes
        starts = unpack(body.starts, "starts")
        lengths = unpack(body.lengths, "lengths")
        num_samples = unpack(body.num_samples, "num_samples")
        num_others = num_chunks - num_decodes
        if len(starts) != num_chunks or not len(lengths) == len(num_samples) == num_others:
            raise ResyncError(
                f"{num_chunks} chunks, {num_decodes} of them decodes, with {len(starts)} starts,"
                f" {len(lengths)} lengths and {len(num_samples)} sample counts"
            )
        ones = array(TOKEN_TYPECODE, (1,)) * num_decodes
        plan.starts = starts
        plan.lengths = ones + lengths
        plan.num_samples = ones + num_samples
        sampled = self._specs_of(unpack(body.sample_rows, "sample_rows"), "sample_rows")
        if len(sampled) != sum(num_samples):
            raise ResyncError("sample_rows does not fit num_samples")
        plan.sampled = plan.sequences[:num_decodes] + sampled

    def _grow(self, plan: StepPlan, body: executor_pb2.StepPlan, rows: Sequence[int]) -> None:
        if len(set(rows)) != len(rows):
            raise ResyncError("a row has two chunks in one plan")
        growth = [1] * body.num_decodes + [0] * (len(rows) - body.num_decodes)
        _spread(growth, body.token_growth_chunks, body.token_growth_counts, "token_growth")
        plan.token_buffers, plan.token_lengths = self._histories.grow(
            rows, growth, unpack(body.tokens, "tokens"), "tokens"
        )
        growth = [0] * len(rows)
        _spread(growth, body.block_growth_chunks, body.block_growth_counts, "block_growth")
        plan.table_buffers, plan.table_lengths = self._tables.grow(
            rows, growth, unpack(body.blocks, "blocks"), "blocks"
        )


class _Columns:
    """One append-only buffer per row."""

    def __init__(self, max_rows: int) -> None:
        self._buffers = [array(TOKEN_TYPECODE) for _ in range(max_rows)]
        self._lengths = [0] * max_rows
        self._rooms = [0] * max_rows

    def clear(self, row: int) -> None:
        self._buffers[row] = array(TOKEN_TYPECODE)
        self._lengths[row] = 0
        self._rooms[row] = 0

    def grow(
        self, rows: Sequence[int], growth: list[int], values: array[int], name: str
    ) -> tuple[list[array[int]], array[int]]:
        """Appends growth[i] of the flat values to each row; returns buffers and new lengths."""
        if len(values) != sum(growth):
            raise ResyncError(f"{len(values)} {name} with growth by {sum(growth)}")
        before = list(map(self._lengths.__getitem__, rows))
        if not values:
            return self._buffers_of(rows), array(TOKEN_TYPECODE, before)
        after = list(map(add, before, growth))
        for row, length, needed in zip(rows, before, after, strict=True):
            if self._rooms[row] < needed:
                self._make_room(row, length, needed)
            self._lengths[row] = needed
        buffers = self._buffers_of(rows)
        _append(buffers, before, growth, values)
        return buffers, array(TOKEN_TYPECODE, after)

    def _buffers_of(self, rows: Sequence[int]) -> list[array[int]]:
        return list(map(self._buffers.__getitem__, rows))

    def _make_room(self, row: int, length: int, needed: int) -> None:
        """Replaces the buffer by a copy of its first `length` entries with twice the room."""
        room = max(2 * needed, _MIN_ROOM)
        buffer = self._buffers[row][:length]
        buffer.frombytes(bytes(buffer.itemsize * (room - length)))
        self._buffers[row] = buffer
        self._rooms[row] = room


def _append(
    buffers: list[array[int]], lengths: list[int], growth: list[int], values: array[int]
) -> None:
    """Writes growth[i] of the flat values into buffers[i] from lengths[i] on."""
    if growth.count(1) == len(growth):  # a plan of decodes
        for buffer, place, value in zip(buffers, lengths, values, strict=True):
            buffer[place] = value
        return
    first = 0
    for buffer, place, count in zip(buffers, lengths, growth, strict=True):
        if count:
            buffer[place : place + count] = values[first : first + count]
            first += count


def _spread(growth: list[int], chunks_data: bytes, counts_data: bytes, name: str) -> None:
    """Writes listed growth over the usual one."""
    if not chunks_data and not counts_data:
        return
    chunks, counts = unpack(chunks_data, f"{name}_chunks"), unpack(counts_data, f"{name}_counts")
    is_rising = all(map(lt, chunks, chunks[1:]))
    if len(chunks) != len(counts) or not is_rising or chunks[-1] >= len(growth):
        raise ResyncError(f"columns of {name} do not fit the plan's chunks")
    for chunk, count in zip(chunks, counts, strict=True):
        growth[chunk] = count
