"""A peer's output made safe for a screen that it shares with others."""

from __future__ import annotations

import re

__all__ = ["legible"]

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")


def legible(text: str, *, encoding: str) -> str:
    """`text` as it would stand on a line in the end: without what moves the cursor, within `encoding`.

    Of a progress bar that writes over itself the last state stays. Colours go too.

    >>> legible("10%\\r100% done", encoding="utf-8"), legible("\\x1b[31mred\\x1b[0m", encoding="utf-8")
    ('100% done', 'red')
    >>> legible("3 → 4", encoding="ascii")
    '3 ? 4'
    """
    kept = text.rstrip("\r\n").rsplit("\r", 1)[-1]
    bare = _CONTROLS.sub("", _ESCAPES.sub("", kept)).expandtabs()
    return bare.encode(encoding, "replace").decode(encoding)
