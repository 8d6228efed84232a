"""Events with what a test does not say made up, and records of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import msgspec

from kungfu.event_log.codec import event_to_line
from kungfu.event_log.events import RECORD_VERSION, AnyEvent, RecordEvent

_ANY: Any = AnyEvent
_EMPTY: dict[type, Any] = {
    msgspec.inspect.IntType: 0,
    msgspec.inspect.FloatType: 0.0,
    msgspec.inspect.StrType: "",
    msgspec.inspect.BoolType: False,
    msgspec.inspect.DictType: {},
    msgspec.inspect.VarTupleType: [],
    msgspec.inspect.UnionType: None,
}

KINDS: dict[str, type] = {one.__struct_config__.tag: one for one in get_args(AnyEvent)}


def made(**fields: Any) -> AnyEvent:
    """The event of these keys, as they stand in a file; keys that are missing get an empty value."""
    info = msgspec.inspect.type_info(KINDS[fields["event"]])
    assert isinstance(info, msgspec.inspect.StructType)
    empty = {one.encode_name: _empty(one.type) for one in info.fields if one.required}
    event: AnyEvent = msgspec.convert({**empty, **fields}, _ANY)
    return event


def write_record(folder: Path, *lines: dict[str, Any]) -> None:
    """Appends to the record in `folder`: events, made up where they are not whole, and steps."""
    if not (events := folder / "events.jsonl").exists():
        events.write_text(f"{event_to_line(RecordEvent(version=RECORD_VERSION))}\n")
    for line in lines:
        is_event = "event" in line
        with (folder / ("events.jsonl" if is_event else "metrics.jsonl")).open("a") as file:
            file.write(f"{event_to_line(made(**line)) if is_event else json.dumps(line)}\n")


def _empty(kind: msgspec.inspect.Type) -> Any:
    optional = isinstance(kind, msgspec.inspect.UnionType) and kind.includes_none
    return _EMPTY[type(kind)] if optional or not isinstance(kind, msgspec.inspect.UnionType) else 0.0
