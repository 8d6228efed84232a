"""An extension of griffe that turns examples in docstrings into code blocks of the API reference."""

from __future__ import annotations

from typing import Any

import griffe


class DoctestBlocks(griffe.Extension):
    """Puts fences around each run of lines that begins with ``>>>``; Markdown would treat them as quotations."""

    def on_object(self, *, obj: griffe.Object, **others: Any) -> None:
        """Fences the examples of an object's docstring; called once for each loaded object."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """The text with fences around its examples.

    >>> print(fenced("Adds one.\\n\\n>>> 1 + 1\\n2\\n\\nAnd so on."))
    Adds one.
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    <BLANKLINE>
    And so on.
    """
    lines: list[str] = []
    indent: str | None = None  # of the open example
    for line in [*text.splitlines(), ""]:
        if indent is None and line.lstrip().startswith(">>> "):
            indent = line[: len(line) - len(line.lstrip())]
            lines.append(f"{indent}```pycon")
        elif indent is not None and not line.strip():
            lines.append(f"{indent}```")
            indent = None
        lines.append(line)
    return "\n".join(lines[:-1])
