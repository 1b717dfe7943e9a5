"""What can be told of a model at once is told before anything is started for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from common.errors import ConfigError
from executor_service.config import ExecutorConfig
from executor_service.models.json_file import read_json_object
from executor_service.models.source import find_here


def require_model(config: ExecutorConfig) -> None:
    """Raises for a model that is not here and no hub's, or that is shorter than --max-model-len.

    A device may have a lower limit, and a hub's model is not looked into: executors say those.
    """
    path = find_here(config.model)
    if path is None or config.max_model_len is None:
        return
    limit = _hf_config(path).get("max_position_embeddings")
    if isinstance(limit, int) and config.max_model_len > limit:
        raise ConfigError(
            f"--max-model-len {config.max_model_len} is beyond the model's limit of {limit} tokens"
        )


def _hf_config(path: Path) -> dict[str, Any]:
    if path.is_dir():
        return read_json_object(path / "config.json")
    # Imported here: numpy takes a while, and few starts come by.
    from executor_service.models.gguf_config import hf_config
    from executor_service.models.gguf_file import GGUFFile

    return hf_config(GGUFFile(path))
