"""An echoed prompt before a choice's text, with its logprobs where those were asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from common.plan import TokenLogprobs
from scheduler_service.api.detokenizer import new_detokenizer
from scheduler_service.api.generation import Generation
from scheduler_service.api.http.completion_shapes import PromptLogprob, PromptLogprobs
from scheduler_service.api.http.logprobs import CompletionLogprobs, top_by_name
from scheduler_service.api.http.token_names import TokenNames, token_text
from scheduler_service.api.prompt_run import PromptRun
from scheduler_service.api.served_model import ServedModel
from scheduler_service.api.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Echo:
    text: str = ""
    logprobs: CompletionLogprobs | None = None

    @classmethod
    def of(
        cls, run: PromptRun, generation: Generation, model: ServedModel, names: TokenNames
    ) -> Echo:
        """Of the run's prompt, once that has been computed."""
        request = run.submission.request
        if not request.echo:
            return cls()
        logprobs = None
        if request.params.num_logprobs is not None:
            logprobs = _echoed_logprobs(run, model.tokenizer, names)
        return cls(text=generation.prompt_text(run), logprobs=logprobs)

    def before(self, outputs: CompletionLogprobs) -> CompletionLogprobs:
        """The prompt's logprobs and those of the first outputs as one."""
        if self.logprobs is None:
            return outputs
        return CompletionLogprobs(
            text_offset=self.logprobs.text_offset + outputs.text_offset,
            token_logprobs=self.logprobs.token_logprobs + outputs.token_logprobs,
            tokens=self.logprobs.tokens + outputs.tokens,
            top_logprobs=self.logprobs.top_logprobs + outputs.top_logprobs,
        )


def _echoed_logprobs(run: PromptRun, tokenizer: Tokenizer, names: TokenNames) -> CompletionLogprobs:
    """The first token has none: nothing came before it."""
    shown = CompletionLogprobs([], [], [], [])
    skip = run.submission.request.skip_special_tokens
    detokenizer = new_detokenizer(tokenizer, skip_special_tokens=skip)
    offset = 0
    for token_id, logprobs in zip(run.submission.prompt_token_ids, _entries(run), strict=True):
        text = detokenizer.push(token_id)
        is_left_out = skip and tokenizer.is_special(token_id)
        name = names.sampled(token_id, token_text(token_id, tokenizer) if is_left_out else text)
        shown.tokens.append(name)
        shown.text_offset.append(offset)
        shown.token_logprobs.append(None if logprobs is None else logprobs.logprobs[0])
        shown.top_logprobs.append(None if logprobs is None else top_by_name(name, logprobs, names))
        offset += len(text)
    return shown


def prompt_logprobs(run: PromptRun, tokenizer: Tokenizer) -> PromptLogprobs:
    """Per prompt token, its own logprob and the best ones, by token id."""
    shown: PromptLogprobs = []
    for entry in _entries(run):
        if entry is None:
            shown.append(None)
            continue
        by_id: dict[str, PromptLogprob] = {}
        for rank, (token_id, logprob) in enumerate(
            zip(entry.token_ids, entry.logprobs, strict=True)
        ):
            name = token_text(token_id, tokenizer)
            by_id.setdefault(str(token_id), PromptLogprob(logprob, rank or entry.rank, name))
        shown.append(by_id)
    return shown


def _entries(run: PromptRun) -> Sequence[TokenLogprobs | None]:
    """One per prompt token; none of a prompt whose end came before it was computed."""
    missing = len(run.submission.prompt_token_ids) - len(run.prompt_logprobs)
    return [*run.prompt_logprobs, *[None] * missing]
