"""What every accepted request is owed, and what it got so far.

Rule: an output token is right only if it is the next one that the request would get alone. A choice
ends once; nothing follows an end, nor an abort that was accepted.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from dataclasses import dataclass, field

from common.plan import PromptLogprobs
from scheduler_service.core.events import Events, SequenceFinished, SequenceKey
from scheduler_service.core.request import FinishReason, PriorOutput, Request
from tests.support.shadow_model import ShadowModel, expected_output


@dataclass(slots=True, eq=False)
class Choice:
    """One choice of one request."""

    request: Request
    index: int
    expected: list[int]
    """All outputs, up to its natural end."""
    tokens: list[int] = field(default_factory=list)
    end: SequenceFinished | None = None
    asked_end: int | None = None
    """The length given to `finish`, if that was called."""

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def key(self) -> SequenceKey:
        return SequenceKey(self.request.request_id, self.index)


class Ledger:
    """Checks events as they are taken. `root_of` names what KV depends on besides tokens."""

    def __init__(self, model: ShadowModel, max_num_outputs: int, block_size: int) -> None:
        self._model = model
        self._max_num_outputs = max_num_outputs
        """Enough for any request whose max_tokens is null."""
        self._block_size = block_size
        self.choices: dict[SequenceKey, Choice] = {}
        self.num_delivered_tokens = 0
        self.num_cached_tokens: dict[str, int] = {}
        """By request id, in the order of their first admissions."""
        self._admitted: set[SequenceKey] = set()
        self._scored: defaultdict[str, set[int]] = defaultdict(set)
        """Prompt positions whose logprobs came."""

    def accept(self, request: Request, root: int) -> None:
        limit = request.max_tokens if request.max_tokens is not None else self._max_num_outputs
        for index in range(request.n):
            expected = expected_output(
                self._model,
                request.prompt_token_ids,
                limit,
                request.params,
                index=index,
                root=root,
            )
            choice = Choice(request, index, expected)
            assert choice.key not in self.choices, f"{choice.key} accepted twice"
            self.choices[choice.key] = choice

    def live(self) -> list[Choice]:
        return [choice for choice in self.choices.values() if choice.end is None]

    def aborted(self, request_id: str, events: Events) -> None:
        """The events taken right after an accepted abort end every live choice of it."""
        assert request_id not in {key.request_id for key in events.keys}, "token after an abort"
        self.take(events)
        left = [c.key for c in self.live() if c.request.request_id == request_id]
        assert not left, f"{left} survived an abort"

    def take(self, events: Events) -> None:
        for admitted in events.admitted:
            self._check_admitted(admitted.key, admitted.num_cached_tokens)
        for key, prompt_logprobs in events.prompt_logprobs:
            self._take_prompt_logprobs(key, prompt_logprobs)
        for position, (key, token) in enumerate(zip(events.keys, events.tokens, strict=True)):
            self._take_token(key, token)
            self._check_logprobs(events, position, key, token)
        for finished in events.finished:
            self._take_end(finished)

    def _check_admitted(self, key: SequenceKey, num_cached_tokens: int) -> None:
        choice = self.choices[key]
        assert key not in self._admitted, f"{key} was admitted twice"
        self._admitted.add(key)
        self.num_cached_tokens.setdefault(key.request_id, num_cached_tokens)
        assert num_cached_tokens % self._block_size == 0
        num_tokens = len(choice.request.prompt_token_ids) + len(choice.tokens)
        assert num_cached_tokens < num_tokens, f"{key}: {num_cached_tokens} of {num_tokens} cached"

    def _take_token(self, key: SequenceKey, token: int) -> None:
        choice = self.choices[key]
        assert choice.end is None, f"{key} got token {token} after its end {choice.end}"
        position = len(choice.tokens)
        assert position < len(choice.expected), f"{key} got a token beyond its natural end"
        assert token == choice.expected[position], (
            f"{key} output {position}: got {token}, alone it gets {choice.expected[position]}"
        )
        if (
            position == 0
            and key.choice == 0
            and choice.request.params.num_prompt_logprobs is not None
        ):
            missing = set(range(1, choice.num_prompt_tokens)) - self._scored[key.request_id]
            assert not missing, f"{key}: no logprobs of prompt positions {missing}"
        choice.tokens.append(token)
        self.num_delivered_tokens += 1

    def _take_prompt_logprobs(self, key: SequenceKey, scored: PromptLogprobs) -> None:
        """They may come again after a recompute; each position says whose it is."""
        request = self.choices[key].request
        for position, entry in enumerate(scored.positions, scored.first_position):
            assert entry.token_ids[0] == request.prompt_token_ids[position], f"{key} at {position}"
            self._scored[key.request_id].add(position)

    def _check_logprobs(self, events: Events, position: int, key: SequenceKey, token: int) -> None:
        asked = self.choices[key].request.params.num_logprobs is not None
        entry = events.logprobs.get(position)
        assert asked == (entry is not None), f"{key}: logprobs {entry}"
        assert entry is None or entry.token_ids[0] == token, f"{key}: logprobs of another token"

    def _take_end(self, end: SequenceFinished) -> None:
        choice = self.choices[end.key]
        assert choice.end is None, f"{end.key} ended twice: {choice.end}, {end}"
        choice.end = end
        count, name = end.num_output_tokens, f"{end.key}: {end}"
        if choice.asked_end is not None and end.reason is FinishReason.STOP:
            assert count <= len(choice.tokens), name
            return
        assert count == len(choice.tokens), f"{name}, but {len(choice.tokens)} were delivered"
        self._check_reason(choice, end, name)

    @staticmethod
    def _check_reason(choice: Choice, end: SequenceFinished, name: str) -> None:
        request = choice.request
        last = choice.tokens[-1] if choice.tokens else None
        ends = request.eos_token_ids | request.stop_token_ids
        match end.reason:
            case FinishReason.STOP:
                assert last in ends, name
                assert end.stop_token_id == (last if last in request.stop_token_ids else None), name
            case FinishReason.LENGTH:
                assert last not in ends or request.params.min_tokens, name
            case FinishReason.EXPIRED:
                assert request.deadline is not None, name

    def num_scored(self, request_id: str) -> int:
        """Prompt positions of which logprobs came."""
        return len(self._scored[request_id])

    def forget(self, request_id: str) -> None:
        """It has ended, and another request may come under its id."""
        for key in [key for key in self.choices if key.request_id == request_id]:
            assert self.choices[key].end is not None, f"{key} is live"
            del self.choices[key]
            self._admitted.discard(key)

    def moved(self, request_id: str) -> None:
        """It goes to another scheduler, which will tell of its admission again."""
        self._admitted -= {key for key in self._admitted if key.request_id == request_id}

    def prior(self, request: Request) -> tuple[PriorOutput, ...]:
        """What a new scheduler is told of a request: the outputs of its live choices."""
        return tuple(
            PriorOutput(index=c.index, token_ids=array("i", c.tokens))
            for c in self.live()
            if c.request is request
        )
