from __future__ import annotations

from array import array

from scheduler_service.api.prompt_run import PromptRun
from scheduler_service.api.submission import Submission
from scheduler_service.api.tokenizer import Tokenizer
from tests.scheduler_service.api.builders import make_request
from tests.support.tiny_tokenizers import byte_fallback_tokenizer, word_id


def test_the_text_of_each_choice_goes_on_after_the_prompts() -> None:
    request = make_request(n=2)
    submission = Submission(
        request_id="r",
        request=request,
        prompt_text=None,
        prompt_token_ids=array("i", [1, word_id("a")]),
        params=request.params,
        max_tokens=None,
        deadline=None,
    )
    run = PromptRun(submission, 0, Tokenizer(byte_fallback_tokenizer()))
    for choice in run.choices:
        choice.push(word_id("\u2581he"))
        assert choice.take().text == " he"
