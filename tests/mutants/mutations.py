"""The list. A mutation is one line of the product, its broken form, and the test that must fail."""

from __future__ import annotations

from dataclasses import dataclass

CORE = "scheduler_service/core"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    invariant: str
    """I1 to I8."""
    what: str
    file: str
    old: str
    """Occurs exactly once in the file."""
    new: str
    test: str
    """pytest node id."""


def _core(invariant: str, what: str, file: str, old: str, new: str, test: str) -> Mutation:
    return Mutation(
        invariant=invariant, what=what, file=f"{CORE}/{file}", old=old, new=new, test=test
    )


UNITS = "tests/scheduler_service/core"
POOL = "tests/simulation/test_pool_pressure.py"
SHARING = "tests/simulation/test_prefix_sharing.py"
RESULTS = "tests/simulation/test_steps_and_results.py"
REGRESSIONS = "tests/simulation/test_regressions.py"
TREE = f"{UNITS}/test_radix_tree.py"
KV_CACHE = f"{UNITS}/test_kv_cache.py"

MUTATIONS: tuple[Mutation, ...] = (
    _core(
        "I1",
        "a new node's blocks are not counted as evictable",
        "radix_tree.py",
        "        self.num_evictable += len(block_ids)\n        return child",
        "        return child",
        f"{TREE}::test_c04_sizes_equal_a_recount_after_every_operation",
    ),
    _core(
        "I1",
        "after an insert the sequence does not acquire the node it reached",
        "radix_tree.py",
        "            self.acquire(reached)\n            self.release(node)",
        "            self.release(node)",
        f"{POOL}::test_c01_a_prompt_that_finds_the_pool_full_waits_and_completes",
    ),
    _core(
        "I2",
        "forks write into the block they share",
        "planner.py",
        "        if sequence in self._state.tails and not self._own_tail(sequence):",
        "        if False:",
        f"{SHARING}::test_choices_share_the_prompt_and_copy_only_its_tail",
    ),
    _core(
        "I2",
        "a fork shares what its parent has not planned",
        "kv_cache.py",
        "parent.table.block_ids[: self.num_blocks_for(parent.num_planned_tokens)]",
        "parent.table.block_ids",
        f"{REGRESSIONS}::test_a_block_grown_for_a_voided_step_is_not_shared_with_forks",
    ),
    _core(
        "I2",
        "forks keep blocks that a voided step was to fill",
        "recovery.py",
        "            if sequence.status is SequenceStatus.RUNNING:",
        "            if False:",
        f"{REGRESSIONS}::test_a_copy_that_was_voided_is_made_again",
    ),
    _core(
        "I3",
        "on a duplicate prefix the table is pointed at the tree's blocks",
        "kv_cache.py",
        "        sequence.node = self.tree.extend(sequence.node, tokens, blocks)",
        "        sequence.node = self.tree.extend(sequence.node, tokens, blocks)\n"
        "        sequence.table = BlockTable(self.tree.path_blocks(\n"
        "            Match(sequence.node, len(sequence.node.block_ids), 0)\n"
        "        ) + sequence.table.block_ids[end:])",
        f"{KV_CACHE}::test_a_duplicate_prefix_leaves_both_sequences_their_own_blocks",
    ),
    _core(
        "I4",
        "the tree gets what is planned, before a result confirms it",
        "kv_cache.py",
        "        end = sequence.num_computed_tokens // size",
        "        end = min(sequence.num_planned_tokens, len(sequence.tokens)) // size",
        f"{SHARING}::test_c14_twins_never_read_what_no_result_has_confirmed",
    ),
    _core(
        "I4",
        "requests of all roots share one tree",
        "radix_tree.py",
        "        node = self._roots.get(root)\n"
        "        if node is None:\n            return _NO_MATCH",
        "        node = next(iter(self._roots.values()), None)\n"
        "        if node is None:\n            return _NO_MATCH",
        f"{SHARING}::test_salted_requests_share_nothing_with_others",
    ),
    _core(
        "I4",
        "what a failed sequence was computing is cached",
        "applier.py",
        " or (failed and sequence.sequence_id in failed)",
        "",
        f"{REGRESSIONS}::test_what_a_failed_sequence_computed_last_is_not_cached",
    ),
    _core(
        "I5",
        "blocks are released although a step in flight names them",
        "kv_cache.py",
        "        if fence.step_id <= last_ended_step:",
        "        if True:",
        f"{POOL}::test_a_killed_clients_blocks_are_back_within_two_steps",
    ),
    _core(
        "I5",
        "a fork that gives up its blocks leaves the others unfenced",
        "ending.py",
        "    _fence_forks(state, sequence)\n",
        "",
        f"{REGRESSIONS}::test_a_preempted_fork_keeps_what_its_step_names_from_being_evicted",
    ),
    _core(
        "I5",
        "forks do not hold what their parent commits meanwhile",
        "applier.py",
        "    _advance_forks(state)\n",
        "",
        f"{REGRESSIONS}::test_a_fork_holds_what_its_parent_committed_after_it_was_planned",
    ),
    _core(
        "I6",
        "a full hit leaves no token to compute",
        "kv_cache.py",
        "        return (len(sequence) - 1) // self._limits.block_size",
        "        return len(sequence) // self._limits.block_size",
        f"{SHARING}::test_c08_a_fully_cached_prompt_still_computes_its_last_token",
    ),
    _core(
        "I7",
        "a token is delivered after the end",
        "applier.py",
        "        if sequence.status is finished:",
        "        if False:",
        f"{POOL}::test_a_killed_clients_blocks_are_back_within_two_steps",
    ),
    _core(
        "I7",
        "a preempted sequence is admitted while its token is in flight",
        "admission.py",
        "        if sequence.num_in_flight or self._waits_for_known_twin(sequence):",
        "        if self._waits_for_known_twin(sequence):",
        f"{RESULTS}::test_a_sequence_preempted_in_flight_gets_no_token_twice",
    ),
    _core(
        "I7",
        "a result is applied twice",
        "applier.py",
        "    if not state.in_flight or state.in_flight[0].step_id != result.step_id:",
        "    if not state.in_flight:",
        f"{RESULTS}::test_c34_results_nobody_waits_for_are_ignored_and_counted",
    ),
    _core(
        "I8",
        "outputs that moved with their request count as prompt",
        "intake.py",
        "            num_prompt_tokens=num_prompt,",
        "            num_prompt_tokens=len(tokens),",
        f"{RESULTS}::test_moved_outputs_are_outputs_still",
    ),
    _core(
        "I8",
        "recompute after preemption stops at the prompt's end",
        "sequence.py",
        "        return planned_len - self.num_planned_tokens if planned_len < self.max_len else 0",
        "        if self.num_planned_tokens < self.spec.num_prompt_tokens < len(self.tokens):\n"
        "            return self.spec.num_prompt_tokens - self.num_planned_tokens\n"
        "        return planned_len - self.num_planned_tokens if planned_len < self.max_len else 0",
        f"{RESULTS}::test_c23_a_preempted_sequence_recomputes_prompt_and_outputs",
    ),
    _core(
        "I8",
        "the seed is drawn by the choice's place in the batch, not its index",
        "forking.py",
        "sequence_id=state.new_sequence_id(), index=index)",
        "sequence_id=state.new_sequence_id(), index=len(state.running))",
        f"{SHARING}::test_choices_share_the_prompt_and_copy_only_its_tail",
    ),
    Mutation(
        invariant="I8",
        what="a draw depends on the row's place in the batch",
        file="executor_service/runner/sampler.py",
        old="            [tasks[i].position for i in random],",
        new="            random,",
        test="tests/executor_service/runner/test_sampler.py"
        "::test_a_draw_depends_on_seed_position_and_index_alone",
    ),
)
