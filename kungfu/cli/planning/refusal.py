"""What a planning command says of a request that cannot work: one line, however long the value that is wrong."""

from __future__ import annotations

import re

__all__ = ["one_line"]

_LONG = re.compile(r"[^\s'\",;:()]{200,}")
_SHOWN = 40


def one_line(error: Exception) -> str:
    """The error's text in one line, with words of hundreds of characters cut.

    >>> one_line(ValueError("trials is " + 5000 * "9"))
    'trials is 9999999999999999999999999999999999999999... (5000 characters)'
    """
    text = " ".join(str(error).split("\n"))
    return _LONG.sub(lambda word: f"{word[0][:_SHOWN]}... ({len(word[0])} characters)", text)
