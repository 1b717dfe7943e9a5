"""What a client asked, checked, in one form for HTTP and gRPC."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from common.plan import SamplingParams
from scheduler_service.api.stop_strings import StopStrings

MAX_CHOICES = 128
"""n of one prompt."""
MAX_TOTAL_CHOICES = 1024
"""Prompts times n of one request: each is a sequence of its own."""

Prompt = str | Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedOutput:
    """A choice that had ended before a resume; it is counted and not run."""

    index: int
    num_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorOutputs:
    """What an earlier try of this request had delivered."""

    running: dict[int, array[int]]
    """By choice; every choice that is still to run, those without tokens too."""
    finished: tuple[FinishedOutput, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """Everything is in range; lengths against the context are checked once tokens are known."""

    request_id: str
    prompts: tuple[Prompt, ...]
    """Texts and token ids, mixed as they come. Choice j of prompt i is choice i * n + j."""
    add_special_tokens: bool
    """To the prompts that are text."""
    params: SamplingParams
    """`seed` counts only if `has_seed`."""
    has_seed: bool
    n: int = 1
    max_tokens: int | None = None
    """None: whatever fits; 0: only the prompt is wanted."""
    default_max_tokens: int | None = None
    """In place of an absent max_tokens, cut to what fits."""
    eos_token_ids: frozenset[int] = frozenset()
    """Empty when the client ignores EOS."""
    stop_token_ids: frozenset[int] = frozenset()
    stop: StopStrings
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    return_text: bool = True
    echo: bool = False
    timeout_s: float | None = None
    """From arrival."""
    priority: int = 0
    cache_salt: str = ""
    prior: PriorOutputs | None = None
    written_names: Mapping[str, str] = field(default_factory=dict)
    """What the client calls a field, where that differs from our name for it."""

    def written_name(self, name: str) -> str:
        return self.written_names.get(name, name)
