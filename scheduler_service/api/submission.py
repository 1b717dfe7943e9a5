"""From a checked request to what the step loop takes: tokens, lengths, seed, deadline."""

from __future__ import annotations

import dataclasses
import random
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from common.errors import DeadlineError, InvalidRequestError
from common.plan import TOKEN_TYPECODE, SamplingParams
from scheduler_service.api.generate_request import GenerateRequest
from scheduler_service.api.prompt_ids import fail_length
from scheduler_service.api.served_model import ServedModel
from scheduler_service.engine.messages import Submit


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One prompt of a request, ready for the loop."""

    request_id: str
    request: GenerateRequest
    prompt_text: str | None
    """None if the prompt came as ids."""
    prompt_token_ids: array[int]
    params: SamplingParams
    max_tokens: int | None
    deadline: float | None
    """On time.monotonic."""

    @property
    def runs(self) -> bool:
        """False if nothing has to be computed: no output and no prompt logprobs are wanted."""
        return self.max_tokens != 0 or self.params.num_prompt_logprobs is not None

    def to_submit(self, handle: int, running: Sequence[tuple[int, bytes]]) -> Submit:
        """`running` is Submit.prior_outputs. DeadlineError if it has passed already."""
        timeout_s = None
        if self.deadline is not None:
            timeout_s = self.deadline - time.monotonic()
            if timeout_s <= 0:
                raise DeadlineError("the deadline passed before the request was queued")
        return Submit(
            handle=handle,
            request_id=self.request_id,
            prompt_token_ids=self.prompt_token_ids.tobytes(),
            params=self.params,
            n=self.request.n,
            # The loop has no use for 0. One output ends a request whose prompt alone is wanted.
            max_tokens=self.max_tokens if self.max_tokens is None else max(1, self.max_tokens),
            eos_token_ids=tuple(sorted(self.request.eos_token_ids)),
            stop_token_ids=tuple(sorted(self.request.stop_token_ids)),
            timeout_s=timeout_s,
            priority=self.request.priority,
            cache_salt=self.request.cache_salt,
            prior_outputs=tuple(running),
        )


async def prepare(
    request: GenerateRequest, model: ServedModel, arrived_at: float
) -> list[Submission]:
    """Tokenizes and checks every prompt; nothing is submitted unless all can run."""
    prompts = await _tokenize(request, model)
    deadline = None if request.timeout_s is None else arrived_at + request.timeout_s
    submissions = []
    for number, (prompt, token_ids) in enumerate(zip(request.prompts, prompts, strict=True)):
        suffix = f"-{number}" if len(prompts) > 1 else ""
        submissions.append(
            Submission(
                request_id=request.request_id + suffix,
                request=request,
                prompt_text=prompt if isinstance(prompt, str) else None,
                prompt_token_ids=token_ids,
                params=_seeded(request),
                max_tokens=_max_tokens(request, len(token_ids), model),
                deadline=deadline,
            )
        )
    return submissions


async def _tokenize(request: GenerateRequest, model: ServedModel) -> list[array[int]]:
    texts = [prompt for prompt in request.prompts if isinstance(prompt, str)]
    for text in texts:
        _refuse_far_too_long(text, model)
    encoded = iter(
        await model.tokenizer.encode_batch(texts, add_special_tokens=request.add_special_tokens)
    )
    return [
        _checked(next(encoded) if isinstance(prompt, str) else prompt, model)
        for prompt in request.prompts
    ]


def _checked(token_ids: Sequence[int], model: ServedModel) -> array[int]:
    """A tokenizer may know more tokens than the model has embeddings for."""
    if token_ids and max(token_ids) >= model.vocab_size:
        raise InvalidRequestError(
            f"the prompt holds token {max(token_ids)}, which {model.name} does not have;"
            f" ids end at {model.vocab_size - 1}",
            field="prompt",
        )
    return array(TOKEN_TYPECODE, token_ids)


def _refuse_far_too_long(text: str, model: ServedModel) -> None:
    """Megabytes that cannot fit are not worth tokenizing."""
    num_tokens = -(-len(text) // model.tokenizer.longest_token_chars)
    if num_tokens >= model.max_model_len:
        fail_length(f"at least {num_tokens}", model)


def _max_tokens(request: GenerateRequest, num_prompt_tokens: int, model: ServedModel) -> int | None:
    """Of this prompt, checked against the context. The loop clips None to what fits."""
    if not num_prompt_tokens:
        raise InvalidRequestError("the prompt has no tokens; send at least one", field="prompt")
    room = model.max_model_len - num_prompt_tokens
    if room < 1:
        fail_length(str(num_prompt_tokens), model)
    if request.max_tokens is None:
        default = request.default_max_tokens
        return None if default is None else min(default, room)
    if request.max_tokens > room:
        raise InvalidRequestError(
            f"max_tokens {request.max_tokens} and a prompt of {num_prompt_tokens} tokens exceed the"
            f" context of {model.max_model_len}; ask for at most {room}",
            field="max_tokens",
        )
    return request.max_tokens


def _seeded(request: GenerateRequest) -> SamplingParams:
    """Equal prompts of one unseeded request get different seeds, as they would alone."""
    if request.has_seed:
        return request.params
    return dataclasses.replace(request.params, seed=random.getrandbits(63))
