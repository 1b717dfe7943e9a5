from __future__ import annotations

import subprocess
import sys

import pytest

from common.version import VERSION
from octavo.__main__ import COMMANDS, main
from tests.support.fake_inference import FakeInference, serve_in_thread

REQUIRED = {"generate": ["a prompt"]}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([command, "--help"])
    assert end.value.code == 0
    assert f"octavo {command}" in capsys.readouterr().out


def test_an_unknown_command_is_status_2_and_lists_the_known(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["serve"]) == 2
    assert "generate" in capsys.readouterr().err


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"octavo {VERSION}\n"


def test_a_wrong_flag_is_status_2_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up", "--max-num-seqs=none"]) == 2
    assert "--max-num-seqs" in capsys.readouterr().err


@pytest.mark.parametrize("command", COMMANDS)
def test_a_misspelt_flag_is_one_line_that_knows_a_better_one(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, *REQUIRED.get(command, []), "--hepl"]) == 2
    errors = capsys.readouterr().err
    assert errors.count("\n") == 1
    assert "--hepl; did you mean --help?" in errors


def test_a_flag_that_exists_is_not_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--num-requests", "0"]) == 2
    assert "did you mean" not in (told := capsys.readouterr().err)
    assert "--num-requests" in told


def test_a_flag_that_is_like_no_other_gets_no_suggestion(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["up", "--bogus"]) == 2
    assert "did you mean" not in (told := capsys.readouterr().err)
    assert "--bogus" in told


def test_an_error_of_the_server_is_status_1_and_names_the_field(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with serve_in_thread(FakeInference()) as address:
        assert main(["generate", "p", "--server", address, "--max-tokens=-1"]) == 1
    assert "max_tokens" in capsys.readouterr().err


def test_the_client_library_imports_no_service() -> None:
    code = (
        "import sys, octavo\n"
        "rooms = ('scheduler_service', 'executor_service', 'torch', 'rich', 'octavo.stack')\n"
        "assert not [name for name in sys.modules if name.startswith(rooms)]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
