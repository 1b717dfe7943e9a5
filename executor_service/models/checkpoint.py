"""An opened model: config, weights, and the files a scheduler needs to speak for it."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from pathlib import Path

from executor_service.models.config import ModelConfig, from_hf
from executor_service.models.gguf_config import hf_config
from executor_service.models.gguf_file import GGUFFile
from executor_service.models.gguf_source import GGUFSource
from executor_service.models.json_file import read_json_object
from executor_service.models.model_files import directory_files, gguf_files
from executor_service.models.safetensors_source import SafetensorsSource
from executor_service.models.weights import WeightSource

_SAMPLE_BYTES = 1 << 20
"""Read from each end of a weight file for the fingerprint: names, shapes and some values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    config: ModelConfig
    weights: WeightSource
    files: dict[str, bytes]
    """tokenizer.json, chat_template.jinja, generation_config.json, config.json"""
    fingerprint: str
    """Equal for equal models; differs if weights, config or tokenizer differ."""


def open_checkpoint(path: Path) -> Checkpoint:
    """`path` is a GGUF file or a HF directory. Raises ModelError."""
    return _open_directory(path) if path.is_dir() else _open_gguf(path)


def _open_gguf(path: Path) -> Checkpoint:
    file = GGUFFile(path)
    hf = hf_config(file)
    config = from_hf(hf)
    heads = {"attn_q": config.num_heads, "attn_k": config.num_kv_heads}
    files = gguf_files(file, hf)
    source = GGUFSource(file, heads)
    divisors = source.rope_divisors()
    if divisors:
        config = dataclasses.replace(
            config, rope=dataclasses.replace(config.rope, divisors=divisors)
        )
    return Checkpoint(
        config=config, weights=source, files=files, fingerprint=_fingerprint([path], files)
    )


def _open_directory(path: Path) -> Checkpoint:
    hf = read_json_object(path / "config.json")
    config = from_hf(hf)
    source = SafetensorsSource(path)
    files = directory_files(path)
    fingerprint = _fingerprint(source.paths, files)
    return Checkpoint(config=config, weights=source, files=files, fingerprint=fingerprint)


def _fingerprint(paths: list[Path], files: dict[str, bytes]) -> str:
    """Over both ends of each weight file and all of the small ones; never whole weights."""
    digest = hashlib.sha256()
    for path in paths:
        size = path.stat().st_size
        digest.update(f"{size}\n".encode())
        with path.open("rb") as stream:
            digest.update(stream.read(_SAMPLE_BYTES))
            stream.seek(max(0, size - _SAMPLE_BYTES))
            digest.update(stream.read(_SAMPLE_BYTES))
    for name, data in sorted(files.items()):
        digest.update(f"{name} {len(data)}\n".encode() + data)
    return digest.hexdigest()
