"""The small files that travel to the scheduler, which has no model directory of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from common.errors import ModelError
from executor_service.models.gguf_fields import field, token_id
from executor_service.models.gguf_file import GGUFFile
from executor_service.models.gguf_tokenizer import tokenizer_json

_ENDS = ("eos", "eot", "eom")
_TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>")


def gguf_files(file: GGUFFile, hf_config: dict[str, Any]) -> dict[str, bytes]:
    files = {
        "tokenizer.json": tokenizer_json(file.fields),
        "config.json": _to_json(hf_config),
        "generation_config.json": _to_json(_generation_config(file.fields)),
    }
    template = file.fields.get("tokenizer.chat_template")
    if template:
        files["chat_template.jinja"] = template.encode()
    return files


def directory_files(path: Path) -> dict[str, bytes]:
    """Of a HF directory. Raises ModelError if it has no tokenizer.json."""
    names = ("tokenizer.json", "config.json", "generation_config.json", "chat_template.jinja")
    files = {name: (path / name).read_bytes() for name in names if (path / name).is_file()}
    if "tokenizer.json" not in files:
        raise ModelError(f"{path} has no tokenizer.json; other tokenizers are not supported")
    if "chat_template.jinja" not in files:
        template = _template_in_config(path / "tokenizer_config.json")
        if template:
            files["chat_template.jinja"] = template.encode()
    if "generation_config.json" not in files:
        files["generation_config.json"] = _ends_of(files["config.json"])
    return files


def _generation_config(fields: dict[str, Any]) -> dict[str, Any]:
    """BOS, and every id that ends an answer.

    Those are what the file names as ends, and the end of a turn that its chat template writes:
    some files name only the end of a text as EOS, and a chat would run on.
    """
    ends = [found for name in _ENDS if (found := token_id(fields, name)) is not None]
    template = fields.get("tokenizer.chat_template", "")
    tokens = field(fields, "tokens")
    ends += [tokens.index(end) for end in _TURN_ENDS if end in template and end in tokens]
    config: dict[str, Any] = {"eos_token_id": sorted(set(ends))}
    if (bos := token_id(fields, "bos")) is not None:
        config["bos_token_id"] = bos
    return config


def _template_in_config(path: Path) -> str | None:
    """tokenizer_config.json holds one template, or a list of named ones."""
    if not path.is_file():
        return None
    try:
        template = json.loads(path.read_text()).get("chat_template")
    except (ValueError, AttributeError) as error:
        raise ModelError(f"cannot read {path}: {error}") from error
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template}
        template = named.get("default")
    return template if isinstance(template, str) else None


def _ends_of(config_json: bytes) -> bytes:
    config = json.loads(config_json)
    names = ("bos_token_id", "eos_token_id")
    return _to_json({name: config[name] for name in names if config.get(name) is not None})


def _to_json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, indent=2, sort_keys=True).encode()
