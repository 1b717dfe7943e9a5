from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.scheduler_service.api.http.events import error_of
from tests.support.smol_files import VOCAB_SIZE

TEXT = "naïve 🗼 text"


async def test_tokens_there_and_back(client: httpx.AsyncClient) -> None:
    answer = (await client.post("/tokenize", json={"prompt": TEXT})).json()
    assert answer["count"] == len(answer["tokens"])
    assert answer["max_model_len"] == 512
    assert "token_strs" not in answer
    back = (await client.post("/detokenize", json={"tokens": answer["tokens"]})).json()
    assert back == {"prompt": TEXT}


async def test_token_strings_on_demand(client: httpx.AsyncClient) -> None:
    asked = {"prompt": " the", "return_token_strs": True, "model": "smollm2-135m"}
    answer = (await client.post("/tokenize", json=asked)).json()
    assert answer["token_strs"] == ["Ġthe"]


async def test_special_tokens_are_shown_unless_skipped(client: httpx.AsyncClient) -> None:
    asked: dict[str, Any] = {"tokens": [1, 300, 2]}
    assert (await client.post("/detokenize", json=asked)).json()["prompt"] == (
        "<|im_start|>om<|im_end|>"
    )
    asked["skip_special_tokens"] = True
    assert (await client.post("/detokenize", json=asked)).json()["prompt"] == "om"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"prompt": "a", "add_special_tokens": 1}, "add_special_tokens"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": [{"role": "user", "content": "a"}]}, "messages"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "1"}, "tokens"),
        ("/detokenize", {"tokens": [VOCAB_SIZE]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
    ],
)
async def test_a_bad_field_is_named(
    client: httpx.AsyncClient, path: str, body: dict[str, Any], param: str
) -> None:
    response = await client.post(path, json=body)
    assert response.status_code == 400
    assert error_of(response)["param"] == param


async def test_another_model_is_not_found(client: httpx.AsyncClient) -> None:
    for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})):
        assert (await client.post(path, json=body | {"model": "other"})).status_code == 404
