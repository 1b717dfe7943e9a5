"""What kinds of weights and pools cost in quality: `python -m tests.bench.quality`.

`texts` are read by the model in each kind and by the float32 model of the same file; what differs
is the next token's distribution. Prints the table of `docs/quality.md`. Figures of two runs compare
only over the same texts, so those are not edited.

NLL: mean negative log likelihood of the text, in nats. KL: mean divergence from the float32 model's
distribution. Top-1: how often the most likely token is the same.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from executor_service.config import ExecutorConfig
from executor_service.kernels.native.backend import NativeBackend
from executor_service.kernels.native.library import load
from executor_service.models.checkpoint import Checkpoint, open_checkpoint
from executor_service.models.source import locate
from executor_service.runner.weight_choice import weight_rules
from tests.support.paged_model import PagedModel

_FOLDER = Path(__file__).parent / "texts"
TEXTS = tuple(_FOLDER / f"{name}.txt" for name in ("prose", "dialogue", "handbook", "code"))
"""A story; a talk; lists, tables and numbers; Python."""
_CHUNK = 128
EXACT = ExecutorConfig(dtype="float32", kv_cache_dtype="float32")
_AS_STORED = ExecutorConfig(kv_cache_dtype="float32")
VARIANTS = {
    "`--quantization auto` (as stored)": _AS_STORED,
    **{
        f"`--quantization {kind}`": dataclasses.replace(_AS_STORED, quantization=kind)
        for kind in ("int8", "q8_0", "q6_k", "q4_k", "q4_1", "q4_0")
    },
    **{
        f"`--kv-cache-dtype {dtype}`": dataclasses.replace(EXACT, kv_cache_dtype=dtype)
        for dtype in ("bfloat16", "float16", "int8")
    },
    "defaults: as stored, KV in bfloat16": ExecutorConfig(),
    "int8 weights, int8 KV": ExecutorConfig(quantization="int8", kv_cache_dtype="int8"),
}
"""By their rows' labels in `docs/quality.md`."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    nll: float
    kl: float
    agreement: float


def texts(checkpoint: Checkpoint, length: int) -> list[list[int]]:
    """The first `length` tokens of each text."""
    tokenizer = Tokenizer.from_str(checkpoint.files["tokenizer.json"].decode())
    pieces = [tokenizer.encode(path.read_text()).ids[:length] for path in TEXTS]
    assert all(len(piece) == length for piece in pieces), "a text has fewer tokens"
    return pieces


class Subject:
    """The model in one variant."""

    def __init__(self, checkpoint: Checkpoint, config: ExecutorConfig, max_len: int) -> None:
        rules = weight_rules(config)
        dtype = config.kv_cache_dtype
        kv_dtype = None if dtype == "auto" else getattr(torch, dtype)
        backend = NativeBackend(
            load(), num_threads=torch.get_num_threads(), weight_rules=rules, kv_dtype=kv_dtype
        )
        self._model = PagedModel(checkpoint, backend, max_len=max_len)
        self.weights = backend.weights_dtype()
        self.num_bytes = self._model.model.num_bytes

    def distributions(self, tokens: Sequence[int]) -> Iterator[Tensor]:
        """Log probabilities after each token, a chunk at a time."""
        for start in range(0, len(tokens), _CHUNK):
            (logits,) = self._model.step([(0, start, tokens[start : start + _CHUNK])])
            yield logits.log_softmax(dim=1)


def compare(
    subject: Subject, exact: Sequence[Sequence[Tensor]], pieces: Sequence[Sequence[int]]
) -> Quality:
    """`exact` are the float32 model's distributions over each piece."""
    nll = kl = agreement = 0.0
    total = 0
    for tokens, wanted in zip(pieces, exact, strict=True):
        following = torch.tensor(tokens[1:])
        done = 0
        for found, expected in zip(subject.distributions(tokens), wanted, strict=True):
            target = following[done : done + len(found)]
            done += len(found)
            count = len(target)
            nll -= found[range(count), target].double().sum().item()
            divergence = (expected.exp() * (expected - found)).double().sum(dim=1)
            kl += divergence[:count].sum().item()
            same = found.argmax(dim=1) == expected.argmax(dim=1)
            agreement += same[:count].sum().item()
            total += count
    return Quality(nll=nll / total, kl=kl / total, agreement=agreement / total)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, default=640, help=f"of each of {len(TEXTS)} texts")
    parser.add_argument("--rows", default="", help="only those whose label contains this")
    flags = parser.parse_args()
    checkpoint = open_checkpoint(locate(flags.model, None))
    pieces = texts(checkpoint, flags.tokens)
    reference = Subject(checkpoint, EXACT, flags.tokens)
    exact = [list(reference.distributions(tokens)) for tokens in pieces]
    own = compare(reference, exact, pieces)
    print(f"{len(pieces) * (flags.tokens - 1)} tokens of {', '.join(p.name for p in TEXTS)}\n")
    print("| variant | packed as | MiB | NLL | KL | top-1 |\n|---|---|---|---|---|---|")
    size = reference.num_bytes >> 20
    print(f"| float32 | {reference.weights} | {size} | {own.nll:.4f} | 0 | 1 |", flush=True)
    for name, config in VARIANTS.items():
        if flags.rows not in name:
            continue
        subject = Subject(checkpoint, config, flags.tokens)
        found = compare(subject, exact, pieces)
        print(
            f"| {name} | {subject.weights} | {subject.num_bytes >> 20} | {found.nll:.4f} |"
            f" {found.kl:.2g} | {found.agreement:.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    with torch.inference_mode():
        main()
