"""Output of peers on a shared screen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.cli.console.legible import legible


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("plain", "plain"),
        ("1/3\r2/3\r3/3", "3/3"),
        ("dos\r\n", "dos"),
        ("\x1b[1;31mred\x1b[0m and \x1b[2Jcleared", "red and cleared"),
        ("\x1b]0;title\x07text", "text"),
        ("bell\x07 back\x08", "bell back"),
        ("a\tb", "a       b"),
    ],
)
def test_a_line_stands_as_it_would_in_the_end(printed: str, shown: str) -> None:
    assert legible(printed, encoding="utf-8") == shown


@given(st.text())
def test_nothing_moves_the_cursor_or_breaks_the_encoding(text: str) -> None:
    shown = legible(text, encoding="latin-1")
    shown.encode("latin-1")
    assert not set(shown) & {"\x1b", "\r", "\n", "\b", "\x9b"}
