"""A language model small enough to know by heart: the next token is a hash of all tokens before it.

What a slot of KV "is" follows from the tokens up to it, so two slots are interchangeable exactly if
their prefixes are equal. Nothing here knows blocks, tables or plans: `expected_output` is the
answer that any schedule must give.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from common.plan import SamplingParams, TokenLogprobs

_WORD = 0xFFFFFFFFFFFFFFFF


class Slot(NamedTuple):
    """What the KV of one position is worth."""

    token: int
    position: int
    prefix_hash: int
    """Of this token and all before it."""


def mix(value: int) -> int:
    """A 64-bit finaliser (splitmix64): every output bit depends on every input bit."""
    value = (value + 0x9E3779B97F4A7C15) & _WORD
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _WORD
    return value ^ (value >> 31)


def append_slots(slots: list[Slot], tokens: Iterable[int], root: int) -> None:
    """Appends one slot per token. `root` stands for all that KV depends on besides tokens."""
    prefix_hash = slots[-1].prefix_hash if slots else mix(root)
    for token in tokens:
        prefix_hash = mix(prefix_hash ^ (token + 1))
        slots.append(Slot(token, len(slots), prefix_hash))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowModel:
    vocab_size: int = 1000
    eos_token_id: int | None = None
    eos_period: int = 0
    """About one sampled token in `eos_period` is EOS; 0: EOS is never sampled."""

    def next_token(
        self, last: Slot, params: SamplingParams, index: int, num_prompt_tokens: int
    ) -> int:
        """The token after `last`. Greedy: the prefix alone decides; otherwise seed and choice index
        too. Ids that end the sequence are masked until `min_tokens` outputs exist."""
        draw = mix(last.prefix_hash)
        if not params.is_greedy:
            draw = mix(draw ^ mix(params.seed) ^ mix(~index & _WORD))
        token = self._pick(draw)
        num_outputs = last.position + 1 - num_prompt_tokens
        banned = params.stop_token_ids if num_outputs < params.min_tokens else ()
        while token in banned:
            draw = mix(draw)
            token = self._pick(draw)
        return token

    def _pick(self, draw: int) -> int:
        if self.eos_token_id is None:
            return draw % self.vocab_size
        if self.eos_period and (draw >> 32) % self.eos_period == 0:
            return self.eos_token_id
        token = draw % (self.vocab_size - 1)
        return token + (token >= self.eos_token_id)

    def logprobs(self, last: Slot, token: int, count: int) -> TokenLogprobs:
        """Logprobs after `last`, made of its hash: wrong ones show as unequal."""
        ids = (token, *((token + 1 + i) % self.vocab_size for i in range(count)))
        values = tuple(-((mix(last.prefix_hash ^ i) >> 40) / 2**20) for i in ids)
        return TokenLogprobs(1 + last.prefix_hash % 7, ids, values)


def expected_output(
    model: ShadowModel,
    prompt: Iterable[int],
    num_tokens: int,
    params: SamplingParams,
    *,
    index: int = 0,
    root: int = 0,
) -> list[int]:
    """The outputs of one choice: at most `num_tokens`, ended by any of `params.stop_token_ids`."""
    slots: list[Slot] = []
    append_slots(slots, prompt, root)
    num_prompt_tokens = len(slots)
    outputs: list[int] = []
    while len(outputs) < num_tokens:
        token = model.next_token(slots[-1], params, index, num_prompt_tokens)
        outputs.append(token)
        if token in params.stop_token_ids:
            break
        append_slots(slots, (token,), root)
    return outputs
