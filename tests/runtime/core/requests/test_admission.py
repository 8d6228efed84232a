"""What a request is refused for, whatever else is under way."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from kungfu.runtime.core import request
from kungfu.runtime.core.requests.admission import AdmissionContext, refusal_of
from kungfu.runtime.core.view import Peer, View
from kungfu.runtime.settings import Limits

THREE = View(5, (Peer(0, "a:1"), Peer(2, "a:2"), Peer(7, "a:3")))
ELASTIC = AdmissionContext(THREE, Limits(2, 4), "elastic", {"a": 0, "localhost": 0}, 60.0, free={0: 9}, most=6)
NO_HOST = "no agent of this job runs on 'b': all its peers are on one host, a alias localhost"
OUT_OF_THREE = "a size of 4: this job takes 2 to 3 (kungfu-run --min, --max)"
IS_FULL = "a has no free slot; name a host that has one, or give a number of peers"
HELD = replace(ELASTIC, held_size=3)
INELASTIC, TINY = replace(ELASTIC, scaling="inelastic"), replace(ELASTIC, batch=3)
ALONE = replace(ELASTIC, view=View(9, (Peer(2, "a:1"),)), limits=Limits(1, 4))

OUT_OF_LIMITS = "a size of {}: this job takes 2 to 4 (kungfu-run --min, --max)"
TOO_FEW = "without {} the job would have {}; it takes no fewer than {} (kungfu-run --min)"
NOT_FROM_OUTSIDE = "{!r} may not be asked for from outside the training graph"
DECLARED = "the job was declared inelastic (kungfu-run --inelastic): its peers may not be changed from outside"
NO_HOLD = "a hold of {:g} s: give 0 < SECONDS <= 1e+09, or no number for a hold until it is released"
IS_HELD = "a size from {} to {}: the job is held at 3; end the hold (kungfu resize --release)"
NO_SAMPLE = (
    "a batch of 3 samples cannot be shared by 4 peers, and it is to stay; "
    "--keep local_batch_size lets it grow with them"
)
NO_BATCHES = "batches of {}: give different numbers of samples, at least one for each of 4 peers"
LARGER = (request.Resize(4), request.ScaleOut(1), request.Profile(2, 4, 5))
OTHERS = (request.Leave((0,)), request.Migrate(0, "a"), request.SetLimits(1), request.Release())


@pytest.mark.parametrize(
    ("job", "action"),
    [
        *((ELASTIC, one) for one in (*LARGER, request.Resize(2), request.Leave((0,)), request.Migrate(2, "localhost"))),
        (ELASTIC, request.Leave((7, 7))),  # it leaves once
        (TINY, request.Resize(3)),
        (TINY, request.Resize(4, keep="local_batch_size")),
        *((ELASTIC, request.Resize(3, hold_s=seconds)) for seconds in (0.5, 1e9, math.inf)),
        *((ELASTIC, request.SetLimits(*limits)) for limits in ((1, None), (4, 6), (None, 2), (None, 6), (3, 3))),
        (HELD, request.SetLimits(3, 3)),
        *((job, request.Release()) for job in (ELASTIC, HELD)),
        *((job, one) for job in (ELASTIC, INELASTIC) for one in (request.SaveCheckpoint(), request.StopTraining())),
    ],
)
def test_what_fits_is_not_refused(job: AdmissionContext, action: request.Request) -> None:
    assert refusal_of(request.Asked(action, id="r", if_view=5), job) is None


@pytest.mark.parametrize(
    ("job", "action", "reason"),
    [
        (ELASTIC, request.Resize(5), OUT_OF_LIMITS.format(5)),
        (ELASTIC, request.Resize(1), OUT_OF_LIMITS.format(1)),
        *(
            (ELASTIC, request.Resize(3, hold_s=seconds), NO_HOLD.format(seconds))
            for seconds in (0.0, -5.0, math.nan, 2e9)
        ),
        (ELASTIC, request.SetLimits(), "neither a minimum nor a maximum was given"),
        (ELASTIC, request.SetLimits(5), "a size from 5 to 4: give 1 <= --min <= --max"),
        (ELASTIC, request.SetLimits(None, 1), "a size from 2 to 1: give 1 <= --min <= --max"),
        (ELASTIC, request.SetLimits(0, 3), "a size from 0 to 3: give 1 <= --min <= --max"),
        (
            ELASTIC,
            request.SetLimits(None, 7),
            "a maximum of 7: this job was started for up to 6 peers (kungfu-run --max)",
        ),
        (TINY, request.SetLimits(4), NO_SAMPLE),
        (HELD, request.SetLimits(None, 2), IS_HELD.format(2, 2)),
        (HELD, request.SetLimits(4), IS_HELD.format(4, 4)),
        (ELASTIC, request.ScaleOut(0), "scale-out by 0: give how many peers shall come, 1 or more"),
        (ELASTIC, request.ScaleOut(2), OUT_OF_LIMITS.format(5)),
        (ELASTIC, request.ScaleOut(0, host="b"), NO_HOST),
        (replace(ELASTIC, limits=Limits(2, 3)), request.ScaleOut(0, host="a"), OUT_OF_THREE),
        (replace(ELASTIC, free={}), request.ScaleOut(0, host="a"), IS_FULL),
        (ELASTIC, request.Leave(()), "no peer was named that shall leave"),
        (ELASTIC, request.Leave((2, 3)), "peer 3 is not in view 5, whose peers are 0, 2 and 7"),
        (ELASTIC, request.Leave((1, 3)), "peers 1, 3 are not in view 5, whose peers are 0, 2 and 7"),
        (ALONE, request.Leave((3,)), "peer 3 is not in view 9, whose only peer is 2"),
        (ELASTIC, request.Leave((0, 7)), TOO_FEW.format("2 of 3 peers", 1, 2)),
        (ALONE, request.Leave((2,)), TOO_FEW.format("the only peer", 0, 1)),
        (ELASTIC, request.Migrate(4, "a"), "peer 4 is not in view 5, whose peers are 0, 2 and 7"),
        (
            ELASTIC,
            request.Migrate(2, "b"),
            NO_HOST,
        ),
        (ELASTIC, request.Profile(3, 2, 10), "sizes from 3 to 2: give 1 <= MIN <= MAX"),
        (ELASTIC, request.Profile(2, 4, 0), "0 steps of each size: give 1 to 1000000"),
        (ELASTIC, request.Profile(1, 4, 10), OUT_OF_LIMITS.format(1)),
        (ELASTIC, request.Profile(2, 4, 10, batches=(8, 3)), NO_BATCHES.format("8, 3")),
        (ELASTIC, request.Profile(2, 4, 10, batches=(8, 8)), NO_BATCHES.format("8, 8")),
        (
            ELASTIC,
            request.Profile(2, 4, 10, "local_batch_size", (8,)),
            "batches of 8, and --keep local_batch_size: give one of the two",
        ),
        (
            ELASTIC,
            request.Profile(2, 4, 10, batches=(8,)),
            "the batch of the job, to which a profile of several batches returns, is not measured yet; ask again",
        ),
        (ELASTIC, request.SetBatch(64.0), NOT_FROM_OUTSIDE.format("set the global batch size to 64")),
        (ELASTIC, request.Leave((0,), "noticed"), NOT_FROM_OUTSIDE.format("scale-in 0")),
        (ELASTIC, request.Retry(), NOT_FROM_OUTSIDE.format("retry")),
        *((TINY, one, NO_SAMPLE) for one in LARGER),
        *((INELASTIC, one, DECLARED) for one in (*LARGER, *OTHERS)),
        (replace(ELASTIC, end_reason="training is over"), request.StopTraining(), "training is over"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_value_and_what_is_allowed(
    job: AdmissionContext, action: request.Request, reason: str
) -> None:
    assert refusal_of(request.Asked(action, id="r"), job) == reason


def test_another_view_than_presumed_comes_before_everything_that_may_follow_from_it() -> None:
    reason = refusal_of(request.Asked(request.Leave((3,)), id="r", if_view=4), ELASTIC)
    assert reason == "the job is in view 5, not in view 4 as the request presumes; look again"


def test_before_the_first_view_nothing_is_taken() -> None:
    reason = refusal_of(request.Asked(request.StopTraining(), id="r"), replace(ELASTIC, view=None))
    assert "does not train yet" in (reason or "")
