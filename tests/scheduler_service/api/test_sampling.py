"""Sampling fields: ranges, defaults and what is derived from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from common.errors import InvalidRequestError
from scheduler_service.api.fields import Fields
from scheduler_service.api.sampling import SamplingFields, read_sampling
from scheduler_service.api.served_model import ServedModel, load_served_model
from tests.scheduler_service.api.conftest import model_ready
from tests.support.smol_files import IM_END, VOCAB_SIZE, smol_files


def read(model: ServedModel, max_tokens: int | None = None, **fields: Any) -> SamplingFields:
    return read_sampling(
        Fields(fields),
        model,
        max_tokens=max_tokens,
        num_logprobs=None,
        num_prompt_logprobs=None,
    )


BAD = {
    "temperature": [-0.1, 1e9, "1", True, float("nan"), float("inf"), []],
    "top_p": [0, 0.0, -0.1, 1.0001, "1", float("nan")],
    "top_k": [-2, 0.5, "5", 2**63, True, 1.0],
    "min_p": [-0.01, 1.01, "0"],
    "repetition_penalty": [0, -1, 1e9, "1"],
    "presence_penalty": [-2.01, 2.01],
    "frequency_penalty": [-2.01, 2.01],
    "seed": [2**64, -(2**63) - 1, 0.5, "1", True],
    "n": [0, -1, 1.5, 129, 10**6, 10**9, "2", True],
    "best_of": [0, 2, 10**6],
    "min_tokens": [-1, 10**9, 0.5],
    "ignore_eos": [0, "yes"],
    "include_stop_str_in_output": [1],
    "skip_special_tokens": ["no"],
    "priority": [1, -1, 2**31, 0.5],
    "cache_salt": [5, "", "x" * 257],
    "timeout": [0, -1, "3", float("inf")],
    "stop_token_ids": [[VOCAB_SIZE], [VOCAB_SIZE + 5, 2**31 - 1, -1], [-1], ["2"], "2", [2] * 257],
    "stop": [[""], "", [1], 5, ["a"] * 17, ["a"] * 10**5, ["x" * 1025], ["é" * 600], {"a": 1}],
    "logit_bias": [
        {"a": 1},
        {"-1": 1},
        {str(VOCAB_SIZE): 1},
        {"1": 101},
        {"1": "1"},
        {"1": float("nan")},
        [1],
        {str(i): 1 for i in range(2000)},
        {"1" * 5000: 1},
        {"²": 1},
    ],
}


@pytest.mark.parametrize(
    ("field", "value"),
    [(field, value) for field, values in BAD.items() for value in values],
    ids=lambda value: repr(value)[:30],
)
async def test_what_is_out_of_range_is_named(model: ServedModel, field: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        read(model, **{field: value})
    assert raised.value.field == field
    assert field in str(raised.value)


async def test_c50_top_k_beyond_the_vocabulary_is_off(model: ServedModel) -> None:
    for off in (-1, 0, VOCAB_SIZE, VOCAB_SIZE + 1, 9_999_999, 2**31, 2**63 - 1):
        assert read(model, top_k=off)["params"].top_k == 0
    assert read(model, top_k=1)["params"].top_k == 1
    assert read(model, top_k=VOCAB_SIZE - 1)["params"].top_k == VOCAB_SIZE - 1


async def test_c49_tiny_values_are_taken_as_they_are(model: ServedModel) -> None:
    for temperature in (0, 1e-38, 1e-45, 1e-5):
        assert read(model, temperature=temperature)["params"].is_greedy
    assert read(model, top_p=1e-9)["params"].top_p == 1e-9
    assert np.float32(read(model, top_p=5e-324)["params"].top_p) > 0, "as executors get it"


async def test_absent_fields_are_neutral(model: ServedModel) -> None:
    sampling = read(model)
    params = sampling["params"]
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (1, 1, 0, 0)
    assert params.repetition_penalty == 1
    assert (params.presence_penalty, params.frequency_penalty) == (0, 0)
    assert sampling["n"] == 1
    assert not sampling["has_seed"]
    assert sampling["skip_special_tokens"]


async def test_the_models_generation_config_gives_defaults() -> None:
    files = smol_files() | {
        "generation_config.json": b'{"temperature": 0.6, "top_p": 0.9, "top_k": 40,'
        b' "repetition_penalty": 1.1, "eos_token_id": [2, 5], "min_p": 7}'
    }
    del files["chat_template.jinja"]
    model = await load_served_model(model_ready(files=files), None)
    params = read(model)["params"]
    assert (params.temperature, params.top_p, params.top_k) == (0.6, 0.9, 40)
    assert params.repetition_penalty == 1.1
    assert params.min_p == 0  # out of range there: not taken
    assert read(model, temperature=0, top_k=-1)["params"].is_greedy
    assert read(model, top_k=-1)["params"].top_k == 0
    assert read(model)["eos_token_ids"] == {2, 5}


async def test_every_ending_id_reaches_the_min_tokens_mask(model: ServedModel) -> None:
    sampling = read(model, stop_token_ids=[300, 7], min_tokens=3)
    assert sampling["params"].stop_token_ids == (IM_END, 7, 300)
    assert sampling["eos_token_ids"] == {IM_END}
    assert sampling["stop_token_ids"] == {7, 300}
    ignoring = read(model, stop_token_ids=[300], ignore_eos=True)
    assert ignoring["params"].stop_token_ids == (300,)
    assert ignoring["eos_token_ids"] == frozenset()


async def test_a_priority_of_0_is_what_every_request_has(model: ServedModel) -> None:
    assert read(model, priority=0)["priority"] == read(model, priority=None)["priority"] == 0


async def test_seeds_are_taken_mod_two_to_the_64(model: ServedModel) -> None:
    assert read(model, seed=-1)["params"].seed == 2**64 - 1
    assert read(model, seed=2**64 - 1)["params"].seed == 2**64 - 1
    assert read(model, seed=0)["has_seed"]


async def test_min_tokens_beyond_max_tokens_is_refused(model: ServedModel) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        read(model, max_tokens=3, min_tokens=4)
    assert raised.value.field == "min_tokens"


async def test_one_stop_string_may_stand_alone(model: ServedModel) -> None:
    assert read(model, stop="x")["stop"].strings == ("x",)
    assert read(model, stop=[])["stop"].strings == ()
    assert read(model, logit_bias={"5": -100, "7": 1})["params"].logit_bias == ((5, -100), (7, 1))
