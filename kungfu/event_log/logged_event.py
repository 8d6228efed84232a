"""The base of all events of a record, and the version of the record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

RECORD_VERSION = 2
READABLE_VERSIONS = (1, 2)  # what came since version 1 may be missing

# JSON knows no NaN and no infinity: in a file they are words.
Number = float | Literal["NaN", "Infinity", "-Infinity"]
Saw = Mapping[str, Number | None]


class LoggedEvent(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event"):
    """One line of ``events.jsonl``. ``time`` is stamped by the agent that writes it first."""

    time: float | None = None

    @property
    def kind(self) -> str:
        """The word under ``event`` in its line."""
        return str(self.__struct_config__.tag)
