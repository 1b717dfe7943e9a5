from __future__ import annotations

import io
import socket

import grpc
import pytest

from common.errors import NotFoundError
from octavo.__main__ import main
from tests.support.fake_inference import Break, FakeInference, answer, serve_in_thread

TEXT = "".join(f"<{token}>" for token in answer(4))


def test_the_answer_is_all_of_stdout_and_the_timing_goes_to_stderr(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with serve_in_thread(FakeInference()) as address:
        assert main(["generate", "p", "--server", address]) == 0
    out, err = capsys.readouterr()
    assert out == TEXT + "\n"
    assert "TTFT" in err
    assert "4 tokens" in err


def test_flags_become_options_and_those_left_out_are_not_sent() -> None:
    fake = FakeInference()
    flags = ["--temperature=0.5", "--stop=a,b", "--stop=c", "--seed=9", "--ignore-eos"]
    with serve_in_thread(fake) as address:
        assert main(["generate", "p", "--server", address, *flags]) == 0
    sampling = fake.requests[0].sampling
    assert (sampling.temperature, sampling.seed, sampling.ignore_eos) == (0.5, 9, True)
    assert list(sampling.stop) == ["a,b", "c"]
    assert not sampling.HasField("top_p")


@pytest.mark.parametrize("command", ["generate", "chat"])
def test_a_model_that_is_named_is_asked_for_and_no_other_is_named(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeInference()
    prompt = ["p"] if command == "generate" else []
    with serve_in_thread(fake) as address:
        for flags in (["--model=mine"], []):
            monkeypatch.setattr("sys.stdin", io.StringIO("p\n"))
            assert main([command, *prompt, "--server", address, *flags]) == 0
    assert [request.model for request in fake.requests] == ["mine", ""]


def test_a_model_that_is_not_served_is_told_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    refusal = Break(after_messages=0, error=NotFoundError("the model 'x' is not served here"))
    with serve_in_thread(FakeInference(breaks=[refusal])) as address:
        assert main(["generate", "p", "--server", address, "--model=x"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "octavo generate: the model 'x' is not served here"
    ]


def test_chat_makes_the_prompt_a_users_message_and_a_dash_reads_stdin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = FakeInference()
    monkeypatch.setattr("sys.stdin", io.StringIO("from stdin"))
    with serve_in_thread(fake) as address:
        assert main(["generate", "--chat", "-", "--server", address]) == 0
    (message,) = fake.requests[0].messages.messages
    assert (message.role, message.content) == ("user", "from stdin")


def test_a_broken_stream_does_not_show(capsys: pytest.CaptureFixture[str]) -> None:
    with serve_in_thread(FakeInference(breaks=[Break(after_messages=2)])) as address:
        assert main(["generate", "p", "--server", address]) == 0
    assert capsys.readouterr().out == TEXT + "\n"


def test_where_nothing_answers_the_flag_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["generate", "p", "--server", address]) == 1
    assert f"--server {address}: nothing answers gRPC there" in (told := capsys.readouterr().err)
    assert "--grpc-port" in told


def test_a_missing_key_is_told_by_its_flag(capsys: pytest.CaptureFixture[str]) -> None:
    refusal = Break(after_messages=0, code=grpc.StatusCode.UNAUTHENTICATED)
    with serve_in_thread(FakeInference(breaks=[refusal])) as address:
        assert main(["generate", "p", "--server", address]) == 1
    assert "--api-key" in capsys.readouterr().err
