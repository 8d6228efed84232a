"""Requests, answers and statuses come back from their messages as they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.errors import UsageError
from kungfu.runtime.core.request import AGENT, Asked, Leave, Profile, Resize, StopTraining
from kungfu.runtime.core.requests.admission import Scaling
from kungfu.runtime.core.requests.profiling import Point
from kungfu.runtime.core.requests.request_log import RequestState
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.job_api.convert import (
    from_plan,
    from_progress,
    from_request,
    from_status,
    to_plan,
    to_progress,
    to_request,
    to_status,
)
from kungfu.runtime.job_api.request_plan import PlannedPeer, RefusedSizes, RequestPlan
from kungfu.runtime.job_api.status import (
    JobMetrics,
    JobStatus,
    MembershipStatus,
    PeerState,
    PeerStatus,
    RequestProgress,
    Trouble,
)

WHOLE, REAL, TEXT = st.integers(0, 2**40), st.floats(0.0, 1e9), st.text(max_size=9)
POINTS = st.lists(st.builds(Point, WHOLE, WHOLE, WHOLE, REAL), max_size=3).map(tuple)
ANSWERS = st.sampled_from(get_args(RequestState))
PROGRESS = st.builds(RequestProgress, TEXT, TEXT, ANSWERS, TEXT, WHOLE, REAL, POINTS)
STATES = st.sampled_from(get_args(PeerState))
SPEED = (st.none() | REAL, st.none() | st.booleans())
PEERS = st.builds(PeerStatus, WHOLE, st.none() | WHOLE, TEXT, WHOLE, STATES, REAL, *SPEED)
FIGURES = st.builds(JobMetrics, *[st.none() | WHOLE] * 3, *[st.none() | REAL] * 2)
STATUSES = st.builds(
    JobStatus,
    TEXT,
    st.sampled_from(get_args(Scaling)),
    st.builds(MembershipStatus, *[WHOLE] * 5),
    st.lists(PEERS, max_size=3).map(tuple),
    FIGURES,
    st.none() | PROGRESS,
    st.lists(st.builds(Trouble, REAL, TEXT), max_size=3).map(tuple),
)


PLANNED = st.lists(st.builds(PlannedPeer, WHOLE, TEXT), max_size=2).map(tuple)
REFUSED = st.lists(st.builds(RefusedSizes, WHOLE, st.none() | WHOLE, TEXT), max_size=2).map(tuple)
BATCHES = (st.none() | WHOLE, st.none() | WHOLE)
SENT: dict[type, tuple[st.SearchStrategy[Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    RequestProgress: (PROGRESS, from_progress, to_progress),
    JobStatus: (STATUSES, from_status, to_status),
    RequestPlan: (
        st.builds(RequestPlan, TEXT, TEXT, *[WHOLE] * 3, PLANNED, PLANNED, WHOLE, *BATCHES, REFUSED),
        from_plan,
        to_plan,
    ),
}


@pytest.mark.parametrize("kind", SENT)
@given(st.data())
def test_a_value_comes_over_the_wire_as_it_was(kind: type, data: st.DataObject) -> None:
    values, send, receive = SENT[kind]
    value = data.draw(values)
    message = send(value)
    assert receive(type(message).FromString(message.SerializeToString())) == value


NEWER: Any = 99
ELASTIC = pb.SCALING_ELASTIC
OF_A_NEWER_VERSION: dict[str, Callable[[], Any]] = {
    "progress": lambda: to_progress(pb.RequestProgress(id="r", state=NEWER)),
    "scaling": lambda: to_status(pb.JobStatus(scaling=NEWER)),
    "a peer": lambda: to_status(pb.JobStatus(scaling=ELASTIC, peers=[pb.PeerStatus(state=NEWER)])),
}


@pytest.mark.parametrize("read", OF_A_NEWER_VERSION.values(), ids=OF_A_NEWER_VERSION)
def test_a_kind_of_a_newer_version_is_refused_with_what_to_do(read: Callable[[], Any]) -> None:
    with pytest.raises(UsageError, match=r"99 is not known to kungfu .*: run the same version on all hosts"):
        read()


@pytest.mark.parametrize("action", [Resize(10**20), Leave((2**70,)), Profile(1, 2, 10**30)])
def test_a_number_that_no_message_can_carry_is_a_usage_error_with_the_request(action: Any) -> None:
    with pytest.raises(UsageError, match=r"^(resize|scale-in|profile) .* cannot be asked for: .*out of range"):
        from_request(Asked(action, id="r"))


@pytest.mark.parametrize("id", ["", AGENT])
def test_a_request_without_an_id_of_its_own_is_refused(id: str) -> None:
    with pytest.raises(UsageError, match="the request has no id"):
        to_request(pb.Asked(resize=pb.Resize(size=3), id=id))


def test_what_superseded_a_request_is_for_the_barrier_to_say_and_not_for_its_sender() -> None:
    message = from_request(Asked(StopTraining(), "me", id="1", superseded_by="nobody"))
    assert to_request(message) == Asked(StopTraining(), "me", id="1")


def test_what_an_older_agent_does_not_tell_of_a_peer_is_not_known() -> None:
    message = pb.PeerStatus(id=3, rank=1, host="a", pid=7, state=pb.PEER_STATE_TRAINING, for_s=2.0)
    (peer,) = to_status(pb.JobStatus(scaling=ELASTIC, peers=[message])).peers
    assert peer == PeerStatus(3, 1, "a", 7, "training", 2.0, speed=None, is_straggler=None)
