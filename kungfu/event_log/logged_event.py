"""The base of all events of a record, and the version of the record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from msgspec import Struct

__all__ = ["RECORD_VERSION", "LoggedEvent", "Topic"]

RECORD_VERSION = 6

# JSON has no NaN and no infinity: files contain their names.
Number = float | Literal["NaN", "Infinity", "-Infinity"]
Saw = Mapping[str, Number | None]

# The group of an event, by which screens, pages and plots arrange events.
Topic = Literal[
    "job", "host", "view", "loss", "trouble", "decision", "call", "superseded", "refusal", "setting", "shadow",
    "held back", "rescale", "recovery", "request", "checkpoint",
]  # fmt: skip


class LoggedEvent(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event"):
    """One line of ``events.jsonl``. The first agent that writes an event sets ``time``."""

    topic: ClassVar[Topic] = "job"
    time: float | None = None

    @property
    def kind(self) -> str:
        """The kind of the event: the value of ``event`` in its line of ``events.jsonl``."""
        return str(self.__struct_config__.tag)

    def one_line(self) -> str:
        """The event in one line, as a running job shows it; empty if the event is not shown."""
        return ""

    def headline(self) -> str:
        """The headline of the event's paragraph in ``kungfu why``; empty if the event has no paragraph."""
        return self.one_line()

    def details(self) -> tuple[str, ...]:
        """The lines below the headline of the event's paragraph."""
        return ()

    def markers(self) -> Mapping[str, float]:
        """The numbers that a plot shows at the time of the event, by name."""
        return {}

    def tallied_as(self) -> str:
        """The label under which a job counts the event within its kind; empty for kinds without labels."""
        return ""
