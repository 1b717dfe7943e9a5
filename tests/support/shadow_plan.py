"""What can be checked about a step plan without any memory: shapes, ranges, who writes where."""

from __future__ import annotations

from common.plan import StepPlan


def check_plan(plan: StepPlan, num_blocks: int, block_size: int, vocab_size: int) -> str | None:
    """The first thing wrong with `plan`, or None. O(chunks + blocks named)."""
    return (
        _check_columns(plan)
        or _check_chunks(plan, num_blocks, block_size, vocab_size)
        or _check_samples(plan)
        or _check_writes(plan, num_blocks, block_size)
    )


def _check_columns(plan: StepPlan) -> str | None:
    columns = (
        plan.starts,
        plan.lengths,
        plan.token_buffers,
        plan.token_lengths,
        plan.table_buffers,
        plan.table_lengths,
        plan.num_samples,
    )
    if any(len(column) != plan.num_chunks for column in columns):
        return "columns differ in length"
    if plan.num_chunks == 0:
        return "an empty plan"
    if len({spec.sequence_id for spec in plan.sequences}) != plan.num_chunks:
        return "two chunks of one sequence"
    if not 0 <= plan.num_decodes <= plan.num_chunks:
        return "num_decodes is out of range"
    return None


def _check_chunks(plan: StepPlan, num_blocks: int, block_size: int, vocab_size: int) -> str | None:
    for i, spec in enumerate(plan.sequences):
        start, length = plan.starts[i], plan.lengths[i]
        name = f"chunk {i} of sequence {spec.sequence_id}"
        if start < 0 or length < 1:
            return f"{name} covers [{start}, {start + length})"
        missing = start + length - plan.token_lengths[i]
        if missing > (1 if length == 1 else 0):
            return f"{name} lacks {missing} tokens"
        if len(plan.token_buffers[i]) < plan.token_lengths[i]:
            return f"{name} has a token view beyond its buffer"
        if len(plan.table_buffers[i]) < plan.table_lengths[i]:
            return f"{name} has a table view beyond its buffer"
        if plan.table_lengths[i] * block_size < start + length:
            return f"{name} has no block for its last position"
        table = plan.table_buffers[i][: plan.table_lengths[i]]
        if min(table) < 0 or max(table) >= num_blocks or len(set(table)) != len(table):
            return f"{name} has a bad table {table.tolist()}"
        fresh = plan.token_buffers[i][start : min(start + length, plan.token_lengths[i])]
        if fresh and not 0 <= min(fresh) <= max(fresh) < vocab_size:
            return f"{name} has a token outside the vocabulary"
        if i < plan.num_decodes and (length != 1 or plan.num_samples[i] != 1):
            return f"{name} is among the decodes but is none"
    return None


def _check_samples(plan: StepPlan) -> str | None:
    if sum(plan.num_samples) != len(plan.sampled):
        return "num_samples does not add up to sampled"
    if len({spec.sequence_id for spec in plan.sampled}) != len(plan.sampled):
        return "a sequence is sampled twice"
    first = 0
    for i, spec in enumerate(plan.sequences):
        samples = plan.sampled[first : first + plan.num_samples[i]]
        first += plan.num_samples[i]
        end = plan.starts[i] + plan.lengths[i]
        if samples and end < plan.token_lengths[i]:
            return f"sequence {spec.sequence_id} is sampled before its end"
        if i < plan.num_decodes and samples[0] is not spec:
            return f"decode of sequence {spec.sequence_id} samples another"
        if any(end < sample.num_prompt_tokens for sample in samples):
            return f"sequence {spec.sequence_id} is sampled inside its prompt"
    if not set(plan.masked) <= {spec.sequence_id for spec in plan.sampled}:
        return "a masked sequence is not sampled"
    return None


def _check_writes(plan: StepPlan, num_blocks: int, block_size: int) -> str | None:
    """A block written by one chunk or copy is in no other chunk's reach."""
    sources, destinations = plan.copy_sources, plan.copy_destinations
    if len(sources) != len(destinations):
        return "copy columns differ in length"
    if any(not 0 <= block < num_blocks for block in (*sources, *destinations)):
        return "a copy names a block outside the pool"
    if len(set(destinations)) != len(destinations) or set(destinations) & set(sources):
        return "copies depend on their order"
    writers: dict[int, int] = {}
    for i in range(plan.num_chunks):
        start, end = plan.starts[i], plan.starts[i] + plan.lengths[i]
        for logical in range(start // block_size, (end - 1) // block_size + 1):
            block = plan.table_buffers[i][logical]
            if writers.setdefault(block, i) != i:
                return f"chunks {writers[block]} and {i} both write block {block}"
    for i in range(plan.num_chunks):
        for block in plan.table_buffers[i][: plan.table_lengths[i]]:
            if writers.get(block, i) != i:
                return f"chunk {writers[block]} writes block {block} that chunk {i} reads"
    return None
