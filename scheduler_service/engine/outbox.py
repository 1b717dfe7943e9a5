"""What waits to be written to one worker.

The loop appends to the open batch; the link's writer takes it whenever the socket has room. So a
worker that reads at its ease gets one `StepOutputs` per step, and one that lags gets the steps it
missed merged into one. Memory is bounded: beyond `max_entries` the worker counts as dead.
"""

from __future__ import annotations

from array import array

from common.plan import TOKEN_TYPECODE, PromptLogprobs, TokenLogprobs
from scheduler_service.engine.messages import (
    Admitted,
    Finished,
    ModelReady,
    Readiness,
    Refused,
    Reply,
    StepOutputs,
    Update,
)

MAX_ENTRIES = 1 << 20
"""Tokens, logprobs and messages that may wait for one worker; about 20 MB of them."""


class Outbox:
    def __init__(self) -> None:
        self.num_entries = 0
        self._model: ModelReady | None = None
        self._readiness: Readiness | None = None
        self._replies: list[Reply] = []
        self._open_batch()

    def _open_batch(self) -> None:
        self._handles: list[int] = []
        self._indexes: list[int] = []
        self._tokens = array(TOKEN_TYPECODE)
        self._logprobs: dict[int, TokenLogprobs] = {}
        self._prompt_logprobs: list[tuple[int, int, list[TokenLogprobs]]] = []
        self._admitted: list[Admitted] = []
        self._refused: list[Refused] = []
        self._finished: list[Finished] = []

    def put_token(self, handle: int, index: int, token: int) -> None:
        self._handles.append(handle)
        self._indexes.append(index)
        self._tokens.append(token)
        self.num_entries += 1

    def put_tokens(self, handles: list[int], indexes: list[int], tokens: array[int]) -> None:
        """Like `put_token` for each position of three columns of one length."""
        self._handles += handles
        self._indexes += indexes
        self._tokens.extend(tokens)
        self.num_entries += len(handles)

    def put_logprobs(self, logprobs: TokenLogprobs) -> None:
        """Of the token put last."""
        self._logprobs[len(self._handles) - 1] = logprobs
        self.num_entries += len(logprobs.token_ids)

    def put_prompt_logprobs(self, handle: int, entry: PromptLogprobs) -> None:
        self._prompt_logprobs.append((handle, entry.first_position, list(entry.positions)))
        self.num_entries += sum(len(position.token_ids) for position in entry.positions)

    def put_admitted(self, admitted: Admitted) -> None:
        self._admitted.append(admitted)
        self.num_entries += 1

    def put_refused(self, refused: Refused) -> None:
        self._refused.append(refused)
        self.num_entries += 1

    def put_finished(self, finished: Finished) -> None:
        self._finished.append(finished)
        self.num_entries += 1

    def put_model(self, model: ModelReady) -> None:
        self._model = model
        self.num_entries += 1

    def put_readiness(self, readiness: Readiness) -> None:
        """Only the latest one matters."""
        self._readiness = readiness
        self.num_entries += 1

    def put_reply(self, reply: Reply) -> None:
        self._replies.append(reply)
        self.num_entries += 1 + (len(reply.value) if isinstance(reply.value, str) else 0) // 8

    def take(self) -> list[Update]:
        """Everything that waits, in the order it has to be applied. Empties the outbox."""
        updates: list[Update] = []
        if self._model is not None:
            updates.append(self._model)
        if self._readiness is not None:
            updates.append(self._readiness)
        if outputs := self._take_batch():
            updates.append(outputs)
        updates += self._replies
        self._model, self._readiness, self._replies = None, None, []
        self.num_entries = 0
        return updates

    def _take_batch(self) -> StepOutputs | None:
        if not (
            self._handles
            or self._finished
            or self._admitted
            or self._refused
            or self._prompt_logprobs
        ):
            return None
        outputs = StepOutputs(
            handles=self._handles,
            indexes=self._indexes,
            tokens=self._tokens.tobytes(),
            logprobs=self._logprobs,
            prompt_logprobs=self._prompt_logprobs,
            admitted=self._admitted,
            refused=self._refused,
            finished=self._finished,
        )
        self._open_batch()
        return outputs
