"""What must always be true of the blocks; checked after every simulated step, and in production
behind a debug flag. O(all blocks and tokens)."""

from __future__ import annotations

from collections import Counter

from common.plan import BlockId
from scheduler_service.core.radix_node import RadixNode
from scheduler_service.core.scheduler import Scheduler
from scheduler_service.core.sequence import Sequence, SequenceStatus, token_bytes
from scheduler_service.core.state import SchedulerState


class BrokenInvariantError(AssertionError):
    """A bug of the core."""


def check(scheduler: Scheduler) -> None:
    """BrokenInvariantError naming the invariant, if one is broken."""
    state = scheduler.state
    nodes = _nodes(state)
    _check_tree(state, nodes)
    _check_references(state, nodes)
    _check_classes(state, nodes)
    _check_sharing(state)
    for sequence in state.sequences.values():
        _check_sequence(state, sequence)


def _require(condition: object, message: str) -> None:
    if not condition:
        raise BrokenInvariantError(message)


def _nodes(state: SchedulerState) -> list[RadixNode]:
    nodes, stack = [], state.kv.tree.roots()
    while stack:
        node = stack.pop()
        nodes.append(node)
        stack.extend(node.children.values())
    return nodes


def _check_tree(state: SchedulerState, nodes: list[RadixNode]) -> None:
    tree, block_bytes = state.kv.tree, state.limits.block_size * 4
    held = Counter[RadixNode]()
    for holder in _held_nodes(state):
        node: RadixNode | None = holder
        while node is not None:
            held[node] += 1
            node = node.parent
    for node in nodes:
        _require(node.num_acquired == held[node], f"I1: {node.num_acquired} != {held[node]} held")
        _require(len(node.key) == len(node.block_ids) * block_bytes, "I4: a key of half a block")
        above = node.parent.depth if node.parent is not None else 0
        _require(node.depth == above + len(node.block_ids), "I4: a node's depth is off")
        for first, child in node.children.items():
            _require(child.parent is node and child.block_ids, "I4: an empty or stray child")
            _require(child.key.startswith(first), "I4: a child under another key")
    _require(set(held) <= set(nodes), "I1: a held node is not in the tree")
    total = sum(len(node.block_ids) for node in nodes)
    evictable = sum(len(node.block_ids) for node in nodes if node.num_acquired == 0)
    _require(tree.num_blocks == total, f"I1: tree counts {tree.num_blocks} blocks, holds {total}")
    _require(tree.num_evictable == evictable, "I1: the count of evictable blocks is off")


def _held_nodes(state: SchedulerState) -> list[RadixNode]:
    holders = [s.node for s in state.running.values()] + [f.node for f in state.kv.fences]
    return [node for node in holders if node is not None]


def _check_references(state: SchedulerState, nodes: list[RadixNode]) -> None:
    """Each block has as many references as holders, and is free exactly if it has none."""
    pool, refs = state.kv.pool, Counter[BlockId]()
    for sequence in state.running.values():
        refs.update(sequence.table.block_ids)
    for fence in state.kv.fences:
        refs.update(fence.block_ids)
    for node in nodes:
        refs.update(node.block_ids)
    free = pool.free_blocks
    _require(len(set(free)) == len(free), "I1: a block is free twice")
    for block_id in map(BlockId, range(pool.num_blocks)):
        _require(
            pool.num_refs(block_id) == refs[block_id],
            f"I1: block {block_id} counts {pool.num_refs(block_id)} refs, has {refs[block_id]}",
        )
    _require(set(free).isdisjoint(refs), "I1: a free block is referenced")
    _require(len(free) + len(refs) == pool.num_blocks, "I1: the classes do not add up")


def _check_classes(state: SchedulerState, nodes: list[RadixNode]) -> None:
    """No evictable block is named by a live table or a step in flight (I1, I5)."""
    named = {b for s in state.running.values() for b in s.table.block_ids}
    named.update(b for fence in state.kv.fences for b in fence.block_ids)
    for node in nodes:
        if node.num_acquired == 0:
            _require(named.isdisjoint(node.block_ids), "I1: an evictable block is in use")
    for fence in state.kv.fences:
        _require(fence.step_id > state.last_ended_step, "I5: a fence outlived its step")


def _check_sharing(state: SchedulerState) -> None:
    """I2: a block of two live tables is full and read-only, or an unwritten fork's tail."""
    size, owners = state.limits.block_size, dict[BlockId, list[tuple[Sequence, int]]]()
    for sequence in state.running.values():
        for i, block_id in enumerate(sequence.table.block_ids):
            owners.setdefault(block_id, []).append((sequence, i))
    for block_id, places in owners.items():
        _require(len({i for _, i in places}) == 1, f"I2: block {block_id} at two positions")
        if len(places) == 1:
            continue
        for sequence, i in places:
            filled = min(sequence.planned_len, sequence.num_planned_tokens) - i * size
            is_unwritten_tail = (
                sequence in state.tails
                and state.tails.get(sequence).block_id == block_id
                and sequence.num_planned_tokens <= sequence.spec.num_prompt_tokens
            )
            _require(filled >= size or is_unwritten_tail, f"I2: block {block_id} is written shared")


def _check_sequence(state: SchedulerState, sequence: Sequence) -> None:
    size, key = state.limits.block_size, sequence.key
    _require(len(sequence) < sequence.max_len, f"I7: {key} outlived its end")
    if sequence.status is SequenceStatus.WAITING:
        _require(not len(sequence.table) and sequence.node is None, f"I1: {key} waits with KV")
        _require(sequence in list(state.waiting), f"I7: {key} is lost")
        return
    _require(sequence.sequence_id in state.running, f"I7: {key} is lost")
    slots = len(sequence.table) * size
    _require(
        sequence.num_computed_tokens <= sequence.num_planned_tokens <= sequence.planned_len,
        f"I6: {key} computed {sequence.num_computed_tokens}, planned {sequence.num_planned_tokens}",
    )
    _require(sequence.num_planned_tokens <= slots, f"I2: {key} writes past its table")
    _require(len(sequence.table) <= state.kv.num_blocks_for(sequence.max_len), f"F5: {key} hoards")
    if sequence.node is not None:
        _check_committed(state, sequence)


def _check_committed(state: SchedulerState, sequence: Sequence) -> None:
    """I4: the tree's path of a sequence spells its own confirmed tokens."""
    size, node = state.limits.block_size, sequence.node
    assert node is not None
    confirmed = sequence.num_computed_tokens // size
    _require(node.depth <= confirmed, f"I4: {sequence.key} committed KV no result confirmed")
    keys = []
    depth = node.depth
    current: RadixNode | None = node
    while current is not None:
        keys.append(current.key)
        current = current.parent
    tokens = token_bytes(sequence.tokens[: depth * size])
    _require(b"".join(reversed(keys)) == tokens, f"I4: {sequence.key} is under other tokens")
