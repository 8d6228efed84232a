"""The base of all events of a record, and the version of the record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from msgspec import Struct

RECORD_VERSION = 2
READABLE_VERSIONS = (1, 2)  # what came since version 1 may be missing

# JSON knows no NaN and no infinity: in a file they are words.
Number = float | Literal["NaN", "Infinity", "-Infinity"]
Saw = Mapping[str, Number | None]

# The group of an event, by which screens, pages and plots arrange what happened.
Topic = Literal[
    "job", "host", "view", "loss", "trouble", "decision", "call", "superseded", "refusal", "setting", "shadow",
    "held back", "rescale", "recovery", "request", "checkpoint",
]  # fmt: skip


class LoggedEvent(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event"):
    """One line of ``events.jsonl``. ``time`` is stamped by the agent that writes it first."""

    topic: ClassVar[Topic] = "job"
    time: float | None = None

    @property
    def kind(self) -> str:
        """The word under ``event`` in its line."""
        return str(self.__struct_config__.tag)

    def one_line(self) -> str:
        """The event in one line, as a running job shows it; empty for one that is not worth a line."""
        return ""

    def headline(self) -> str:
        """The headline of its paragraph in ``kungfu why``; empty for one that has no paragraph."""
        return self.one_line()

    def details(self) -> tuple[str, ...]:
        """The lines below that headline."""
        return ()

    def markers(self) -> Mapping[str, float]:
        """The numbers that a plot shows at the moment of the event, by name."""
        return {}

    def tallied_as(self) -> str:
        """The label under which a job counts it among the events of its kind; empty if it counts them all alike."""
        return ""
