"""The console on which the commands print tables."""

from __future__ import annotations

from rich.console import Console


class TableConsole(Console):
    """A console that draws boxes in ASCII if its output is no terminal, or if NO_COLOR is set."""

    @property
    def encoding(self) -> str:
        """The encoding for which rich chooses the characters of boxes."""
        return super().encoding if self.is_terminal and not self.no_color else "ascii"
