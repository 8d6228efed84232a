"""What the agent shows a person; how it looks is the command's affair."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from kungfu.event_log.events import LoggedEvent

__all__ = ["Console"]


class Console(Protocol):
    """What a person sees while the job runs."""

    def line(self, who: str, text: str) -> None:
        """A line that a peer printed."""

    def event(self, event: LoggedEvent) -> None:
        """Something was decided or done."""

    def status(self, fields: Mapping[str, Any]) -> None:
        """The newest figures of the run."""
