"""What SentencePiece's BPE does, straight from the scores; and a vocabulary to do it with.

Written for its words, not for speed: each step looks at every pair of neighbours.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

SPACE = "\u2581"
UNKNOWN, BOS, EOS = 0, 1, 2
SPECIAL_TOKENS = ("<unk>", "<s>", "</s>")

_LINES = """\
the quick brown fox jumps over the lazy dog; the dog sleeps on
she sells sea shells on the sea shore, and the shells she sells are sea shells
def f(x):    return x ** 2    # the square of x
for (int i = 0; i < 100; ++i) { total += values[i]; }
Straße Größe über Köln, où ça où ça, naïve façade
это не то, что это было; это было это
2023 2024 2025 1000 10000 3.14159 aaaaaaaa ========== --------
        eight spaces    four spaces  two spaces
"""


def encode(fields: dict[str, Any], text: str) -> list[int]:
    """Of text without special tokens, so without BOS and EOS."""
    scores = _joined_scores(fields)
    ids = {token: i for i, token in enumerate(fields["tokenizer.ggml.tokens"])}
    if text and fields.get("tokenizer.ggml.add_space_prefix", True):
        text = " " + text
    pieces = list(text.replace(" ", SPACE))
    while True:
        pairs = [first + second for first, second in zip(pieces, pieces[1:], strict=False)]
        best = max((pair for pair in pairs if pair in scores), key=scores.__getitem__, default=None)
        if best is None:
            break
        first_place = pairs.index(best)
        pieces[first_place : first_place + 2] = [best]
    return [i for piece in pieces for i in _ids_of(piece, ids)]


def _joined_scores(fields: dict[str, Any]) -> dict[str, float]:
    names = ("tokens", "scores", "token_type")
    columns = (fields[f"tokenizer.ggml.{name}"] for name in names)
    return {token: score for token, score, kind in zip(*columns, strict=True) if kind == 1}


def _ids_of(piece: str, ids: dict[str, int]) -> list[int]:
    if piece in ids:
        return [ids[piece]]
    return [ids[f"<0x{byte:02X}>"] for byte in piece.encode()]


def trained_fields(num_merges: int = 300) -> dict[str, Any]:
    """A GGUF file's tokenizer fields: Llama 2's layout, trained on a few lines.

    As SentencePiece's trainer does it, the n-th piece that joining makes has the score -n, and
    single characters come last. Runs of spaces are pieces too.
    """
    words = Counter(
        word for line in _LINES.splitlines() for word in line.replace(" ", f" {SPACE}").split()
    )
    runs = [SPACE * length for length in (2, 4, 8, 3)]
    made = runs + _trained(words, num_merges)
    characters = sorted({SPACE, *"".join(words)})
    tokens = [*SPECIAL_TOKENS, *(f"<0x{byte:02X}>" for byte in range(256)), *made, *characters]
    num_learned = len(made) + len(characters)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(i) for i in range(num_learned)],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * num_learned,
        "tokenizer.ggml.bos_token_id": BOS,
        "tokenizer.ggml.eos_token_id": EOS,
        "tokenizer.ggml.unknown_token_id": UNKNOWN,
    }


def _trained(words: Counter[str], num_merges: int) -> list[str]:
    splits = {word: list(word) for word in words}
    made: dict[str, None] = {}
    while len(made) < num_merges:
        counts: Counter[tuple[str, str]] = Counter()
        for word, pieces in splits.items():
            for pair in zip(pieces, pieces[1:], strict=False):
                counts[pair] += words[word]
        if not counts:
            break
        best = min(counts, key=lambda pair: (-counts[pair], pair))
        made["".join(best)] = None
        for pieces in splits.values():
            _join(pieces, best)
    return list(made)


def _join(pieces: list[str], pair: tuple[str, str]) -> None:
    i = 0
    while i + 1 < len(pieces):
        if (pieces[i], pieces[i + 1]) == pair:
            pieces[i : i + 2] = ["".join(pair)]
        i += 1
