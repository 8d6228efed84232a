"""The events of a job as lines of a file, as objects, and their schema."""

from __future__ import annotations

import json
import math
import runpy
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.errors import UsageError
from kungfu.event_log.codec import check_version, event_in, event_to_line, pack_event, unpack_event
from kungfu.event_log.events import RECORD_VERSION, DecisionEvent, NotFiniteEvent, RecordEvent, SpanEvent, SpanPart
from tests.event_log.made import KINDS, made

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_the_same_after_a_file_and_after_the_wire(kind: str) -> None:
    event = made(event=kind)
    assert event_in(event_to_line(event)) == event
    assert unpack_event(pack_event(event)) == event
    assert json.loads(event_to_line(event))["event"] == kind


@pytest.mark.parametrize(
    "fields",
    [
        {"event": "late", "ranks": [1], "in": "gradients", "step": 8, "waited_s": 2.5},  # a word of Python
        # What is not there has no key, and what is not known is null.
        {"event": "decision", "step": 3, "rule": "grow", "saw": {"loss": None}, "size": 1, "asked": 2, "done": ""},
    ],
)
def test_fields_stand_in_the_file_under_their_keys(fields: dict[str, Any]) -> None:
    assert json.loads(event_to_line(made(**fields))) == fields


def test_numbers_that_are_not_finite_are_words_in_a_file_and_numbers_on_the_wire() -> None:
    event = NotFiniteEvent(what="loss", step=3, value=-math.inf)
    assert json.loads(event_to_line(event))["value"] == "-Infinity"
    assert unpack_event(pack_event(event)) == event


@given(st.integers() | st.integers(-(2**64), 2**64) | st.sampled_from([2**63 - 1, 2**63, -(2**63), -(2**63) - 1]))
def test_an_integer_of_any_size_stays_one_on_the_wire(asked: int) -> None:
    saw = {"loss": -math.inf, "speed": None, "gns": 3.0}
    event = DecisionEvent(step=3, rule="grow", saw=saw, size=1, asked=asked, done="", slow={})
    again = unpack_event(pack_event(event))
    assert isinstance(again, DecisionEvent)
    assert (again.asked, list(again.saw)) == (asked, list(saw))
    assert json.loads(event_to_line(again))["asked"] == asked


def test_parts_lie_within_parts() -> None:
    span = SpanEvent(what="join", peer=0, view=1, step=0, s=0.5, parts=(SpanPart("a", 0.4, (SpanPart("b", 0.1),)),))
    parts = [{"name": "a", "s": 0.4, "parts": [{"name": "b", "s": 0.1}]}]
    assert json.loads(event_to_line(span))["parts"] == parts
    assert event_in(event_to_line(span)) == span


def test_a_line_or_an_object_that_is_no_event_is_refused() -> None:
    lines = '{"event": "view"}', '{"event": "new"}', "[1]", "", '{"event'
    wrong = '{"event": "view", "version": "1", "peers": []}', b'{"event": "ended", "reason": "\xff"}', "[" * 100_000
    for line in (*lines, *wrong):
        assert event_in(line) is None, line[:60]
    with pytest.raises(ValueError, match="Object missing required field"):
        unpack_event(msgspec.msgpack.encode({"event": "view", "version": 1}))


def test_a_record_of_another_version_or_of_none_is_refused_with_both_numbers() -> None:
    check_version(RecordEvent(version=RECORD_VERSION), where="a")
    with pytest.raises(UsageError, match=f"a: this record is of version 2, .* reads version {RECORD_VERSION}"):
        check_version(RecordEvent(version=2), where="a")
    for first in (None, made(event="view")):
        with pytest.raises(UsageError, match="does not say its version"):
            check_version(first, where="a")


def test_the_schema_in_the_docs_is_that_of_the_types() -> None:
    written = runpy.run_path(str(ROOT / "tools" / "events_schema.py"))
    assert written["PAGE"].read_text() == written["page"](), "run python tools/events_schema.py"
