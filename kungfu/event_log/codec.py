"""Events as lines of ``events.jsonl``, as bytes between processes, and read back from either.

One codec, `msgspec`: it checks what it reads against the types, and gives their JSON schema.
"""

from __future__ import annotations

import json
from typing import Any, cast

import msgspec

from kungfu.errors import UsageError
from kungfu.event_log.events import READABLE_VERSIONS, AnyEvent, LoggedEvent, RecordEvent
from kungfu.event_log.numbers import as_json

_ANY: Any = AnyEvent  # a union is a value of no type that a type checker has a name for


def event_to_line(event: LoggedEvent) -> str:
    """The line of an event, without its end; numbers that are not finite stand by name.

    Examples:
        >>> from kungfu.event_log.events import NotFiniteEvent
        >>> event_to_line(NotFiniteEvent(time=1.5, what="loss", step=41, value=float("nan")))
        '{"event": "not finite", "time": 1.5, "what": "loss", "step": 41, "value": "NaN"}'
    """
    return json.dumps(event_to_json(event), allow_nan=False)


def event_to_json(event: LoggedEvent) -> dict[str, Any]:
    """An event as the object of its line: numbers that are not finite stand by name, as in ``NOT_FINITE``."""
    return cast(dict[str, Any], as_json(msgspec.to_builtins(event)))


def event_in(line: str | bytes) -> AnyEvent | None:
    """The event of a line that ``event_to_line`` made; ``None`` for one that is cut, damaged, or of a later version."""
    try:
        return cast(AnyEvent, _decoder.decode(line))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def row_in(line: str | bytes) -> dict[str, Any] | None:
    """The object of a line of ``metrics.jsonl``; ``None`` if it holds none, or was cut short."""
    try:
        return _row_decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    # It is damaged, or has what JSON lacks and Python's writes: NaN, or halves of characters.
    try:
        value = json.loads(line if isinstance(line, str) else line.decode("utf-8", errors="replace"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def pack_event(event: LoggedEvent) -> bytes:
    """An event as MessagePack, in which numbers that are not finite stay numbers."""
    try:
        return msgspec.msgpack.encode(event)
    # It has an integer beyond 64 bits, which MessagePack lacks: a program may ask for any number of peers.
    except OverflowError:
        return event_to_line(event).encode()


def unpack_event(packed: bytes) -> AnyEvent:
    """The event that ``pack_event`` was given. Raises ``ValueError`` for anything else."""
    # No object of MessagePack begins with the brace of a line.
    decoder = _decoder if packed.startswith(b"{") else _unpacker
    try:
        return cast(AnyEvent, decoder.decode(packed))
    except msgspec.DecodeError as error:
        raise ValueError(f"not an event of this version: {error}") from error


def check_version(first: AnyEvent | None, *, where: str) -> None:
    """Refuses a record that this version does not read. ``first`` is its first line, ``None`` if that is no event.

    Raises:
        UsageError: The record says another version, or none, as those of before version 1 do.
    """
    if isinstance(first, RecordEvent) and first.version in READABLE_VERSIONS:
        return
    known = " or ".join(map(str, READABLE_VERSIONS))
    found = f"is of version {first.version}" if isinstance(first, RecordEvent) else "does not say its version"
    raise UsageError(
        f"{where}: this record {found}, and this kungfu reads version {known}: read it with the kungfu that wrote it"
    )


def events_schema() -> dict[str, Any]:
    """The JSON schema of a line of ``events.jsonl``."""
    schema = msgspec.json.schema(_ANY)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A line of events.jsonl", **schema}


_decoder, _unpacker = msgspec.json.Decoder(_ANY), msgspec.msgpack.Decoder(_ANY)
_row_decoder = msgspec.json.Decoder(dict[str, Any])
