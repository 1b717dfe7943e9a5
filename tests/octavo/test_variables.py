"""Misspelt variables are told of once at a start, by whoever starts."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from common.config import variables_of
from common.unknown_variables import told_of_misspelt, told_of_unknown
from executor_service.config import OTHER_VARIABLES, ExecutorConfig
from octavo.__main__ import main
from octavo.stack.config import known_variables
from scheduler_service.config import SchedulerConfig


def test_octavo_up_tells_what_says_nothing_to_any_of_its_parts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("octavo.commands.up.serve", lambda *_: 0)
    for name in known_variables():
        monkeypatch.delenv(name, raising=False)
    for name in ("OCTAVO_THREADS", "OCTAVO_NUM_EXECUTORS", "OCTAVO_API_WORKERS"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("OCTAVO_NATIVE", "avx2")
    assert main(["up", "--port=0", "--grpc-port=0"]) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("OCTAVO_THREAD", "1")
    assert main(["up", "--port=0", "--grpc-port=0"]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert "OCTAVO_THREAD (did you mean OCTAVO_THREADS?)" in line


@pytest.mark.parametrize(
    ("module", "flags"),
    [("scheduler_service", []), ("executor_service", ["--model=./absent", "--port=0"])],
)
def test_a_service_on_its_own_tells_what_is_misspelt(module: str, flags: list[str]) -> None:
    environ = {name: value for name, value in os.environ.items() if "OCTAVO_" not in name}
    done = subprocess.run(
        [sys.executable, "-m", module, *flags],
        env=environ | {"PYTHONPATH": ".", "OCTAVO_MAX_NUM_SEQ": "5"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    told = [line for line in done.stderr.splitlines() if "OCTAVO_MAX_NUM_SEQS?" in line]
    assert len(told) == 1
    assert "WARNING" in told[0]


def test_neither_service_takes_the_others_variables_for_misspelt() -> None:
    executor = variables_of(ExecutorConfig) | OTHER_VARIABLES
    scheduler = variables_of(SchedulerConfig)
    environ = dict.fromkeys(known_variables(), "1")
    assert told_of_misspelt(executor, environ) is None
    assert told_of_misspelt(scheduler, environ) is None


def test_what_up_sets_itself_says_nothing_to_it_and_the_folder_of_models_is_no_mistake() -> None:
    told = told_of_unknown(known_variables(), {"OCTAVO_ROLE": "api", "OCTAVO_MODELS": "models"})
    assert told is not None
    assert "OCTAVO_ROLE" in told
    assert "OCTAVO_MODELS" not in told
