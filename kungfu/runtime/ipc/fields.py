"""Objects of plain values on the wire: what is open to new names, as an event, the figures of a step, or settings.

A message for each kind of event would be the types of `kungfu.event_log` once more, and a change of one of them a
change in three places. One small message carries them all with the type of each value; the receiver checks them against
their own type. Names keep their order, unlike those of a map, and integers of any size stay integers, unlike
in ``google.protobuf.Struct``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kungfu.runtime.ipc import messages_pb2 as pb

# The integers that have room in a field of a message.
INT64 = range(-(1 << 63), 1 << 63)


def from_fields(fields: Mapping[str, Any]) -> pb.Fields:
    """The message of an object: of ``None``, booleans, numbers, texts, and lists and objects of such.

    >>> to_fields(from_fields({"step": 3, "saw": {"loss": 0.5}, "peers": [0, 1], "asked": None}))
    {'step': 3, 'saw': {'loss': 0.5}, 'peers': [0, 1], 'asked': None}
    """
    return pb.Fields(fields=[pb.Field(name=str(name), value=_from_value(value)) for name, value in fields.items()])


def to_fields(message: pb.Fields) -> dict[str, Any]:
    """The object of a message."""
    return {field.name: _to_value(field.value) for field in message.fields}


def _from_value(value: Any) -> pb.Value:
    match value:
        case None:
            return pb.Value()
        case bool():
            return pb.Value(truth=value)
        case int():
            return pb.Value(whole=value) if value in INT64 else pb.Value(large=str(value))
        case float():
            return pb.Value(number=value)
        case str():
            return pb.Value(text=value)
        case Mapping():
            return pb.Value(fields=from_fields(value))
        case list() | tuple():
            return pb.Value(items=pb.Values(values=[_from_value(one) for one in value]))
    raise TypeError(f"{value!r} is no plain value")


def _to_value(value: pb.Value) -> Any:
    kind = value.WhichOneof("kind")
    if kind == "fields":
        return to_fields(value.fields)
    if kind == "items":
        return [_to_value(one) for one in value.items.values]
    if kind == "large":
        return int(value.large)
    return None if kind is None else getattr(value, kind)
