"""A spelling of its own for each id of a vocabulary in which texts repeat.

One id keeps the text as it is, and is what a prompt's text becomes: the one that the file names
("bos_token_id", ...), or else the last, as in transformers. (llama.cpp refuses such vocabularies.)
The others are marked, and decoding takes the marks away.

    id        0      1     2      3
    text      <unk>  <s>   a      a
    spelling  <unk>  <s>   a##1   a       where ## is the mark
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tokenizers import Regex, decoders

from common.marked_spelling import MARKING, marked


def distinct_spellings(texts: Sequence[str], named: Iterable[int]) -> list[str]:
    """By id. `named` are ids that keep their texts."""
    owners = {text: token_id for token_id, text in enumerate(texts)}
    owners |= {texts[token_id]: token_id for token_id in named}
    repeats: Counter[str] = Counter()
    spellings = []
    for token_id, text in enumerate(texts):
        is_owner = owners[text] == token_id
        repeats[text] += not is_owner
        spellings.append(text if is_owner else marked(text, repeats[text]))
    return spellings


def unmarking() -> decoders.Decoder:
    """The step of decoding that takes the marks away."""
    return decoders.Replace(Regex(rf"{MARKING}\z"), "")
