"""What goes into and comes out of the client: plain frozen values, no wire and no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of a conversation; the model's chat template decides which roles it knows."""

    role: str
    content: str


Prompt = str | Sequence[int] | Sequence[Message]
"""Text, token ids, or a conversation that the server renders with the model's chat template."""


class GenerateOptions(TypedDict, total=False):
    """Keyword arguments of `generate`. Whatever is left out is the model's default."""

    request_id: str
    """1-128 printable ASCII characters; left out: the server chooses one."""
    model: str
    n: int
    """Choices wanted from the one prompt."""
    timeout_s: float
    """Over all tries. When it has passed, DeadlineError is raised."""
    priority: int
    """Lower runs first; refused but for 0 by servers whose policy does not look at it."""
    cache_salt: str
    """Requests share cached prefixes only under an equal salt."""
    return_text: bool
    """False: token ids alone, which spares the server the detokenizing."""
    echo_prompt: bool

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    seed: int
    max_tokens: int
    min_tokens: int
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    include_stop_str_in_output: bool
    skip_special_tokens: bool
    logit_bias: Mapping[int, float]
    logprobs: int
    """Alternatives per token; 0: the sampled token's alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The request was admitted. Always the first chunk, and the only one of its kind."""

    request_id: str
    seed: int
    num_prompt_tokens: int
    num_cached_tokens: int
    """Of the prompt, found in the prefix cache."""
    prompt_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprobs:
    """Natural logarithms over the raw model logits, at one output position."""

    logprob: float
    rank: int
    """Of the sampled token, from 1."""
    top: tuple[tuple[int, float], ...]
    """(token id, logprob), falling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What one choice gained. Several tokens may come in one delta."""

    index: int
    token_ids: tuple[int, ...]
    text: str
    """May lag behind token_ids: a character or a possible stop string is held until it is whole."""
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One per token id, if asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A choice ended; nothing more follows for its index."""

    index: int
    reason: str
    """stop, length, abort or error."""
    num_output_tokens: int
    stop_reason: str | int | None = None
    """The stop string or stop token id that matched; None: neither."""
    message: str = ""
    """Why, when the reason is error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Always the last chunk."""

    num_prompt_tokens: int
    num_output_tokens: int
    """Over all choices."""
    num_cached_tokens: int


Chunk = Started | Delta | Finished | Usage
"""One part of a stream: Started, then deltas and ends of choices, then Usage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One whole answer."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    finished: Finished


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A whole generation, as `generate_text` returns it."""

    started: Started
    choices: tuple[Choice, ...]
    """By index."""
    usage: Usage

    @property
    def text(self) -> str:
        """The first choice's text."""
        return self.choices[0].text


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    model: str
    fingerprint: str
    """Of weights, config and tokenizer."""
    max_model_len: int
    """Tokens, prompt and outputs together."""
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    has_chat_template: bool
    dtype: str
    kv_cache_dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """Counters of the server at one instant."""

    version: str
    ready: bool
    num_executors: int
    num_requests_running: int
    num_requests_waiting: int
    block_size: int
    num_blocks: int
    num_free_blocks: int
    """Free, or cached and evictable."""
    max_num_seqs: int
    max_num_batched_tokens: int
