"""Values of this package survive the wire."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.errors import DeadlineExceeded, InternalError, KungfuError, PeerFailure, PolicyError, UsageError
from kungfu.runtime.core import request
from kungfu.runtime.core.cluster.events import ReportedEvent, Spawn
from kungfu.runtime.core.next_membership import Decision, JoinerOffer
from kungfu.runtime.core.program_identity import Description, ProgramPart
from kungfu.runtime.core.request import Asked, Keep, Leave, Request, Resize, RestoreCheckpoint, SaveCheckpoint, SetValue
from kungfu.runtime.core.shadow import ShadowAsk
from kungfu.runtime.core.size_limits import Hold
from kungfu.runtime.core.terms import Terms
from kungfu.runtime.core.view import View
from kungfu.runtime.ipc import convert, rpc
from kungfu.runtime.ipc import messages_pb2 as pb

counts, seconds, texts = st.integers(0, 2**40), st.floats(0, 1e6), st.text(max_size=9)
PLAIN = {int: counts, float: seconds, str: texts, bool: st.booleans(), type(None): st.none()}
# The fields that do not travel; nor do a `SetValue` and a `RestoreCheckpoint`, which only this process makes.
LOCAL = {Decision: {"settings", "superseded", "held", "slow"}, Hold: {"expires"}, SaveCheckpoint: {"name"}}


@cache
def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a type: of a record by the types of its fields, so that a new field comes over the wire too."""
    if hint in PLAIN:
        return PLAIN[hint]
    match get_origin(hint), get_args(hint):
        case (origin, words) if origin is Literal:
            return st.sampled_from(words)
        case (origin, (kind, *_)) if origin is tuple:
            return st.lists(values_of(kind), max_size=3).map(tuple)
        case (origin, (_, kind)) if origin is Mapping:
            return st.dictionaries(texts, values_of(kind), max_size=3)
        case (_, kinds) if kinds:
            return st.one_of(*(values_of(kind) for kind in kinds if kind not in (RestoreCheckpoint, SetValue)))
    hints = get_type_hints(hint)
    sent = [name for name in signature(hint).parameters if name not in LOCAL.get(hint, ())]
    return st.builds(hint, **{name: values_of(hints[name]) for name in sent})


descriptions = st.builds(Description, st.lists(st.builds(ProgramPart.of, *[texts] * 3)).map(tuple))
SENT: dict[Any, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    View: (convert.from_view, convert.to_view),
    Decision: (convert.from_decision, convert.to_decision),
    JoinerOffer: (convert.from_offer, convert.to_offer),
    Asked: (convert.from_asked, convert.to_asked),
    ReportedEvent: (convert.from_report, convert.to_report),
    Spawn: (convert.from_spawn, convert.to_spawn),
    Description: (convert.from_description, convert.to_description),
    ShadowAsk: (convert.from_shadow, convert.to_shadow),
}


@pytest.mark.parametrize("kind", SENT)
@given(st.data())
def test_a_value_comes_over_the_wire_as_it_was_to_the_last_bit(kind: Any, data: st.DataObject) -> None:
    send, receive = SENT[kind]
    value = data.draw(descriptions if kind is Description else values_of(kind))
    message = send(value)
    assert receive(type(message).FromString(message.SerializeToString())) == value


def test_a_batch_that_no_message_can_carry_is_a_usage_error_with_the_number() -> None:
    large = Decision(View(1, ()), Terms(2**63 - 1))
    assert convert.to_decision(convert.from_decision(large)) == large
    with pytest.raises(UsageError, match=r"steps of 1e\+30 samples; hold what it asks for"):
        convert.from_decision(Decision(View(1, ()), Terms(10**30)))


def test_an_empty_message_is_the_terms_of_a_job_that_has_none_yet() -> None:
    assert convert.to_decision(pb.Decision()) == Decision(View(0, ()), Terms())


NEWER: Any = 99
OF_A_NEWER_VERSION: dict[str, Callable[[], Any]] = {
    "terms that keep": lambda: convert.to_decision(pb.Decision(terms=pb.Terms(keep=NEWER))),
    "a ramp": lambda: convert.to_decision(pb.Decision(terms=pb.Terms(ramp=pb.Ramp(unit=NEWER)))),
    "a leave": lambda: convert.to_asked(pb.Asked(leave=pb.Leave(when=NEWER))),
    "a resize that keeps": lambda: convert.to_asked(pb.Asked(resize=pb.Resize(keep=NEWER))),
    "a learning rate": lambda: convert.to_asked(pb.Asked(set_rate=pb.SetRate(unit=NEWER))),
    "an exit": lambda: convert.to_report(pb.PeerReport(program_exiting=pb.ProgramExiting(exit=pb.Exit(kind=NEWER)))),
}


@pytest.mark.parametrize("read", OF_A_NEWER_VERSION.values(), ids=OF_A_NEWER_VERSION)
def test_a_kind_of_a_newer_version_is_refused_with_what_to_do(read: Callable[[], Any]) -> None:
    with pytest.raises(UsageError, match=r"99 is not known to kungfu .*: run the same version on all hosts"):
        read()


@pytest.mark.parametrize("of_a_newer_version", [b"", bytes([0xFA, 0x01, 0])])  # field 31
def test_a_request_without_its_kind_is_refused_with_the_known_ones(of_a_newer_version: bytes) -> None:
    message = pb.Asked.FromString(pb.Asked(by="rule").SerializeToString() + of_a_newer_version)
    known = "or with one that is not known .*; it is one of resize, leave, scale_out, .*: run the same version on all"
    with pytest.raises(UsageError, match=known):
        convert.to_asked(message)
    with pytest.raises(UsageError, match="a message came without its"):
        convert.to_report(pb.PeerReport(program_exiting=pb.ProgramExiting()))


def test_the_words_of_an_enum_are_its_values_and_no_others() -> None:
    to_value, to_word = convert.word_converters(pb.Keep, get_args(Keep))
    assert tuple(to_word(to_value(word)) for word in get_args(Keep)) == get_args(Keep)
    with pytest.raises(UsageError, match="Keep 'loss' is not known; there are local_batch_size, global_batch_size"):
        to_value("loss")
    with pytest.raises(AssertionError, match="Keep has other values"):
        convert.word_converters(pb.Keep, ["local_batch_size"])
    with pytest.raises(ValueError, match="KEEP_SOMETHING"):
        convert.word_converters(pb.Keep, ["local_batch_size", "global_batch_size", "something"])


def test_every_request_has_one_row_of_the_codec_of_merge_and_in_words() -> None:
    """A new kind of request is added in core/request.py and in messages.proto, and nowhere else to travel."""
    carried = {field.message_type.name for field in pb.Asked.DESCRIPTOR.oneofs_by_name["what"].fields}
    assert carried == {kind.__name__ for kind in get_args(Request)}
    kinds = {kind.__name__ for kind in get_args(get_type_hints(Asked)["what"])}
    assert kinds - carried == {"SetValue", "RestoreCheckpoint"}
    tree = ast.parse(Path(request.__file__).read_text())
    functions = {one.name: one for one in tree.body if isinstance(one, ast.FunctionDef)}
    for name in ("_superseding", "in_words"):
        matched = [ast.unparse(one.cls) for one in ast.walk(functions[name]) if isinstance(one, ast.MatchClass)]
        assert sorted(matched) == sorted(kinds), f"{name} matches each kind once"


def test_a_request_that_names_no_batch_keeps_that_of_the_whole_job() -> None:
    assert convert.to_asked(pb.Asked(resize=pb.Resize(size=3))).what == Resize(3, "global_batch_size")
    assert convert.to_asked(pb.Asked(leave=pb.Leave(peers=[3]))).what == Leave((3,), "now")


ranks = st.lists(st.integers(0, 255), max_size=3)
views = st.none() | counts
ids = st.lists(counts, max_size=3).map(tuple)
lost = st.builds(PeerFailure, st.text(max_size=20), ranks=ranks, peers=ids, view=views)
late = st.builds(
    DeadlineExceeded,
    st.text(max_size=20),
    waiting_for=ranks,
    waited_s=seconds | st.just(math.nan),
    peers=ids,
    view=views,
)
others = st.builds(
    lambda kind, text: kind(text), st.sampled_from([UsageError, PolicyError, InternalError]), st.text(max_size=20)
)


@given(lost | late | others)
def test_a_failure_with_all_that_it_says_beside_its_text(error: KungfuError) -> None:
    message = pb.Failure.FromString(convert.from_failure(error).SerializeToString())
    again = convert.to_failure(message)
    assert (type(again), str(again)) == (type(error), str(error))
    assert repr(vars(again)) == repr(vars(error))


def test_an_error_of_a_narrower_class_is_what_it_stands_for_to_the_others() -> None:
    refused = rpc.SecretRefused("lost rank 1", peers=[4])
    again = convert.to_failure(convert.from_failure(refused))
    assert (type(again), again.peers) == (PeerFailure, (4,))
    assert type(convert.to_failure(convert.from_failure(KungfuError("any")))) is PeerFailure


@pytest.mark.parametrize("kind", [pb.FAILURE_KIND_UNSPECIFIED, NEWER])
def test_a_failure_of_an_unknown_kind_is_no_loss_of_a_peer_and_keeps_its_text(kind: Any) -> None:
    again = convert.to_failure(pb.Failure(kind=kind, text="the disk is full", ranks=[1], peers=[4]))
    assert type(again) is UsageError
    assert "the disk is full" in str(again)
    assert "run the same version on all hosts" in str(again)
