"""JSON files of a model, such as its config.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from common.errors import ModelError


def read_json_object(path: Path) -> dict[str, Any]:
    """Raises ModelError if there is no such file or it holds anything else."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} is not a JSON object")
    return value
