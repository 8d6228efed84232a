"""Converts the values that peers and agents send each other to messages, and back; no other module handles both forms.

A record is a dataclass or a `msgspec` struct. It converts to a message with fields of the same names; the type of each
field determines how its value is sent: a word of a ``Literal`` as a value of the field's enum, a tuple as a repeated
field, a record as a nested message, a union of records as a ``oneof``, and ``None`` as an unset field.
"""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from kungfu import __version__
from kungfu.errors import DeadlineExceeded, InternalError, KungfuError, PeerFailure, PolicyError, UsageError
from kungfu.runtime.core.cluster.events import ReportedEvent, Spawn
from kungfu.runtime.core.next_membership import Decision, JoinerOffer
from kungfu.runtime.core.program_identity import Description
from kungfu.runtime.core.request import Asked
from kungfu.runtime.core.shadow import ShadowAsk
from kungfu.runtime.core.view import Peer, View
from kungfu.runtime.ipc import messages_pb2 as pb

Value = TypeVar("Value")
Message = TypeVar("Message")
_Convert = Callable[[Any], Any]


def converters(
    kind: type[Value], message: type[Message], *, unspecified: Mapping[str, str] = types.MappingProxyType({})
) -> tuple[Callable[[Value], Message], Callable[[Message], Value]]:
    """Two functions: one converts a value to its message, the other a message to its value.

    Args:
        kind: The class of the values: a dataclass or a `msgspec` struct.
        message: The message class, which may have further fields. A field of ``kind`` that the message lacks is not
            sent; at the receiver it has its default value.
        unspecified: For enum fields, here and in nested records: the word for the zero value, by field name. In other
            fields, the zero value raises a ``UsageError``; in all fields, so does an unknown value of a newer version.
    """
    hints, wire = get_type_hints(kind), message.DESCRIPTOR  # type: ignore[attr-defined]  # generated without types
    sent = {*wire.fields_by_name, *wire.oneofs_by_name}
    names = [name for name in inspect.signature(kind).parameters if name in sent]
    parts = [_field(hints[name], wire, name, unspecified) for name in names]

    def to_message(value: Value) -> Message:
        given: dict[str, Any] = {}
        for name, (encode, _) in zip(names, parts, strict=True):
            given |= encode(getattr(value, name))
        return message(**given)

    def to_value(message: Message) -> Value:
        return kind(**{name: decode(message) for name, (_, decode) in zip(names, parts, strict=True)})

    return to_message, to_value


def union_converters(kinds: Any, message: type[Message]) -> tuple[Callable[[Any], Message], Callable[[Message], Any]]:
    """The `converters` of a union of records, whose message has one ``oneof``."""
    wire: Any = message
    encode, decode = _one_of(kinds, wire.DESCRIPTOR.oneofs[0], {})
    return lambda value: message(**encode(value)), decode


def word_converters(enum: Any, words: Sequence[str], *, unspecified: str | None = None) -> tuple[_Convert, _Convert]:
    """Two functions: one converts a word of a ``Literal`` to its enum value, the other an enum value to its word.

    The name of a value follows from its word: ``"carried out"`` of ``RequestState`` is ``REQUEST_STATE_CARRIED_OUT``.
    Both functions raise a ``UsageError`` for an unknown argument, which a newer version may have sent.

    Args:
        enum: The generated enum; the name of its zero value ends in ``_UNSPECIFIED``.
        words: All words, one for each nonzero value.
        unspecified: The word for the zero value; if ``None``, the zero value is refused.

    >>> to_value, to_word = word_converters(pb.HostEventKind, ("spawned", "ended", "signalled", "loaded"))
    >>> to_value("ended") == pb.HOST_EVENT_KIND_ENDED, to_word(pb.HOST_EVENT_KIND_ENDED)
    (True, 'ended')
    """
    name, prefix = enum.DESCRIPTOR.name, enum.Name(0).removesuffix("UNSPECIFIED")
    values = {word: enum.Value(prefix + word.upper().replace(" ", "_").replace("-", "_")) for word in words}
    known = {value: word for word, value in values.items()}
    # Otherwise a value of the enum without a word would be refused like one of a newer version.
    assert {0, *known} == set(enum.values()), f"{name} has other values than {', '.join(words)}"
    known |= {} if unspecified is None else {0: unspecified}

    def to_value(word: str) -> Any:
        if word not in values:
            raise UsageError(f"{name} {word!r} is not known; there are {', '.join(values)}")
        return values[word]

    def to_word(value: int) -> str:
        if value in known:
            return known[value]
        if value == 0:
            raise UsageError(f"a message came without its {name}; it is one of {', '.join(values)}")
        raise UsageError(
            f"{name} {value} is not known to kungfu {__version__}; it knows {', '.join(values)}: run the same "
            "version on all hosts"
        )

    return to_value, to_word


def _field(hint: Any, wire: Any, name: str, unspecified: Mapping[str, str]) -> tuple[_Convert, _Convert]:
    """Two functions: one converts a value to fields of the message, the other reads the value from the message."""
    if name in wire.oneofs_by_name:
        return _one_of(hint, wire.oneofs_by_name[name], unspecified)
    field = wire.fields_by_name[name]
    known = [one for one in get_args(hint) if one is not type(None)]
    is_optional = len(known) < len(get_args(hint))
    encode, decode = _part(known[0] if is_optional else hint, field, unspecified)

    def from_value(value: Any) -> dict[str, Any]:
        return {} if value is None else {name: encode(value)}

    def to_value(message: Any) -> Any:
        return None if is_optional and not message.HasField(name) else decode(getattr(message, name))

    return from_value, to_value


def _one_of(hint: Any, wire: Any, unspecified: Mapping[str, str]) -> tuple[_Convert, _Convert]:
    """The `_field` functions of a union of record classes; the message has a field for each class."""
    kinds = {one.__name__: one for one in get_args(hint)}
    rows = {field.name: (kinds[field.message_type.name], field) for field in wire.fields}
    parts = {name: (kind, *_part(kind, field, unspecified)) for name, (kind, field) in rows.items()}
    names = {kind: name for name, (kind, _, _) in parts.items()}

    def from_value(value: Any) -> dict[str, Any]:
        name = names[type(value)]
        return {name: parts[name][1](value)}

    def to_value(message: Any) -> Any:
        name = message.WhichOneof(wire.name)
        if name is None:
            raise UsageError(
                f"a message came without its {wire.name}, or with one that is not known to kungfu "
                f"{__version__}; it is one of {', '.join(parts)}: run the same version on all hosts"
            )
        return parts[name][2](getattr(message, name))

    return from_value, to_value


def _part(hint: Any, wire: Any, unspecified: Mapping[str, str]) -> tuple[_Convert, _Convert]:
    """Two functions for values of the type ``hint``: the first encodes a value for its field, the second decodes it."""
    if get_origin(hint) is Literal:
        enum = getattr(pb, wire.enum_type.name)
        return word_converters(enum, get_args(hint), unspecified=unspecified.get(wire.name))
    if get_origin(hint) is tuple:
        encode, decode = _part(get_args(hint)[0], wire, unspecified)
        return lambda values: [encode(one) for one in values], lambda values: tuple(decode(one) for one in values)
    if get_origin(hint) is Mapping:
        return dict, dict
    if wire.message_type is not None:
        return converters(hint, getattr(pb, wire.message_type.name), unspecified=unspecified)
    return _same, _same


def _same(value: Any) -> Any:
    return value


# ---- values ----------------------------------------------------------------------------------------------------------

# The integers that fit into a field of a message.
_INT64 = range(-(1 << 63), 1 << 63)


def _of_its_name(kind: type[Value], **unspecified: str) -> tuple[Callable[[Value], Any], Callable[[Any], Value]]:
    """The `converters` between a class and the message class with the same name."""
    return converters(kind, getattr(pb, kind.__name__), unspecified=unspecified)


from_peer, to_peer = converters(Peer, pb.PeerInfo)
from_view, to_view = converters(View, pb.ViewInfo)
_from_decision, to_decision = _of_its_name(Decision, keep="local_batch_size")


def from_decision(decision: Decision) -> Any:
    """The message of a decision; raises ``UsageError`` if its batch size does not fit into a message."""
    # A rule may request any number of samples if the number in an epoch is not known.
    if (samples := decision.terms.global_batch_size) not in _INT64:
        raise UsageError(
            f"a rule asks for steps of {float(samples):g} samples; hold what it asks for within what the job can do, "
            "as kf.ops.clip does"
        )
    return _from_decision(decision)


from_shadow, to_shadow = converters(ShadowAsk, pb.Shadow)
# An external request may change the training only explicitly: by default, it keeps the global batch size.
from_asked, to_asked = _of_its_name(Asked, keep="global_batch_size", when="now", unit="steps")
from_offer, to_offer = _of_its_name(JoinerOffer)
from_report, to_report = union_converters(ReportedEvent, pb.PeerReport)
from_spawn, to_spawn = _of_its_name(Spawn)

from_description, to_description = converters(Description, pb.ProgramDescription)

_FAILURES: Mapping[pb.FailureKind, type[KungfuError]] = {
    pb.FAILURE_KIND_PEER: PeerFailure,
    pb.FAILURE_KIND_DEADLINE: DeadlineExceeded,
    pb.FAILURE_KIND_USAGE: UsageError,
    pb.FAILURE_KIND_POLICY: PolicyError,
    pb.FAILURE_KIND_INTERNAL: InternalError,
}


def from_failure(error: KungfuError) -> pb.Failure:
    # An error of any other class ends the wait of a coordinator; the other peers treat it as the loss of a peer.
    kind = next((kind for kind, one in _FAILURES.items() if isinstance(error, one)), pb.FAILURE_KIND_PEER)
    message = pb.Failure(kind=kind, text=str(error))
    match error:
        case PeerFailure(ranks=ranks):
            message.MergeFrom(pb.Failure(ranks=ranks, peers=error.peers, view=error.view))
        case DeadlineExceeded(waiting_for=ranks, waited_s=waited_s):
            known_s = None if math.isnan(waited_s) else waited_s
            message.MergeFrom(pb.Failure(ranks=ranks, peers=error.peers, view=error.view, waited_s=known_s))
    return message


def to_failure(message: pb.Failure) -> KungfuError:
    kind, view = _FAILURES.get(message.kind), message.view if message.HasField("view") else None
    # A newer version has sent this kind. It neither proves the loss of a peer nor can be ignored.
    if kind is None:
        return UsageError(
            f"{message.text} (a failure of kind {message.kind}, which is not known to kungfu {__version__}: "
            "run the same version on all hosts)"
        )
    if kind is PeerFailure:
        return PeerFailure(message.text, ranks=message.ranks, peers=message.peers, view=view)
    if kind is DeadlineExceeded:
        waited_s = message.waited_s if message.HasField("waited_s") else math.nan
        ranks, peers = message.ranks, message.peers
        return DeadlineExceeded(message.text, waiting_for=ranks, waited_s=waited_s, peers=peers, view=view)
    return kind(message.text)
