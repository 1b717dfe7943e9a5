"""Prompts become the token ids that transformers makes of them.

The tokenizer is the one that the executor sends, and the template is rendered where the API does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from scheduler_service.api.served_model import ServedModel, load_served_model
from scheduler_service.engine.messages import ModelReady
from tests.integration.reference.prompts import PROMPTS, Prompt
from tests.integration.reference.recorded import recording
from tests.support.real_runner import smollm2_runner

_BOS = 1  # <|im_start|>, which the model's config also calls the beginning of a sequence


@pytest.fixture
async def model() -> AsyncIterator[ServedModel]:
    runner = smollm2_runner()
    spec = runner.spec
    ready = ModelReady(
        name=spec.model_name,
        fingerprint=spec.fingerprint,
        files=runner.model_files,
        max_model_len=spec.max_model_len,
        vocab_size=spec.vocab_size,
        block_size=spec.block_size,
        num_blocks=spec.num_blocks,
        dtype=spec.dtype,
        kv_cache_dtype=spec.kv_cache_dtype,
    )
    served = await load_served_model(ready, None)
    yield served
    assert served.template is not None
    await served.template.close()


async def _token_ids(model: ServedModel, prompt: Prompt) -> list[int]:
    if prompt.kind == "chat":
        assert model.template is not None
        text = await model.template.render(prompt.as_chat(), add_generation_prompt=True)
        return await model.tokenizer.encode(text, add_special_tokens=False)
    ids = await model.tokenizer.encode(prompt.text, add_special_tokens=True)
    return ids[: prompt.num_tokens]


async def test_every_prompt_has_the_token_ids_of_the_reference(model: ServedModel) -> None:
    answers = recording().answers
    assert answers.keys() == {prompt.name for prompt in PROMPTS}
    for prompt in PROMPTS:
        token_ids = await _token_ids(model, prompt)
        assert token_ids == list(answers[prompt.name].prompt_token_ids), prompt.name


async def test_a_chat_starts_with_one_bos(model: ServedModel) -> None:
    chats = [prompt for prompt in PROMPTS if prompt.kind == "chat"]
    for prompt in chats:
        token_ids = await _token_ids(model, prompt)
        assert token_ids[0] == _BOS
        assert token_ids[1] != _BOS, prompt.name


async def test_the_end_of_turn_token_ends_a_chat(model: ServedModel) -> None:
    assert set(recording().eos_token_ids) <= model.eos_token_ids
    assert model.tokenizer.token_id("<|im_end|>") in model.eos_token_ids
