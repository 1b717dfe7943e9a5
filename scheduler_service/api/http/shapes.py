"""JSON shapes that several routes answer with. UNSET fields are left out."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from scheduler_service.api.generation import Generation


class PromptTokensDetails(msgspec.Struct):
    cached_tokens: int


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


OptionalUsage = Usage | None | UnsetType


def usage_of(generation: Generation) -> Usage:
    """So far; each prompt counts once, whatever n is."""
    num_prompt, num_output = generation.num_prompt_tokens, generation.num_output_tokens
    details = PromptTokensDetails(generation.num_cached_tokens)
    return Usage(num_prompt, num_output, num_prompt + num_output, details)


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool = False
    """One more chunk at the end, with usage and no choices."""
    continuous_usage_stats: bool = False
    """Usage so far on every chunk."""

    def usage_of_chunk(self, generation: Generation) -> OptionalUsage:
        """Of a chunk that has choices."""
        if not self.include_usage:
            return UNSET
        return usage_of(generation) if self.continuous_usage_stats else None
