"""The console on which commands print tables and trees."""

from __future__ import annotations

from rich.console import Console


class ReportConsole(Console):
    """A console that draws boxes and trees in ASCII if its output is no terminal, or if NO_COLOR is set."""

    @property
    def encoding(self) -> str:
        """The encoding for which rich chooses the characters of boxes and trees."""
        return super().encoding if self.is_terminal and not self.no_color else "ascii"
