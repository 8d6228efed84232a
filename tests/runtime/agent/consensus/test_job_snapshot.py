"""The state of a job that every agent holds, as the leader sends it with every change."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import get_args

from kungfu.runtime.agent.consensus.job_snapshot import (
    JobSnapshot,
    RequestLogEncoder,
    parse_request_log,
    parse_snapshot,
    serialize_snapshot,
)
from kungfu.runtime.core.cluster.cluster import Cluster, JobLimits
from kungfu.runtime.core.request import (
    Asked,
    Leave,
    Migrate,
    Profile,
    Request,
    Resize,
    Retry,
    SaveCheckpoint,
    ScaleOut,
    SetBatch,
    SetRate,
    StopTraining,
)
from kungfu.runtime.core.requests.profiling import Point, Survey
from kungfu.runtime.core.requests.request_log import (
    MOST_FORGOTTEN,
    REMEMBERED,
    Answer,
    LoggedRequest,
    RequestLog,
    refusal_of_id,
    with_entry,
)
from kungfu.runtime.settings import Deadlines


def asked(log: RequestLog, name: str) -> RequestLog:
    request, answer = Asked(Resize(9), id=name), Answer("refused", "a size of 9", 1)
    return with_entry(log, LoggedRequest(request, answer, answer, 0.0, 1.0))


def test_a_snapshot_comes_back_as_it_was() -> None:
    snapshot = JobSnapshot(Cluster(JobLimits(Deadlines())), pids={3: 4711})
    assert parse_snapshot(serialize_snapshot(snapshot)) == snapshot


def test_an_id_of_a_request_that_ended_long_ago_takes_16_bytes_at_most() -> None:
    log = RequestLog()
    for number in range(REMEMBERED + 1):
        log = asked(log, str(number))
    full = replace(log, forgotten=log.forgotten * MOST_FORGOTTEN)
    assert refusal_of_id(full, Asked(Resize(9), id="0")) is not None
    assert refusal_of_id(full, Asked(Resize(9), id="new")) is not None, "it takes no others"
    assert refusal_of_id(log, Asked(Resize(9), id="new")) is None
    assert parse_request_log(RequestLogEncoder().encode(full)) == full
    remembered, all_bytes = (len(RequestLogEncoder().encode(one)) for one in (log, full))
    assert (all_bytes - remembered) / MOST_FORGOTTEN < 16 < remembered / REMEMBERED / 10


def test_every_kind_of_request_comes_back_as_it_was() -> None:
    point = Point(2, 5, 320, 1.5)
    survey = Survey((2, 1), 4, 5, current=point, measured=(point,))
    kinds = [
        Resize(3, keep="local_batch_size", max_global_batch=96), Leave((3, 4), when="replaced", size=2, host=1),
        ScaleOut(2), Migrate(1, "b"), Profile(1, 4, 5), SetBatch(96.5),
        SetRate(0.1, over=4.0, unit="samples"), SaveCheckpoint(), StopTraining(), Retry(),
    ]  # fmt: skip
    assert {type(one) for one in kinds} == set(get_args(Request))
    log, answer = RequestLog(under_way="3"), Answer("accepted", points=(point,))
    for number, what in enumerate(kinds):
        request = Asked(what, "scale", 7, {"gns": math.inf}, won=("a",), id=str(number), if_view=number)
        log = with_entry(log, LoggedRequest(request, answer, answer, 0.5, 1.5, external=request, survey=survey))
    assert parse_request_log(RequestLogEncoder().encode(log)) == log


def test_a_log_that_has_not_changed_is_not_encoded_again() -> None:
    encoder, log = RequestLogEncoder(), asked(RequestLog(), "1")
    assert encoder.encode(log) is encoder.encode(log)
    assert parse_request_log(encoder.encode(asked(log, "2"))) == asked(log, "2")
