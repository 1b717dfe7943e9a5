"""What a stream tells, joined, is what the answer that is not streamed tells, and nothing is lost.

Tokens are scripted. C numbers name acceptance cases.
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from scheduler_service.api.tokenizer import Tokenizer
from tests.scheduler_service.api.conftest import Script
from tests.scheduler_service.api.http.events import error_of, events_of
from tests.support.fake_engine_connection import FakeEngineConnection
from tests.support.smol_files import IM_END, VOCAB_SIZE

URL = "/v1/completions"
REPLACEMENT = "\ufffd"
WHITE = "red, green, blue, black, white, pink,"
UP_TO_WHITE = "red, green, blue, black, "


class Asked:
    """One request, streamed and not, checked to be the same."""

    def __init__(self, whole: dict[str, Any], chunks: list[dict[str, Any]]) -> None:
        (self.choice,) = whole["choices"]
        self.usage = whole["usage"]
        self.choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
        self.deltas = [choice["text"] for choice in self.choices]
        ends = [choice for choice in self.choices if choice["finish_reason"]]
        assert ends == self.choices[-1:], "one end, with the last news"
        for name in ("finish_reason", "stop_reason"):
            assert ends[0][name] == self.choice[name]
        assert "".join(self.deltas) == self.choice["text"]
        assert chunks[-1]["usage"] == self.usage
        assert self.ids == self.choice["token_ids"]
        assert len(self.ids) == self.usage["completion_tokens"]

    @property
    def text(self) -> str:
        return str(self.choice["text"])

    @property
    def ids(self) -> list[int]:
        return [token_id for choice in self.choices for token_id in choice["token_ids"]]

    @property
    def end(self) -> tuple[str, Any]:
        return self.choice["finish_reason"], self.choice["stop_reason"]


async def ask(client: httpx.AsyncClient, **fields: Any) -> Asked:
    body = {"prompt": "Hello", "max_tokens": 400, "return_token_ids": True} | fields
    whole = await client.post(URL, json=body)
    assert whole.status_code == 200, whole.text
    streaming = {"stream": True, "stream_options": {"include_usage": True}}
    return Asked(whole.json(), events_of(await client.post(URL, json=body | streaming)))


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer._encode([text], add_special_tokens=False)[0]


SPLIT_CHARACTERS = {
    "emoji over several tokens": "a 😀 b 🗼🫠",
    "a family joined by ZWJ": "family 👨‍👩‍👧‍👦 and flag 🏴󠁧󠁢󠁳󠁣󠁴󠁿.",
    "korean": "한국어 텍스트는 음절이 빠지면 안 됩니다",
    "chinese": "中文字符不能丢失，标点也一样。𠮷",
}


@pytest.mark.parametrize("tokens_per_update", [1, 3])
@pytest.mark.parametrize("text", SPLIT_CHARACTERS.values(), ids=list(SPLIT_CHARACTERS))
async def test_c38_characters_come_whole(
    client: httpx.AsyncClient,
    script: Script,
    connection: FakeEngineConnection,
    tokenizer: Tokenizer,
    text: str,
    tokens_per_update: int,
) -> None:
    ids = script.say(text, then=[IM_END])
    assert any(
        REPLACEMENT in tokenizer.decode([token_id], skip_special_tokens=True) for token_id in ids
    ), "no character is split over tokens"
    connection._tokens_per_update = tokens_per_update
    asked = await ask(client)
    assert asked.text == tokenizer.decode(ids, skip_special_tokens=True) == text
    assert REPLACEMENT not in asked.text
    assert not any(REPLACEMENT in delta for delta in asked.deltas)


async def test_c38_an_answer_cut_inside_a_character_shows_what_it_has(
    client: httpx.AsyncClient, script: Script, tokenizer: Tokenizer
) -> None:
    ids = script.say("tower 😀")
    for count in range(1, len(ids) + 1):
        asked = await ask(client, max_tokens=count)
        assert asked.ids == ids[:count]
        assert asked.text == tokenizer.decode(ids[:count], skip_special_tokens=True)
        assert REPLACEMENT not in "".join(asked.deltas[:-1])
    assert asked.text == "tower 😀"


async def test_c38_a_lone_invalid_byte_stalls_the_stream_by_one_character_at_most(
    client: httpx.AsyncClient, script: Script, tokenizer: Tokenizer
) -> None:
    lead = next(i for i in range(17, 260) if tokenizer.token_bytes(i) == b"\xf0")
    ids = [*encode(tokenizer, "one"), lead, *encode(tokenizer, " two three")]
    script.say_ids([*ids, IM_END])
    asked = await ask(client)
    assert asked.text == tokenizer.decode(ids, skip_special_tokens=True)
    assert asked.text == f"one{REPLACEMENT} two three"
    assert asked.deltas[:4] == ["one", "", f"{REPLACEMENT} two", " three"]


@pytest.mark.parametrize("then", [[IM_END], []], ids=["EOS", "max_tokens"])
@pytest.mark.parametrize(
    ("text", "stop"), [("EINS ZWEI DREI", ["DREI\nXXXX"]), ("<", ["<|end|>", "</s>"])]
)
async def test_c40_text_held_for_a_stop_string_comes_at_any_other_end(
    client: httpx.AsyncClient,
    script: Script,
    connection: FakeEngineConnection,
    text: str,
    stop: list[str],
    then: list[int],
) -> None:
    ids = script.say(text, then=then)
    asked = await ask(client, stop=stop, max_tokens=400 if then else len(ids))
    assert asked.text == text
    assert asked.end == ("stop" if then else "length", None)
    assert connection.finishes == []


@pytest.mark.parametrize("num_overrun", [0, 1, 2, 4])
@pytest.mark.parametrize("tokens_per_update", [1, 4])
async def test_c41_what_overruns_a_stop_string_shows_nowhere(
    client: httpx.AsyncClient,
    script: Script,
    connection: FakeEngineConnection,
    tokenizer: Tokenizer,
    num_overrun: int,
    tokens_per_update: int,
) -> None:
    ids = script.say(WHITE, then=[IM_END, 4, 4])
    kept = encode(tokenizer, UP_TO_WHITE.rstrip() + " white")
    assert ids[: len(kept)] == kept
    connection._tokens_per_update = tokens_per_update
    for _ in range(2):  # the fake forgets its orders after the first request
        connection._num_overrun = num_overrun
        asked = await ask(client, stop=["white"], logprobs=1)
    assert asked.text == UP_TO_WHITE
    assert asked.ids == kept
    assert asked.end == ("stop", "white")
    assert asked.usage["completion_tokens"] == len(kept)
    logprobs = asked.choice["logprobs"]
    assert {len(values) for values in logprobs.values()} == {len(kept)}
    streamed = [token for choice in asked.choices for token in choice["logprobs"]["tokens"]]
    assert streamed == logprobs["tokens"]
    # The loop is told where to rewind to, once per request.
    assert {finish[1:] for finish in connection.finishes} == {(0, len(kept))}
    assert len(connection.finishes) == 4


LEADING_SPACES = [
    "   three",
    "  two",
    " one",
    "    .",
    "a    . b",
    "\n\n  x",
    "<file_sep> x <file_sep>",
]


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("text", LEADING_SPACES)
async def test_c46_spaces_and_special_tokens_come_as_in_the_one_shot_decode(
    client: httpx.AsyncClient, script: Script, tokenizer: Tokenizer, text: str, *, skip: bool
) -> None:
    ids = script.say(text)
    asked = await ask(client, max_tokens=len(ids), skip_special_tokens=skip)
    assert asked.text == tokenizer.decode(ids, skip_special_tokens=skip)
    assert ("<file_sep>" in asked.text) == ("<file_sep>" in text and not skip)
    assert asked.text.startswith(text[: len(text) - len(text.lstrip())])


ORDINARY, SPECIAL = 302, 5


@pytest.mark.parametrize("include", [True, False])
@pytest.mark.parametrize("stop_id", [ORDINARY, SPECIAL])
async def test_c47_a_stop_token_cuts_its_own_text_and_is_the_stop_reason(
    client: httpx.AsyncClient,
    script: Script,
    tokenizer: Tokenizer,
    stop_id: int,
    *,
    include: bool,
) -> None:
    before = [300, 301, 300, 303, 304]
    script.say_ids([*before, stop_id, 305, 306])
    for skip in (True, False):
        asked = await ask(
            client,
            stop_token_ids=[stop_id],
            min_tokens=4,
            ignore_eos=True,
            include_stop_str_in_output=include,
            skip_special_tokens=skip,
        )
        shown = [*before, stop_id] if include else before
        assert asked.text == tokenizer.decode(shown, skip_special_tokens=skip)
        assert asked.ids == [*before, stop_id]
        assert asked.end == ("stop", stop_id)


async def test_c47_eos_is_no_stop_reason_unless_it_is_listed(
    client: httpx.AsyncClient, script: Script
) -> None:
    script.say_ids([300, 301, IM_END, 303])
    assert (await ask(client)).end == ("stop", None)
    assert (await ask(client, stop_token_ids=[303])).end == ("stop", None)
    assert (await ask(client, stop_token_ids=[303], ignore_eos=True)).end == ("stop", 303)
    assert (await ask(client, stop_token_ids=[IM_END], ignore_eos=True)).end == ("stop", IM_END)


@pytest.mark.parametrize("field", ["stop_token_ids", "allowed_token_ids", "bad_words"])
async def test_c55_ids_beyond_the_vocabulary_are_refused_by_field(
    client: httpx.AsyncClient, connection: FakeEngineConnection, field: str
) -> None:
    for value in ([VOCAB_SIZE + 5, 2**31 - 1, -1], [VOCAB_SIZE], [-1], [[VOCAB_SIZE + 5]]):
        for streamed in (False, True):
            body = {"prompt": "Hello", "min_tokens": 4, "stream": streamed, field: value}
            response = await client.post(URL, json=body)
            assert response.status_code == 400
            assert error_of(response)["type"] == "invalid_request_error"
            assert error_of(response)["param"] == field
    assert connection.submits == []
