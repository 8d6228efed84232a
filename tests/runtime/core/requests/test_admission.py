"""What a request is refused for, whatever else is under way."""

from __future__ import annotations

from dataclasses import replace

import pytest

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
    StopTraining,
)
from kungfu.runtime.core.requests.admission import AdmissionContext, refusal_of
from kungfu.runtime.core.view import Peer, View
from kungfu.runtime.settings import Limits

THREE = View(5, (Peer(0, "a:1"), Peer(2, "a:2"), Peer(7, "a:3")))
ELASTIC = AdmissionContext(THREE, Limits(2, 4), "elastic", {"a": 0, "localhost": 0}, 60.0, free={0: 9})


@pytest.mark.parametrize(
    "action",
    [
        Resize(2),
        Resize(4),
        ScaleOut(1),
        Leave((0,)),
        Leave((7, 7)),  # it leaves once
        Migrate(2, "localhost"),
        Profile(2, 4, 1),
        SaveCheckpoint(),
        StopTraining(),
    ],
)
def test_what_fits_is_not_refused(action: Request) -> None:
    assert refusal_of(Asked(action, id="r", if_view=5), ELASTIC) is None


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        (Resize(5), "a size of 5: this job takes 2 to 4 (kungfu-run --min, --max)"),
        (Resize(1), "a size of 1: this job takes 2 to 4 (kungfu-run --min, --max)"),
        (ScaleOut(0), "scale-out by 0: give how many peers shall come, 1 or more"),
        (ScaleOut(2), "a size of 5: this job takes 2 to 4 (kungfu-run --min, --max)"),
        (Leave(()), "no peer was named that shall leave"),
        (Leave((2, 3)), "peer 3 is not in view 5, whose peers are 0, 2 and 7"),
        (Leave((1, 3)), "peers 1, 3 are not in view 5, whose peers are 0, 2 and 7"),
        (Leave((0, 7)), "without 2 of 3 peers the job would have 1; it takes no fewer than 2 (kungfu-run --min)"),
        (Migrate(4, "a"), "peer 4 is not in view 5, whose peers are 0, 2 and 7"),
        (Migrate(2, "b"), "no agent of this job runs on 'b': all its peers are on one host, a alias localhost"),
        (Profile(3, 2, 10), "sizes from 3 to 2: give 1 <= MIN <= MAX"),
        (Profile(2, 4, 0), "0 steps of each size: give 1 to 1000000"),
        (Profile(1, 4, 10), "a size of 1: this job takes 2 to 4 (kungfu-run --min, --max)"),
        (SetBatch(64.0), "'set the global batch size to 64' may not be asked for from outside the training graph"),
        (Leave((0,), "noticed"), "'scale-in 0' may not be asked for from outside the training graph"),
        (Retry(), "'retry' may not be asked for from outside the training graph"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_value_and_what_is_allowed(action: Request, reason: str) -> None:
    assert refusal_of(Asked(action, id="r"), ELASTIC) == reason


def test_another_view_than_presumed_comes_before_everything_that_may_follow_from_it() -> None:
    reason = refusal_of(Asked(Leave((3,)), id="r", if_view=4), ELASTIC)
    assert reason == "the job is in view 5, not in view 4 as the request presumes; look again"


def test_an_inelastic_job_may_be_checkpointed_and_stopped_and_nothing_else() -> None:
    rigid = replace(ELASTIC, scaling="inelastic")
    assert refusal_of(Asked(SaveCheckpoint(), id="r"), rigid) is None
    assert refusal_of(Asked(StopTraining(), id="r"), rigid) is None
    for action in (Resize(3), ScaleOut(1), Leave((0,)), Migrate(0, "a"), Profile(2, 4, 5)):
        assert "inelastic (kungfu-run --inelastic)" in (refusal_of(Asked(action, id="r"), rigid) or "")


def test_a_batch_that_stays_has_a_sample_for_every_peer() -> None:
    tiny = replace(ELASTIC, batch=3)
    for action in (Resize(4), ScaleOut(1), Profile(2, 4, 5)):
        assert refusal_of(Asked(action, id="r"), tiny) == (
            "a batch of 3 samples cannot be shared by 4 peers, and it is to stay; "
            "--keep local_batch_size lets it grow with them"
        )
    assert refusal_of(Asked(Resize(3), id="r"), tiny) is None
    assert refusal_of(Asked(Resize(4, keep="local_batch_size"), id="r"), tiny) is None


def test_before_the_first_view_and_after_training_nothing_is_taken() -> None:
    assert "does not train yet" in (refusal_of(Asked(StopTraining(), id="r"), replace(ELASTIC, view=None)) or "")
    assert (
        refusal_of(Asked(StopTraining(), id="r"), replace(ELASTIC, end_reason="training is over")) == "training is over"
    )


def test_the_only_peer_does_not_leave() -> None:
    alone = replace(ELASTIC, view=View(9, (Peer(2, "a:1"),)), limits=Limits(1, 4))
    reason = refusal_of(Asked(Leave((2,)), id="r"), alone)
    assert reason == "without the only peer the job would have 0; it takes no fewer than 1 (kungfu-run --min)"
    assert refusal_of(Asked(Leave((3,)), id="r"), alone) == "peer 3 is not in view 9, whose only peer is 2"
