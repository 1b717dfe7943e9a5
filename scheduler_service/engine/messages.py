"""What API workers and the step loop say to each other over their local socket.

Each frame is a u32 little-endian length and one msgpack value: a list of commands towards the loop,
one `StepOutputs` or another reply towards a worker. A worker numbers its requests with `handle`s;
the loop answers by handle, so no id string travels per token. Text never enters the loop.

Token ids travel as int32 little-endian bytes.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from common.plan import SamplingParams, TokenLogprobs


class Submit(msgspec.Struct, tag="submit", array_like=True, frozen=True):
    """Add a request. Answered by `StepOutputs.admitted` or `.refused`, later by `.finished`."""

    handle: int
    request_id: str
    """Unique among live requests of all workers; a duplicate is refused."""
    prompt_token_ids: bytes
    params: SamplingParams
    n: int = 1
    max_tokens: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    timeout_s: float | None = None
    """Left of the deadline when sent; durations, since clocks of two processes are not compared."""
    priority: int = 0
    tenant: str = ""
    cache_salt: str = ""
    prior_outputs: tuple[tuple[int, bytes], ...] = ()
    """(index, token ids) of choices still to run, when this resumes an earlier try."""


class Abort(msgspec.Struct, tag="abort", array_like=True, frozen=True):
    """End a request by its id, whoever submitted it. Idempotent; answered by `Reply` if call_id."""

    request_id: str
    call_id: int | None = None


class Finish(msgspec.Struct, tag="finish", array_like=True, frozen=True):
    """A stop string was found: rewind the choice to num_output_tokens and end it as stop."""

    handle: int
    index: int
    num_output_tokens: int


CallMethod = Literal["metrics", "server_info", "reset_prefix_cache", "dump_invariants"]


class Call(msgspec.Struct, tag="call", array_like=True, frozen=True):
    """A question answered by one `Reply` with the same call_id."""

    call_id: int
    method: CallMethod


Command = Submit | Abort | Finish | Call


class ModelReady(msgspec.Struct, tag="model", array_like=True, frozen=True):
    """Sent once to each worker as soon as an executor has told the model."""

    name: str
    fingerprint: str
    files: dict[str, bytes]
    """tokenizer.json, chat_template.jinja, generation_config.json, config.json, if they exist."""
    max_model_len: int
    """Effective: the flag, the model and the pool taken together."""
    vocab_size: int
    block_size: int
    num_blocks: int
    dtype: str
    kv_cache_dtype: str


class Readiness(msgspec.Struct, tag="ready", array_like=True, frozen=True):
    """Sent at every change. Not ready: no executor, draining, or no token for too long."""

    ready: bool
    reason: str = ""
    draining: bool = False
    """New requests are refused; running ones go on."""


class Admitted(msgspec.Struct, array_like=True, frozen=True):
    handle: int
    num_cached_tokens: int


class Refused(msgspec.Struct, array_like=True, frozen=True):
    """The request never entered: nothing else follows for its handle."""

    handle: int
    kind: Literal["invalid", "queue_full", "unavailable"]
    field: str
    message: str
    retry_after_s: float = 1.0


class Finished(msgspec.Struct, array_like=True, frozen=True):
    handle: int
    index: int
    reason: Literal["stop", "length", "abort", "expired", "error"]
    num_output_tokens: int
    stop_token_id: int | None = None
    message: str = ""


class StepOutputs(msgspec.Struct, tag="outputs", array_like=True, frozen=True):
    """All that one step (or one drain of commands) has for one worker.

    To be applied in the order admitted, tokens, refused, finished. Token i belongs to choice
    indexes[i] of handles[i].
    """

    handles: list[int]
    indexes: list[int]
    tokens: bytes
    logprobs: dict[int, TokenLogprobs] = {}
    """By position in `handles`; only for requests that asked."""
    prompt_logprobs: list[tuple[int, int, list[TokenLogprobs]]] = []
    """(handle, first position, entries)."""
    admitted: list[Admitted] = []
    refused: list[Refused] = []
    finished: list[Finished] = []


class ServerInfo(msgspec.Struct, array_like=True, frozen=True):
    """Answer to `server_info`: counters at this instant, summed over executors."""

    ready: bool
    num_executors: int
    num_requests_running: int
    num_requests_waiting: int
    num_blocks: int
    num_free_blocks: int
    """Free or evictable."""
    max_num_seqs: int
    max_num_batched_tokens: int


class Reply(msgspec.Struct, tag="reply", array_like=True, frozen=True):
    """Answer to a `Call` or an `Abort` with a call_id.

    metrics: Prometheus text as str. server_info: ServerInfo. reset_prefix_cache: bool (False while
    requests hold blocks). abort: bool (found). dump_invariants: dict.
    """

    call_id: int
    value: str | bool | dict[str, object] | list[object]


Update = ModelReady | Readiness | StepOutputs | Reply
