"""One prompt of a generation: its choices, and what is known of the prompt itself."""

from __future__ import annotations

from collections.abc import Sequence

from common.plan import TokenLogprobs
from scheduler_service.api.choice import Choice
from scheduler_service.api.submission import Submission
from scheduler_service.api.tokenizer import Tokenizer


class PromptRun:
    """One prompt in the loop, with its choices."""

    def __init__(self, submission: Submission, first_index: int, tokenizer: Tokenizer) -> None:
        request = submission.request
        self.submission = submission
        self.first_index = first_index
        prompt = submission.prompt_token_ids
        self.choices = [
            Choice(first_index + j, request, tokenizer, prompt) for j in range(request.n)
        ]
        self.running: set[int] = set(range(request.n))
        """Choices that have not ended."""
        self.handle = 0
        self.num_cached_tokens = 0
        self.prompt_logprobs: list[TokenLogprobs | None] = []
        """One entry per prompt token once the prompt is computed, None for the first."""

    def start_over(self) -> Sequence[tuple[int, bytes]]:
        """Replays what an earlier try delivered; returns what the loop has to go on from.

        A choice whose end got lost on the way ends here. Those that had ended are not told again.
        """
        prior = self.submission.request.prior
        if prior is None:
            return ()
        self.running = set(prior.running)
        for j, token_ids in prior.running.items():
            choice = self.choices[j]
            choice.replay(token_ids)
            max_tokens = self.submission.max_tokens
            if choice.end is None and choice.ends_with_ending_token:
                choice.finish_as_is("stop")
            elif choice.end is None and max_tokens is not None and len(token_ids) >= max_tokens:
                choice.finish_as_is("length")
            if choice.end is not None:
                self.running.discard(j)
        for output in prior.finished:
            self.choices[output.index].num_output_tokens = output.num_tokens
        return [
            (j, token_ids.tobytes()) for j, token_ids in prior.running.items() if j in self.running
        ]

    @property
    def has_all_prompt_logprobs(self) -> bool:
        return len(self.prompt_logprobs) == len(self.submission.prompt_token_ids)

    def add_prompt_logprobs(self, first_position: int, entries: Sequence[TokenLogprobs]) -> None:
        missing = first_position - len(self.prompt_logprobs)
        self.prompt_logprobs += [None] * missing
        # A recompute sends them again; what came before stays.
        self.prompt_logprobs[first_position : first_position + len(entries)] = entries
