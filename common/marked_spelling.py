"""How a tokenizer.json holds two ids with one text: its vocabulary is a map from spellings.

One id is spelled as its text; each other one has marks after it, which are no part of the text.
"""

MARK = "\ufdd0\ufdd0"
"""A noncharacter of Unicode, which texts to be exchanged do not have; twice, as a vocabulary may
have each character by itself."""


def unmarked(spelling: str) -> str:
    """The text of a token that is spelled so."""
    while spelling.endswith(MARK):
        spelling = spelling.removesuffix(MARK)
    return spelling
