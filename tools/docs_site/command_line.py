"""The page about the command line, with the ``--help`` text of every command."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Callable, Iterator, Sequence
from unittest.mock import patch

from kungfu.cli import main as kungfu
from kungfu.cli import run as kungfu_run

__all__ = ["commands", "page"]

HEAD = """# The command line

The `--help` text of each command, generated when this site is built. [Commands](commands.md) explains how to control a
job.
"""
LETTERS = "100"  # columns of a line


def page() -> str:
    """The page in Markdown."""
    parts = [HEAD, _section("kungfu-run", kungfu_run.main, []), _section("kungfu", kungfu.main, [])]
    return "\n".join([*parts, *(_section(f"kungfu {name}", kungfu.main, name.split()) for name in commands())])


def commands(words: Sequence[str] = ()) -> Iterator[str]:
    """The names of kungfu's commands, read from its help, each before its sub-commands."""
    listed = _help(kungfu.main, [*words]).partition("\ncommands:\n")[2]
    for name in re.findall(r"^    ([a-z][a-z-]*)(?: |$)", listed, re.MULTILINE):
        yield " ".join([*words, name])
        yield from commands([*words, name])


def _section(title: str, program: Callable[[Sequence[str]], int], words: list[str]) -> str:
    return f"## {title}\n\n```text\n{_help(program, words).rstrip()}\n```\n"


def _help(program: Callable[[Sequence[str]], int], words: list[str]) -> str:
    said = io.StringIO()
    width = patch.dict(os.environ, {"COLUMNS": LETTERS})
    with width, contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        program([*words, "--help"])
    return said.getvalue()
