"""Lines that fit a terminal: each line has as many pieces as fit, and no piece is split."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text


def packed(pieces: Sequence[Text], *, width: int, gap: str = " ", indent: str = "") -> Text:
    """Joins pieces into lines without splitting a piece; rich would break a line at any space, even a non-breaking one.

    Args:
        pieces: The pieces; a piece wider than the terminal gets a separate line, which the terminal breaks.
        width: The width of the terminal, in columns.
        gap: The text between two pieces of a line.
        indent: The indent of the lines after the first.

    >>> words = [Text(word) for word in "peers 2  step 41  loss 0.25".split("  ")]
    >>> print(packed(words, width=20, gap="  ", indent="  "))
    peers 2  step 41
      loss 0.25
    """
    lines = [Text()]
    for piece in pieces:
        line = lines[-1]
        if line.cell_len and line.cell_len + len(gap) + piece.cell_len > width:
            lines.append(Text(indent).append_text(piece))
        else:
            line.append(gap if line.cell_len else "").append_text(piece)
    return Text("\n").join(lines)
