"""What a job's newest steps and troubles are."""

from __future__ import annotations

import math
from typing import Any

from kungfu.event_log.events import (
    DismissedEvent,
    MissingEvent,
    NotFiniteEvent,
    PeerEndedEvent,
    UndefinedEvent,
    ViewEvent,
)
from kungfu.runtime.core.requests.profiling import TimedStep
from kungfu.runtime.job_api.recent_metrics import RecentMetrics
from kungfu.runtime.job_api.status import JobMetrics


def row(step: int, *, size: int = 2, batch: int = 64, speed: float | None = 32.0) -> dict[str, Any]:
    return {"step": step, "epoch": 0, "size": size, "batch": batch, "loss": 0.25, "samples_per_s": speed}


def test_throughput_is_that_of_the_newest_steps_of_one_size() -> None:
    recent = RecentMetrics()
    for step in range(30):
        recent.add_step(row(step, speed=1.0))
    for step in range(30, 34):
        recent.add_step(row(step, size=3, batch=60, speed=30.0 if step % 2 else 60.0))
    assert recent.newest() == JobMetrics(33, 0, 60, 0.25, 40.0)


def test_a_loss_that_is_no_number_is_known_as_such_and_since_when() -> None:
    recent = RecentMetrics()
    recent.add_step({**row(41), "loss": "NaN", "samples_per_s": None})
    recent.add_event(NotFiniteEvent(what="loss", step=41, value=math.nan))
    loss = recent.newest().loss
    assert loss is not None
    assert math.isnan(loss)
    assert [trouble.text for trouble in recent.troubles] == ["step 41: the loss is NaN"]


def test_the_small_batch_at_the_end_of_an_epoch_is_not_the_batch_of_the_job() -> None:
    recent = RecentMetrics()
    for step, batch in enumerate([64, 36, 64, 36]):
        recent.add_step(row(step, batch=batch))
    assert recent.newest().global_batch_size == 64


def test_a_step_without_a_known_time_has_no_share_in_a_profile() -> None:
    recent = RecentMetrics()
    assert recent.add_step(row(1, speed=None)) is None
    assert recent.add_step(row(2, speed=math.nan)) is None
    assert recent.add_step(row(3)) == TimedStep(2, 64, 2.0)
    assert RecentMetrics().newest() == JobMetrics()


def test_troubles_are_remembered_but_not_the_end_of_a_peer_that_was_dismissed() -> None:
    recent = RecentMetrics(clock=lambda: 5.0)
    recent.add_event(DismissedEvent(peer=3, reason="the job wants 2 peers now"))
    recent.add_event(PeerEndedEvent(peer=3, how="killed by SIGKILL"))
    recent.add_event(PeerEndedEvent(peer=2, how="exit code 0"))
    recent.add_event(ViewEvent(version=2, peers=(0,)))
    assert recent.troubles == ()
    recent.add_event(PeerEndedEvent(peer=1, how="killed by SIGKILL"))
    recent.add_event(MissingEvent(peers=(4, 5), reason="peer 4: late"))
    recent.add_event(UndefinedEvent(step=104, what="noise_scale", since=5, missing=50, of=100))
    assert [(one.time, one.text) for one in recent.troubles] == [
        (5.0, "peer 1 ended: killed by SIGKILL"),
        (5.0, "peers 4 and 5 never got ready: peer 4: late"),
        (5.0, "step 104: the noise scale was NaN in 50 of 100 steps since step 5"),
    ]


def test_the_speeds_of_peers_are_the_newest_known_ones_of_one_size() -> None:
    recent = RecentMetrics()
    assert recent.job.speeds == {}
    recent.add_step({**row(1), "straggler_fractions": {"0": 1.0, "4": 0.25}})
    recent.add_step({**row(2), "straggler_fractions": {"0": 1.0, "4": 0.5}})
    recent.add_step(row(3))
    assert recent.job.speeds == {0: 1.0, 4: 0.5}, "the line of a step whose view ended with it has none"
    recent.add_step(row(4, size=3))
    assert recent.job.speeds == {}, "they are of another median"


def test_a_speed_that_is_no_number_is_not_known() -> None:
    recent = RecentMetrics()
    recent.add_step({**row(1), "straggler_fractions": {"0": "NaN", "1": None, "2": "Infinity", "3": 0.5}})
    assert recent.job.speeds == {3: 0.5}
