from __future__ import annotations

import io

import pytest

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
