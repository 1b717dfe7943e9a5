"""The model as the API knows it: names, tokenizer, chat template, defaults, limits."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from common.errors import ModelError
from scheduler_service.api.template_process import TemplateProcess
from scheduler_service.api.tokenizer import Tokenizer
from scheduler_service.engine.messages import ModelReady

log = logging.getLogger(__name__)

_DEFAULT_RANGES = {
    "temperature": (0.0, 100.0),
    "top_p": (1e-6, 1.0),
    "top_k": (0, 2**31 - 1),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (1e-3, 1e3),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    name: str
    info: ModelReady
    tokenizer: Tokenizer
    template: TemplateProcess | None
    """None: the model has no chat template."""
    eos_token_ids: frozenset[int]
    sampling_defaults: Mapping[str, float | int]
    """What the model's generation_config says, for requests that do not."""

    @property
    def max_model_len(self) -> int:
        return self.info.max_model_len

    @property
    def vocab_size(self) -> int:
        """Of the model: every id below is an embedding row."""
        return self.info.vocab_size


async def load_served_model(info: ModelReady, served_name: str | None) -> ServedModel:
    """Reads the model's files; ModelError if one of them is unusable."""
    if "tokenizer.json" not in info.files:
        raise ModelError(f"{info.name} comes without a tokenizer.json")
    tokenizer = await asyncio.to_thread(Tokenizer, info.files["tokenizer.json"])
    config = _read_json(info, "config.json")
    generation_config = _read_json(info, "generation_config.json")
    template = None
    if source := info.files.get("chat_template.jinja"):
        template = await TemplateProcess.start(
            source.decode(errors="replace"), _special_tokens(config, tokenizer)
        )
    return ServedModel(
        name=served_name or info.name,
        info=info,
        tokenizer=tokenizer,
        template=template,
        eos_token_ids=_eos_token_ids(generation_config, config, vocab_size=info.vocab_size),
        sampling_defaults=_sampling_defaults(generation_config),
    )


def _read_json(info: ModelReady, name: str) -> dict[str, Any]:
    try:
        content = json.loads(info.files.get(name, b"{}"))
    except ValueError as error:
        raise ModelError(f"{info.name}: {name} is not JSON: {error}") from error
    return content if isinstance(content, dict) else {}


def _eos_token_ids(*configs: Mapping[str, Any], vocab_size: int) -> frozenset[int]:
    """All that any of the files names: a chat ends at its end-of-turn token, a text at its own."""
    found: set[object] = set()
    for config in configs:
        ids = config.get("eos_token_id")
        found.update(ids if isinstance(ids, list) else [ids])
    return frozenset(i for i in found if isinstance(i, int) and 0 <= i < vocab_size)


def _special_tokens(config: Mapping[str, Any], tokenizer: Tokenizer) -> dict[str, str]:
    tokens: dict[str, str] = {}
    for name in ("bos_token", "eos_token", "pad_token"):
        token_id = config.get(f"{name}_id")
        if isinstance(token_id, list):
            token_id = token_id[0] if token_id else None
        if isinstance(token_id, int) and (token := tokenizer.token(token_id)) is not None:
            tokens[name] = token
    return tokens


def _sampling_defaults(generation_config: Mapping[str, Any]) -> dict[str, float | int]:
    defaults: dict[str, float | int] = {}
    for name, (low, high) in _DEFAULT_RANGES.items():
        value = generation_config.get(name)
        if value is None:
            continue
        if isinstance(value, int | float) and math.isfinite(value) and low <= value <= high:
            defaults[name] = value
        else:
            log.warning("generation_config: %s is out of range and ignored", name)
    return defaults
