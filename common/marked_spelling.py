"""How a tokenizer.json holds two ids with one text: its vocabulary is a map from spellings.

One id is spelled as its text; each other one has a mark after it with a number of its own, which
are no part of the text. All are noncharacters of Unicode, which texts to be exchanged do not have.
"""

import re

_MARK = "\ufdd0\ufdd0"
"""Twice, as a vocabulary may have each character by itself."""
_DIGITS = [chr(0xFDE0 + digit) for digit in range(16)]
MARKING = f"{_MARK}[{_DIGITS[0]}-{_DIGITS[-1]}]+"
"""A regular expression of what stands after the text."""
_MARKING_AT_END = re.compile(rf"{MARKING}\Z")


def marked(text: str, ordinal: int) -> str:
    """The spelling of one more id of the text."""
    return text + _MARK + "".join(_DIGITS[int(digit, 16)] for digit in f"{ordinal:x}")


def unmarked(spelling: str) -> str:
    """The text of a token that is spelled so."""
    return _MARKING_AT_END.sub("", spelling)
