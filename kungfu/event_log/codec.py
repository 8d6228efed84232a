"""Encodes events as lines of ``events.jsonl`` or as bytes for messages between processes, and decodes both.

`msgspec`, the only codec, checks its input against the types of the events, and derives the JSON schema from them.
"""

from __future__ import annotations

import json
from typing import Any, cast

import msgspec

from kungfu.errors import UsageError
from kungfu.event_log.events import RECORD_VERSION, AnyEvent, LoggedEvent, RecordEvent, SettingRun
from kungfu.event_log.numbers import as_json

_ANY: Any = AnyEvent  # type checkers have no name for the type of a union


def event_to_line(event: LoggedEvent) -> str:
    """The line of an event, without a newline; numbers that are not finite are written as names.

    >>> from kungfu.event_log.events import NotFiniteEvent
    >>> event_to_line(NotFiniteEvent(time=1.5, what="loss", step=41, value=float("nan")))
    '{"event": "not finite", "time": 1.5, "what": "loss", "step": 41, "value": "NaN"}'
    """
    return json.dumps(event_to_json(event), allow_nan=False)


def event_to_json(event: LoggedEvent | SettingRun) -> dict[str, Any]:
    """The JSON object of an event or of a repeated setting, with the names in ``NOT_FINITE`` for such numbers."""
    return cast(dict[str, Any], as_json(msgspec.to_builtins(event)))


def event_in(line: str | bytes) -> AnyEvent | None:
    """The event in a line made by ``event_to_line``; ``None`` if the line is cut, damaged, or of a later version."""
    try:
        return cast(AnyEvent, _decoder.decode(line))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def row_in(line: str | bytes) -> dict[str, Any] | None:
    """The object in a line of ``metrics.jsonl``; ``None`` if the line is cut or contains no object."""
    try:
        return _row_decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    # The line is damaged, or contains NaN or lone surrogates, which only Python's `json` writes.
    try:
        value = json.loads(line if isinstance(line, str) else line.decode("utf-8", errors="replace"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def pack_event(event: LoggedEvent) -> bytes:
    """Returns an event as MessagePack, which can represent numbers that are not finite."""
    try:
        return msgspec.msgpack.encode(event)
    # An integer exceeds the 64 bits of MessagePack: a program may request any number of peers.
    except OverflowError:
        return event_to_line(event).encode()


def unpack_event(packed: bytes) -> AnyEvent:
    """The event packed by ``pack_event``. Raises ``ValueError`` for any other bytes."""
    # A line of JSON begins with a brace; an event in MessagePack never does.
    decoder = _decoder if packed.startswith(b"{") else _unpacker
    try:
        return cast(AnyEvent, decoder.decode(packed))
    except msgspec.DecodeError as error:
        raise ValueError(f"not an event of this version: {error}") from error


def check_version(first: AnyEvent | None, *, where: str) -> None:
    """Raises ``UsageError`` unless a record, whose first event is ``first``, has the version that this kungfu reads."""
    found = f"is of version {first.version}" if isinstance(first, RecordEvent) else "does not say its version"
    if not isinstance(first, RecordEvent) or first.version != RECORD_VERSION:
        raise UsageError(
            f"{where}: this record {found}, and this kungfu reads version {RECORD_VERSION}: "
            "read it with the kungfu that wrote it"
        )


def events_schema() -> dict[str, Any]:
    """The JSON schema of a line of ``events.jsonl``."""
    schema = msgspec.json.schema(_ANY)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A line of events.jsonl", **schema}


_decoder, _unpacker = msgspec.json.Decoder(_ANY), msgspec.msgpack.Decoder(_ANY)
_row_decoder = msgspec.json.Decoder(dict[str, Any])
