"""Requests, answers and statuses come back from their messages as they were; faulty requests are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.errors import UsageError
from kungfu.runtime.core.request import AGENT, Asked, Leave, Profile, Resize, StopTraining
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.job_api import job_service
from kungfu.runtime.job_api.request_plan import RequestPlan
from kungfu.runtime.job_api.status import JobStatus, RequestProgress
from tests.runtime.ipc.test_convert import values_of

SENT: dict[type, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    RequestProgress: (job_service.from_progress, job_service.to_progress),
    JobStatus: (job_service.from_status, job_service.to_status),
    RequestPlan: (job_service.from_plan, job_service.to_plan),
}


@pytest.mark.parametrize("kind", SENT)
@given(st.data())
def test_a_value_comes_over_the_wire_as_it_was(kind: type, data: st.DataObject) -> None:
    send, receive = SENT[kind]
    value = data.draw(values_of(kind))
    message = send(value)
    assert receive(type(message).FromString(message.SerializeToString())) == value


@pytest.mark.parametrize("action", [Resize(10**20), Leave((2**70,)), Profile(1, 2, 10**30)])
def test_a_number_that_no_message_can_carry_is_a_usage_error_with_the_request(action: Any) -> None:
    with pytest.raises(UsageError, match=r"^(resize|scale-in|profile) .* cannot be asked for: .*out of range"):
        job_service.from_request(Asked(action, id="r"))


@pytest.mark.parametrize("id", ["", AGENT])
def test_a_request_without_an_id_of_its_own_is_refused(id: str) -> None:
    with pytest.raises(UsageError, match="the request has no id"):
        job_service.to_request(pb.Asked(resize=pb.Resize(size=3), id=id))


def test_what_superseded_a_request_is_for_the_barrier_to_say_and_not_for_its_sender() -> None:
    message = job_service.from_request(Asked(StopTraining(), "me", id="1", superseded_by="nobody"))
    assert job_service.to_request(message) == Asked(StopTraining(), "me", id="1")
