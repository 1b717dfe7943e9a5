from __future__ import annotations

import io

import pytest

from common import errors
from octavo.__main__ import main
from tests.support.fake_inference import Break, FakeInference, answer, serve_in_thread

TEXT = "".join(f"<{token}>" for token in answer(4))


def chat(monkeypatch: pytest.MonkeyPatch, fake: FakeInference, typed: str, *flags: str) -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    with serve_in_thread(fake) as address:
        return main(["chat", "--server", address, *flags])


def turns(fake: FakeInference, index: int) -> list[tuple[str, str]]:
    return [(m.role, m.content) for m in fake.requests[index].messages.messages]


def test_each_turn_sends_the_conversation_so_far(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakeInference()
    assert chat(monkeypatch, fake, "one\n\ntwo\n", "--system=be brief") == 0
    assert turns(fake, 0) == [("system", "be brief"), ("user", "one")]
    assert turns(fake, 1) == [*turns(fake, 0), ("assistant", TEXT), ("user", "two")]
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("<")] == [TEXT, TEXT]
    assert sum("TTFT" in line and "tokens/s" in line for line in lines) == 2


def test_reset_forgets_all_but_the_system_message_and_exit_leaves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakeInference()
    assert chat(monkeypatch, fake, "one\n/reset\ntwo\n/exit\nthree\n", "--system=s") == 0
    assert turns(fake, 1) == [("system", "s"), ("user", "two")]
    assert len(fake.requests) == 2


def test_a_refused_turn_leaves_no_trace_in_the_conversation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    too_long = errors.InvalidRequestError("is too long", field="messages")
    fake = FakeInference(breaks=[Break(after_messages=0, error=too_long)])
    assert chat(monkeypatch, fake, "one\ntwo\n") == 0
    assert "messages" in capsys.readouterr().err
    assert turns(fake, 1) == [("user", "two")]


def test_help_is_told_and_quit_leaves_and_neither_goes_to_the_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakeInference()
    assert chat(monkeypatch, fake, "/help\n/quit\none\n") == 0
    assert fake.requests == []
    assert "/reset forgets" in capsys.readouterr().out


@pytest.mark.parametrize("address", ["http://127.0.0.1:8000", "localhost", "localhost:"])
def test_a_server_that_is_no_address_is_told_what_to_give(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["chat", f"--server={address}"]) == 2
    assert "--server" in (told := capsys.readouterr().err)
    assert "host:port" in told
