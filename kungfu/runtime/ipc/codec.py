"""Converts dataclasses to the messages whose fields have the same names, and back: by the types of the fields.

A word of a ``Literal`` travels as the enum of its field, a tuple as a repeated field, a dataclass as a message of its
own, and ``None`` as a field that is not set.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc.enums import EnumTable

__all__ = ["converters", "optional_field"]

Value = TypeVar("Value")
Message = TypeVar("Message")
_Convert = Callable[[Any], Any]


def optional_field(message: Any, name: str) -> Any:
    """The value of an ``optional`` field; ``None`` where it is not set."""
    return getattr(message, name) if message.HasField(name) else None


def converters(
    kind: type[Value], message: type[Message], *, unspecified: Mapping[str, str] = types.MappingProxyType({})
) -> tuple[Callable[[Value], Message], Callable[[Message], Value]]:
    """The function that gives the message of a value, and the one that gives the value of a message.

    Args:
        kind: The dataclass.
        message: Its message; it has all fields of the dataclass, and may have others.
        unspecified: The words for which the zero value of an enum stands, by field; in other fields it is refused with
            a ``UsageError``, as is a value that a newer version has sent.
    """
    hints, wire = get_type_hints(kind), message.DESCRIPTOR.fields_by_name  # type: ignore[attr-defined]  # no types
    names: list[str] = [one.name for one in fields(kind)]  # type: ignore[arg-type]  # of a class, too
    parts = [(name, *_field(hints[name], wire[name], unspecified.get(name))) for name in names]

    def to_message(value: Value) -> Message:
        given = ((name, encode, getattr(value, name)) for name, encode, _ in parts)
        return message(**{name: encode(one) for name, encode, one in given if one is not None})

    def to_value(message: Message) -> Value:
        return kind(*(decode(message) for _, _, decode in parts))

    return to_message, to_value


def _field(hint: Any, wire: Any, unspecified: str | None) -> tuple[_Convert, _Convert]:
    """The function that encodes the value of a field, and the one that reads it from the message."""
    name = wire.name
    if type(None) not in get_args(hint):
        encode, decode = _part(hint, wire, unspecified)
        return encode, lambda message: decode(getattr(message, name))
    (known,) = (one for one in get_args(hint) if one is not type(None))
    encode, decode = _part(known, wire, unspecified)
    return encode, lambda message: decode(getattr(message, name)) if message.HasField(name) else None


def _part(hint: Any, wire: Any, unspecified: str | None = None) -> tuple[_Convert, _Convert]:
    """The functions that encode and decode a value of this type."""
    if isinstance(hint, type) and is_dataclass(hint):
        return converters(hint, getattr(pb, wire.message_type.name))
    if get_origin(hint) is Literal:
        table: EnumTable[Any, Any] = EnumTable(getattr(pb, wire.enum_type.name), get_args(hint))
        return table.to_value, lambda value: table.to_word(value, unspecified=unspecified)
    if get_origin(hint) is tuple:
        encode, decode = _part(get_args(hint)[0], wire)
        return lambda values: [encode(one) for one in values], lambda values: tuple(decode(one) for one in values)
    return (dict, dict) if get_origin(hint) is Mapping else (_same, _same)


def _same(value: Any) -> Any:
    return value
