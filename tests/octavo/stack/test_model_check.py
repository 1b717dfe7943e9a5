from __future__ import annotations

import json
from pathlib import Path

import pytest

from common.errors import ConfigError, ModelError
from executor_service.config import ExecutorConfig
from executor_service.models.source import SMOLLM2_ALIAS
from octavo.__main__ import main
from octavo.stack.model_check import require_model


def _folder(path: Path, text: str) -> str:
    (path / "config.json").write_text(text)
    return str(path)


def test_a_length_beyond_the_models_is_told_with_both_numbers(tmp_path: Path) -> None:
    folder = _folder(tmp_path, json.dumps({"max_position_embeddings": 2048}))
    for model, limit in ((folder, 2048), (SMOLLM2_ALIAS, 8192)):
        require_model(ExecutorConfig(model=model, max_model_len=limit))
        with pytest.raises(ConfigError, match=f"--max-model-len {limit + 1}.*{limit} tokens"):
            require_model(ExecutorConfig(model=model, max_model_len=limit + 1))


def test_what_only_an_executor_can_tell_is_left_to_it(tmp_path: Path) -> None:
    require_model(ExecutorConfig(model="someone/some-model", max_model_len=10**6))
    require_model(ExecutorConfig(model=_folder(tmp_path, "{}"), max_model_len=10**6))
    require_model(ExecutorConfig(model=_folder(tmp_path, "no JSON")))  # and no length to compare


def test_a_config_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json"):
        require_model(ExecutorConfig(model=_folder(tmp_path, "[]"), max_model_len=10))


@pytest.mark.parametrize(
    ("flags", "status", "told"),
    [
        (["--model=nosuchmodel"], 1, "--model nosuchmodel: neither a path here nor a hub name"),
        (["--model=./absent"], 1, "--model ./absent: no such file"),
        (["--max-model-len=1000000"], 2, "--max-model-len 1000000 is beyond"),
    ],
)
def test_octavo_up_starts_nothing_for_a_wrong_model(
    flags: list[str],
    status: int,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def started(*_: object) -> None:
        raise AssertionError("a service was started")

    monkeypatch.setattr("octavo.commands.up.serve", started)
    monkeypatch.setattr("octavo.commands.server.running_stack", started)
    assert main(["up", "--port=0", "--grpc-port=0", *flags]) == status
    assert told in capsys.readouterr().err
    if flags[0].startswith("--model="):
        assert main(["generate", "p", *flags]) == status
        assert told in capsys.readouterr().err
