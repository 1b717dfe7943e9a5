"""From the tokens of one choice to what its client gets: text, ids, logprobs, one end.

    token -> detokenizer -> stop matcher -> delta

Deltas gather here until the client's transport takes them, however slow it is. Ids and logprobs
are given out at once; text may lag behind by a partial character or by what may begin a stop
string. The token that ends a choice (EOS, a stop token) is an output like any other, but its text
is not, unless include_stop_str_in_output.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from common.plan import TokenLogprobs
from scheduler_service.api.detokenizer import Detokenizer, new_detokenizer
from scheduler_service.api.generate_request import GenerateRequest
from scheduler_service.api.stop_strings import StopMatcher
from scheduler_service.api.tokenizer import Tokenizer
from scheduler_service.engine.messages import Finished

EndReason = Literal["stop", "length", "abort", "error"]


class ChoiceEnd(NamedTuple):
    reason: EndReason
    num_output_tokens: int
    """Prior ones included."""
    stop_reason: str | int | None = None
    """The stop string or stop_token_ids entry; None for EOS and every other end."""
    message: str = ""
    """Why, when reason is error."""


class TokenEntry(NamedTuple):
    """Logprobs of one output token, and its place in the text."""

    piece: str
    """What the token added to the text: the pieces of all tokens, joined, are the text up to its
    end. Empty inside a character; a token that is left out of the text has its own name."""
    text_offset: int
    """Characters of the text before the token."""
    logprobs: TokenLogprobs


@dataclass(slots=True)
class Delta:
    """News of one choice since its last delta."""

    index: int
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    entries: list[TokenEntry] = field(default_factory=list)
    """One per token id, if logprobs were asked for."""
    end: ChoiceEnd | None = None


class Choice:
    """Tokens are pushed until `end` is set; later ones are overrun and ignored."""

    def __init__(
        self,
        index: int,
        request: GenerateRequest,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int] = (),
    ) -> None:
        self.end: ChoiceEnd | None = None
        self.num_output_tokens = 0
        self._index = index
        self._request = request
        self._tokenizer = tokenizer
        self._ending_ids = request.eos_token_ids | request.stop_token_ids
        self._held_ending: int | None = None
        """An ending token whose text waits for the word that it ended the choice."""
        self._detokenizer: Detokenizer | None = None
        if request.return_text or request.stop:
            self._detokenizer = new_detokenizer(
                tokenizer,
                skip_special_tokens=request.skip_special_tokens,
                prompt=prompt_token_ids,
            )
        self._matcher = StopMatcher(request.stop) if request.stop else None
        self._num_text_chars = 0
        self._delta = Delta(index)
        self._texts: list[str] = []

    def push(self, token_id: int, logprobs: TokenLogprobs | None = None) -> None:
        """One output token."""
        if self.end is not None:
            return
        self.num_output_tokens += 1
        self._delta.token_ids.append(token_id)
        offset = self._num_text_chars
        piece = self._push_text(token_id)
        if logprobs is not None:
            if piece is None:
                piece = self._tokenizer.token_bytes(token_id).decode(errors="replace")
            self._delta.entries.append(TokenEntry(piece, offset, logprobs))

    def replay(self, token_ids: Iterable[int]) -> None:
        """Outputs that were delivered before: they shape what follows and are not told again."""
        for token_id in token_ids:
            self.push(token_id)
        self._delta = Delta(self._index, end=self.end)
        self._texts.clear()

    def finish(self, finished: Finished) -> None:
        """The loop's word that the choice ended. Ignored if a stop string ended it before."""
        if self.end is None:
            self._flush(is_stop=finished.reason == "stop")
        if self.end is None:
            reason: EndReason = "error" if finished.reason == "expired" else finished.reason
            self._set_end(
                ChoiceEnd(
                    reason, finished.num_output_tokens, finished.stop_token_id, finished.message
                )
            )

    def finish_as_is(self, reason: EndReason) -> None:
        """Ends the choice with the tokens it has, without the loop."""
        stop_id = self._held_ending if self._held_ending in self._request.stop_token_ids else None
        self._flush(is_stop=reason == "stop")
        if self.end is None:
            self._set_end(ChoiceEnd(reason, self.num_output_tokens, stop_id))

    @property
    def ends_with_ending_token(self) -> bool:
        return self._held_ending is not None

    def take(self) -> Delta:
        """Everything since the last call."""
        delta, self._delta = self._delta, Delta(self._index)
        delta.text = "".join(self._texts)
        self._texts.clear()
        return delta

    def _push_text(self, token_id: int) -> str | None:
        """Returns the token's piece; None if its text is left out, for now or for good."""
        held, self._held_ending = self._held_ending, None
        if held is not None:
            self._append(self._decode(held))  # it ended nothing
        if token_id in self._ending_ids:
            self._held_ending = token_id
            return None
        text = self._decode(token_id)
        self._append(text)
        is_left_out = self._request.skip_special_tokens and self._tokenizer.is_special(token_id)
        return None if is_left_out else text

    def _decode(self, token_id: int) -> str:
        return "" if self._detokenizer is None else self._detokenizer.push(token_id)

    def _append(self, text: str) -> None:
        self._num_text_chars += len(text)
        if self._matcher is None:
            self._texts.append(text)
        elif self.num_output_tokens <= self._request.params.min_tokens:
            self._texts.append(self._matcher.push_unstoppable(text))
        else:
            self._texts.append(self._matcher.push(text))
            if self._matcher.match is not None:
                self._stop_at(self._matcher.match)

    def _stop_at(self, stop_string: str) -> None:
        if self._request.include_stop_str_in_output:
            self._texts.append(stop_string)
        self._set_end(ChoiceEnd("stop", self.num_output_tokens, stop_string))

    def _flush(self, *, is_stop: bool) -> None:
        """Gives out all text that was held back."""
        held, self._held_ending = self._held_ending, None
        if held is not None and (not is_stop or self._request.include_stop_str_in_output):
            self._append(self._decode(held))
        if self._detokenizer is not None and self.end is None:
            self._append(self._detokenizer.flush())
        if self._matcher is not None and self.end is None:
            self._texts.append(self._matcher.flush())

    def _set_end(self, end: ChoiceEnd) -> None:
        self.end = end
        self._delta.end = end
