"""Requests, answers and statuses come back from their messages as they were."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kungfu.runtime.core.requests import (
    JobRequest,
    Migrate,
    Point,
    Profile,
    Resize,
    SaveCheckpoint,
    ScaleIn,
    ScaleOut,
    StopTraining,
)
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.job_api.convert import (
    from_progress,
    from_request,
    from_status,
    to_progress,
    to_request,
    to_status,
)
from kungfu.runtime.job_api.status import JobMetrics, JobStatus, MembershipStatus, PeerStatus, RequestProgress, Trouble

WHOLE, REAL, TEXT = st.integers(0, 2**40), st.floats(0.0, 1e9), st.text(max_size=9)
KEEP = st.sampled_from(["global_batch_size", "local_batch_size"])
ACTIONS = st.one_of(
    st.builds(Resize, WHOLE, KEEP),
    st.builds(ScaleOut, WHOLE, KEEP),
    st.builds(ScaleIn, st.lists(WHOLE).map(tuple), KEEP),
    st.builds(Migrate, WHOLE, TEXT),
    st.builds(Profile, WHOLE, WHOLE, WHOLE, KEEP),
    st.just(SaveCheckpoint()),
    st.just(StopTraining()),
)
POINTS = st.lists(st.builds(Point, WHOLE, WHOLE, WHOLE, REAL), max_size=3).map(tuple)
PROGRESS = st.builds(RequestProgress, TEXT, TEXT, TEXT, TEXT, WHOLE, REAL, POINTS)
STATES = st.sampled_from(["starting", "ready", "training", "leaving"])
PEERS = st.builds(PeerStatus, WHOLE, st.none() | WHOLE, TEXT, WHOLE, STATES, REAL)
FIGURES = st.builds(JobMetrics, *[st.none() | WHOLE] * 3, *[st.none() | REAL] * 2)
STATUSES = st.builds(
    JobStatus,
    TEXT,
    st.sampled_from(["elastic", "inelastic"]),
    st.builds(MembershipStatus, *[WHOLE] * 5),
    st.lists(PEERS, max_size=3).map(tuple),
    FIGURES,
    st.none() | PROGRESS,
    st.lists(st.builds(Trouble, REAL, TEXT), max_size=3).map(tuple),
)


@given(st.builds(JobRequest, st.text(min_size=1), ACTIONS, st.none() | WHOLE))
def test_requests(request: JobRequest) -> None:
    assert to_request(pb.JobRequest.FromString(from_request(request).SerializeToString())) == request


@given(PROGRESS)
def test_progress(progress: RequestProgress) -> None:
    assert to_progress(pb.RequestProgress.FromString(from_progress(progress).SerializeToString())) == progress


@given(STATUSES)
def test_statuses(status: JobStatus) -> None:
    assert to_status(pb.JobStatus.FromString(from_status(status).SerializeToString())) == status
