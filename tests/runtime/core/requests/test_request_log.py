"""What becomes of requests, by hand and over random histories."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.runtime.core.cluster.events import Tick, TrainingFinished, ViewStarted
from kungfu.runtime.core.request import (
    AGENT,
    Asked,
    Leave,
    Migrate,
    Profile,
    Release,
    Request,
    Resize,
    SaveCheckpoint,
    ScaleOut,
    SetBatch,
    SetLimits,
    StopTraining,
)
from kungfu.runtime.core.requests import request_log
from kungfu.runtime.core.requests.admission import AdmissionContext
from kungfu.runtime.core.requests.profiling import WARM_UP_STEPS, TimedStep
from kungfu.runtime.core.size_limits import Hold, SizeLimits
from kungfu.runtime.core.terms import Terms
from kungfu.runtime.core.view import Peer, View
from kungfu.runtime.settings import Limits

PATIENCE_S = 60.0
ENDED = TrainingFinished(0, leaving=False)


def view(version: int, *peers: int) -> View:
    return View(version, tuple(Peer(peer, f"a:{peer}") for peer in peers))


@dataclass
class Job:
    """A job as its agent knows it, and the requests that were sent to its coordinator."""

    view: View = field(default_factory=lambda: view(1, 0, 1))
    limits: Limits = field(default_factory=lambda: Limits(1, 4))
    log: request_log.RequestLog = field(default_factory=request_log.RequestLog)
    sent: list[Asked] = field(default_factory=list)
    now: float = 0.0
    end_reason: str = ""
    batch: int | None = 6

    def hears(self, event: request_log.Event) -> list[Asked]:
        sizes = self.log.sizes
        context = AdmissionContext(
            self.view, sizes.within(self.limits), "elastic", {"a": 0}, PATIENCE_S, self.end_reason, free={0: 9},
            most=self.limits.maximum, held_size=sizes.hold.size if sizes.hold else None, time=1000.0 + self.now,
            batch=self.batch,
        )  # fmt: skip
        self.log, externals = request_log.react(self.log, event, context, self.now)
        self.sent += externals
        return externals

    def asked(self, name: str, action: Request, *, if_view: int | None = None) -> request_log.Answer:
        request = Asked(action, id=name, if_view=if_view)
        self.hears(request)
        answer = request_log.first_answer(self.log, request)
        assert answer is not None
        return answer

    def moved(self, *peers: int) -> list[Asked]:
        """Another view is in force."""
        self.view = view(self.view.version + 1, *peers)
        return self.hears(ViewStarted(self.view))

    def trained(self, steps: int, *, samples: int = 6) -> list[Asked]:
        """So many steps of the size that the job has; at size n one takes 1/n s."""
        size = self.view.size
        return self.hears(request_log.StepsMeasured((TimedStep(size, samples, 1 / size),) * steps))

    def state(self, name: str) -> str:
        return self.log.entries[name].newest.state

    def outcome(self, name: str) -> tuple[str, str]:
        return self.state(name), self.log.entries[name].newest.reason


def growing() -> Job:
    """A job of two peers that was asked for a third by request r."""
    job = Job()
    job.asked("r", Resize(3))
    return job


def size_of(external: Asked) -> int:
    assert isinstance(external.what, Resize)
    return external.what.size


@pytest.mark.parametrize(
    ("action", "external", "after"),
    [
        (Resize(3), Asked(Resize(3), "kungfu resize 3", id="r"), (0, 1, 2)),
        # only a policy limits the global batch
        (Resize(3, max_global_batch=0), Asked(Resize(3), "kungfu resize 3", id="r"), (0, 1, 2)),
        (
            ScaleOut(2, keep="local_batch_size"),
            Asked(Resize(4, keep="local_batch_size"), "kungfu scale-out 2", id="r"),
            (0, 1, 2, 3),
        ),
        (ScaleOut(0, host="a"), Asked(Resize(4, host=0), "kungfu scale-out a", id="r"), (0, 1, 2, 3)),
        (Leave((0, 0)), Asked(Leave((0,), "now", 1), "kungfu scale-in 0 0", id="r"), (1,)),
        (Migrate(1, "a"), Asked(Leave((1,), "replaced", 2, host=0), "kungfu migrate 1 -> a", id="r"), (0, 2)),
    ],
)
def test_a_request_for_other_peers_is_carried_out_when_the_view_is_as_asked_for(
    action: Request, external: Asked, after: tuple[int, ...]
) -> None:
    job = Job()
    assert job.asked("r", action) == request_log.Answer("accepted", view=1)
    assert job.sent == [external]
    job.moved(*after)
    assert job.log.entries["r"].newest == request_log.Answer("carried out", view=2)
    assert request_log.current(job.log) is None


def test_a_view_that_is_not_as_asked_for_may_have_a_new_coordinator_who_is_told_too() -> None:
    job = Job()
    job.asked("r", Resize(4))
    assert job.moved(1) == job.sent[:1]
    assert job.state("r") == "accepted"
    job.moved(1, 2, 3, 4)
    assert job.state("r") == "carried out"


def test_a_request_for_the_present_size_is_carried_out_and_still_forwarded() -> None:
    job = Job()
    assert job.asked("r", Resize(2)) == request_log.Answer("accepted", view=1)
    assert job.outcome("r") == ("carried out", "it was so already")
    assert [size_of(external) for external in job.sent] == [2]


def test_a_checkpoint_is_done_when_the_coordinator_says_so() -> None:
    job = Job()
    job.asked("r", SaveCheckpoint())
    assert job.moved(1) == job.sent[:1], "another coordinator may not know of it"
    job.hears(request_log.CoordinatorReplied("another"))
    assert job.state("r") == "accepted"
    job.hears(request_log.CoordinatorReplied("r", result="written to ckpt-4"))
    assert job.outcome("r") == ("carried out", "written to ckpt-4")


def test_what_the_coordinator_cannot_do_is_refused_with_its_reason() -> None:
    job = growing()
    job.hears(request_log.CoordinatorReplied("r"))
    assert job.state("r") == "accepted", "only its view shows that it is carried out"
    job.hears(request_log.CoordinatorReplied("r", refusal="peer 2: ended (exit code 5)"))
    assert job.outcome("r") == ("refused", "peer 2: ended (exit code 5)")
    assert job.asked("s", Resize(1)).state == "accepted"


def test_only_one_request_is_under_way_and_the_other_hears_which() -> None:
    job = growing()
    job.now = 4.0
    assert job.asked("s", Leave((1,))).reason == "resize 3 is under way, asked for 4 s ago as 'r'"
    assert len(job.sent) == 1


def test_stop_takes_the_place_of_what_is_under_way_and_is_done_when_training_is_over() -> None:
    job = growing()
    assert job.asked("s", StopTraining()).state == "accepted"
    assert job.outcome("r") == ("refused", "the job was told to stop")
    assert "stop is under way" in job.asked("t", StopTraining()).reason
    by_itself = growing()
    for one in (job, by_itself):
        one.end_reason = "training is over"
        one.hears(ENDED)
    assert job.outcome("s") == ("carried out", "training has ended")
    assert by_itself.outcome("r") == ("refused", "training is over"), "nobody had asked for the end"


def test_what_is_not_carried_out_in_time_expires_and_another_request_may_come() -> None:
    job = growing()
    job.now = PATIENCE_S
    job.hears(Tick())
    assert job.state("r") == "accepted"
    job.now = PATIENCE_S + 0.1
    job.hears(Tick())
    assert job.outcome("r") == ("expired", "not carried out within 60 s; the job may still carry it out")
    assert job.asked("s", Resize(1)).state == "accepted"


def test_an_id_that_was_given_to_another_request_is_refused_and_changes_nothing() -> None:
    job = growing()
    log = job.log
    answer = job.asked("r", Resize(4))
    reason = "the id 'r' was given to another request, resize 3; choose a new one"
    assert answer == request_log.Answer("refused", reason)
    assert job.log == log


def test_the_log_forgets_the_oldest_answers_but_no_id_and_not_what_is_under_way() -> None:
    job = Job()
    job.asked("0", StopTraining())
    job.hears(request_log.CoordinatorReplied("0", refusal="not now"))
    job.asked("under way", Resize(3))
    for name in range(1, request_log.REMEMBERED + 5):
        job.asked(str(name), Resize(9))
    kept = [name in job.log.entries for name in ("0", "5", "under way", str(request_log.REMEMBERED + 4))]
    assert kept == [False, False, True, True]
    messages, log = list(job.sent), job.log
    assert len(log.entries) == request_log.REMEMBERED
    for action in (StopTraining(), Resize(3)):
        request = Asked(action, id="0")
        assert job.hears(request) == []
        assert request_log.refusal_of_id(job.log, request) == (
            "the id '0' was given to a request of this job that ended long ago; choose a new one"
        )
    assert (job.sent, job.log) == (messages, log)


def test_a_job_that_cannot_tell_any_more_whether_an_id_is_new_takes_only_stop() -> None:
    job = Job(log=request_log.RequestLog(forgotten="11-byte-id.\n" * request_log.MOST_FORGOTTEN))
    assert job.hears(Asked(Resize(3), id="new")) == []
    assert "takes only stop" in (request_log.refusal_of_id(job.log, Asked(Resize(3), id="new")) or "")
    assert [external.what for external in job.hears(Asked(StopTraining(), id="end"))] == [StopTraining()]


# ---- profiles --------------------------------------------------------------------------------------------------------


def test_a_profile_goes_up_and_down_through_the_sizes_and_home_again() -> None:
    job = Job(limits=Limits(1, 3))
    job.asked("p", Profile(1, 3, 2))
    assert [(external.id, size_of(external)) for external in job.sent] == [("p/0", 3)]
    job.trained(50)  # not of the size that is asked for
    job.moved(0, 1, 2)
    job.trained(WARM_UP_STEPS + 1)
    job.trained(1)
    assert [(external.id, size_of(external)) for external in job.sent[1:]] == [("p/1", 2)]
    job.moved(0, 1)
    job.trained(WARM_UP_STEPS + 2)
    job.moved(0)
    job.trained(WARM_UP_STEPS + 2)
    assert job.state("p") == "accepted"
    assert [size_of(external) for external in job.sent] == [3, 2, 1, 2]
    job.moved(0, 3)
    answer = job.log.entries["p"].newest
    assert answer.state == "carried out"
    assert [(one.size, one.samples_per_s) for one in answer.points] == [(3, 18.0), (2, 12.0), (1, 6.0)]


def test_a_profile_of_batches_sets_each_at_each_size_and_goes_home_to_both() -> None:
    job = Job(limits=Limits(1, 3))
    job.asked("p", Profile(2, 3, 2, batches=(12, 24)))
    job.moved(0, 1, 2)
    for samples in (12, 24):
        job.trained(50)  # at the batch of before
        job.trained(WARM_UP_STEPS + 2, samples=samples)
    job.moved(0, 1)
    for samples in (12, 24):
        job.trained(WARM_UP_STEPS + 2, samples=samples)
    assert job.state("p") == "accepted", "the batch is not what it was"
    assert [one.what for one in job.sent] == [
        Resize(3), SetBatch(12), SetBatch(24), Resize(2), SetBatch(12), SetBatch(24), SetBatch(6),
    ]  # fmt: skip
    assert len({one.id for one in job.sent}) == len(job.sent), "the coordinator takes an order once"
    job.trained(1, samples=6)
    answer = job.log.entries["p"].newest
    assert answer.state == "carried out"
    assert [(one.size, one.samples // one.steps) for one in answer.points] == [(3, 12), (3, 24), (2, 12), (2, 24)]


def test_a_batch_is_sent_again_to_a_new_coordinator_and_a_lost_size_comes_before_it() -> None:
    job = Job(limits=Limits(1, 3))
    job.asked("p", Profile(2, 2, 2, batches=(12,)))
    job.trained(1)
    assert job.sent[-1].what == SetBatch(12)
    assert [one.what for one in job.moved(1, 4)] == [SetBatch(12)], "two other peers"
    assert [one.what for one in job.moved(4)] == [Resize(2)], "one was lost"
    assert [one.what for one in job.moved(4, 5)] == [SetBatch(12)]
    job.now += 1.1 * PATIENCE_S
    assert [one.what for one in job.hears(Tick())] == [Resize(2), SetBatch(6)]
    state, reason = job.outcome("p")
    assert state == "expired"
    assert "an epoch needs at least 12 samples, and no policy may set the batch" in reason


def test_a_profile_of_the_present_size_alone_changes_nothing() -> None:
    job = Job()
    job.asked("p", Profile(2, 2, 4))
    job.trained(WARM_UP_STEPS + 4)
    assert job.state("p") == "carried out"
    assert [size_of(external) for external in job.sent] == [2]


def test_a_profile_that_cannot_reach_a_size_tells_what_it_has_and_goes_home() -> None:
    job = Job()
    job.asked("p", Profile(1, 2, 1))
    job.trained(WARM_UP_STEPS + 1)
    assert job.hears(request_log.CoordinatorReplied("p/1", refusal="it cannot be")) == [
        Asked(Resize(2), "back to the size before a profile that did not come to its end", id="p/home")
    ]
    answer = job.log.entries["p"].newest
    assert (answer.state, answer.reason, len(answer.points)) == ("refused", "it cannot be", 1)


def test_a_profile_expires_only_when_it_makes_no_progress() -> None:
    job = Job()
    job.asked("p", Profile(2, 2, 10))
    for _ in range(12):
        job.now += 0.9 * PATIENCE_S
        job.trained(1)
        job.hears(Tick())
    assert job.state("p") == "accepted"
    job.now += 1.1 * PATIENCE_S
    assert [external.id for external in job.hears(Tick())] == ["p/home"]
    assert job.state("p") == "expired"


# ---- holds and limits ------------------------------------------------------------------------------------------------


def notice(by: str) -> Asked:
    """What a coordinator is sent so that it learns of the limits of the size, which come with every request."""
    return Asked(SetLimits(), by, id=AGENT)


def held(size: int = 2, seconds: float = 600.0) -> Job:
    """A job of two peers that request h holds."""
    job = Job()
    job.asked("h", Resize(size, hold_s=seconds))
    return job


def test_a_hold_begins_as_its_request_is_accepted_and_ends_by_the_clock_of_the_agent() -> None:
    job = held()
    assert job.log.sizes == SizeLimits(hold=Hold(2, until=1600.0, expires=600.0), revision=1)
    assert job.outcome("h") == ("carried out", "")
    assert job.sent == [Asked(Resize(2), "kungfu resize 2 --hold 600", id="h")]
    job.now = 599.9
    assert job.hears(Tick()) == []
    job.now = 600.0
    assert job.hears(Tick()) == [notice("the end of the hold at 2")]
    assert job.log.sizes == SizeLimits(revision=2)
    assert job.hears(Tick()) == []


def test_a_hold_without_an_end_lasts_until_it_is_released_beside_a_request_under_way() -> None:
    job = held(3, math.inf)
    job.now = 1e9
    job.hears(Tick())
    assert (job.log.sizes.hold, job.state("h")) == (Hold(3), "expired")
    assert job.outcome("h")[1].endswith("the hold stays in force, until kungfu resize --release")
    job.asked("r", Resize(4, hold_s=math.inf))
    assert job.asked("free", Release()) == request_log.Answer("accepted", view=1)
    assert (job.outcome("free"), job.state("r")) == (("carried out", ""), "accepted")
    assert (job.sent[-1], job.log.sizes.hold) == (notice("kungfu resize --release"), None)
    count = len(job.sent)
    job.asked("again", Release())
    assert (job.outcome("again"), len(job.sent)) == (("carried out", "the size was not held"), count)


@pytest.mark.parametrize(
    ("action", "left"),
    [
        (Resize(2), None), (Resize(3, hold_s=math.inf), Hold(3)), (ScaleOut(1), None), (Leave((1,)), None),
        (Release(), None),
        *((one, Hold(2)) for one in (Migrate(1, "a"), Profile(1, 3, 5), SetLimits(maximum=3), SaveCheckpoint())),
        (StopTraining(), Hold(2)),
    ],
)  # fmt: skip
def test_a_change_of_the_size_by_hand_replaces_a_hold_and_nothing_else_does(action: Request, left: Hold | None) -> None:
    job = held(2, math.inf)
    job.asked("r", action)
    assert job.log.sizes.hold == left


def test_a_request_that_is_refused_changes_no_hold() -> None:
    job = held(2, math.inf)
    assert job.asked("r", Resize(9)).state == "refused"
    assert job.log.sizes.hold == Hold(2)
    job.asked("a", Resize(3, hold_s=math.inf))
    job.hears(request_log.CoordinatorReplied("a", refusal="no host has a free slot"))
    assert job.outcome("a")[1] == "no host has a free slot; the hold stays in force, until kungfu resize --release"
    assert job.log.sizes.hold == Hold(3), "nobody but this person has decided since"


@pytest.mark.parametrize(
    ("seconds", "is_released", "lasting"),
    [
        (math.inf, False, "; the hold stays in force, until kungfu resize --release"),
        (math.inf, True, ""),
        (600.0, False, "; the hold stays in force for 570 s more, until kungfu resize --release"),
        (20.0, False, ""),
    ],
)
def test_a_refused_size_tells_of_its_hold_only_while_that_lasts(
    seconds: float, is_released: bool, lasting: str
) -> None:
    job = held(3, seconds)
    if is_released:
        job.asked("free", Release())
    job.now = 30.0
    job.hears(Tick())
    job.hears(request_log.CoordinatorReplied("h", refusal="no slot"))
    assert job.outcome("h") == ("refused", f"no slot{lasting}")


def test_a_coordinator_whose_view_began_without_the_newest_limits_is_told() -> None:
    job = held(2, math.inf)
    job.view = view(2, 1, 2)
    newest = ViewStarted(job.view, Terms(sizes=SizeLimits(revision=1)))
    assert job.hears(newest) == []
    assert job.hears(ViewStarted(job.view)) == [notice("the limits of the size")]
    job.asked("r", Leave((2,)))
    assert job.hears(newest) == [notice("the limits of the size"), job.sent[-3]], "both"


@pytest.mark.parametrize("action", [Resize(3, "local_batch_size"), SetLimits(3, keep="local_batch_size")])
def test_a_size_that_is_sent_again_needs_no_notice_which_would_keep_another_batch(action: Request) -> None:
    job = held(2, math.inf)
    job.asked("free", Release())
    job.asked("r", action)
    again, job.view = job.sent[-1], view(2, 1)
    assert job.hears(ViewStarted(job.view)) == [again]


def test_limits_that_are_moved_hold_at_once_and_a_size_outside_them_is_awaited() -> None:
    job = Job()
    job.asked("up", SetLimits(minimum=3))
    assert job.sent == [Asked(SetLimits(3, 4), "kungfu resize --min 3", id="up")]
    assert (job.state("up"), job.log.sizes) == ("accepted", SizeLimits(minimum=3, revision=1))
    job.moved(0, 1, 2)
    assert job.outcome("up") == ("carried out", "")
    assert job.asked("low", Resize(2)).reason == "a size of 2: this job takes 3 to 4 (kungfu-run --min, --max)"
    job.asked("down", SetLimits(1, 3))
    assert (job.outcome("down"), job.log.sizes) == (("carried out", ""), SizeLimits(1, 3, revision=2))
    job.asked("same", SetLimits(1, 3))
    assert (job.outcome("same"), job.log.sizes.revision) == (("carried out", "it was so already"), 2)


# ---- over any history ------------------------------------------------------------------------------------------------

ACTIONS = st.one_of(
    st.builds(Resize, st.integers(0, 5), hold_s=st.sampled_from([None, 7.0, math.inf])),
    st.builds(SetLimits, st.none() | st.integers(1, 4), st.none() | st.integers(1, 4)),
    st.just(Release()),
    st.builds(ScaleOut, st.integers(0, 4)),
    st.builds(Leave, st.lists(st.integers(0, 6), max_size=3).map(tuple)),
    st.builds(Migrate, st.integers(0, 6), st.sampled_from(["a", "b"])),
    st.builds(Profile, *map(st.integers, (0, 0, 0), (4, 5, 3)), batches=st.sampled_from([(), (), (6, 12)])),
    st.just(SaveCheckpoint()),
    st.just(StopTraining()),
)
REQUESTS = st.builds(Asked, ACTIONS, id=st.sampled_from("uvwxyz"), if_view=st.none() | st.integers(1, 5))
VIEWS = st.lists(st.integers(0, 6), min_size=1, max_size=4, unique=True)
NAMES = st.sampled_from(["u", "v", "w/0", "w/1", "w/1/batch", "x", "y/home"])
STEPS = st.builds(TimedStep, st.integers(1, 4), st.sampled_from([6, 12]), st.just(0.5))
EVENTS = st.one_of(
    REQUESTS,
    VIEWS,
    st.builds(request_log.CoordinatorReplied, NAMES, st.sampled_from(["", "it cannot be"])),
    st.builds(request_log.StepsMeasured, st.lists(STEPS, max_size=9).map(tuple)),
    st.just(ENDED),
    st.just(Tick()),
)


Events = list[request_log.Event | list[int]]  # a list of peers is a new view


def happens(job: Job, event: request_log.Event | list[int]) -> None:
    job.now += 5.0
    if isinstance(event, list):
        job.moved(*event)
    else:
        job.end_reason = job.end_reason or ("training is over" if event == ENDED else "")
        job.hears(event)


@given(st.lists(EVENTS, max_size=40))
def test_at_most_one_request_is_under_way_and_an_end_is_final(events: Events) -> None:
    job = Job()
    ended: dict[str, request_log.Answer] = {}
    for event in events:
        happens(job, event)
        entries = job.log.entries
        open_ones = [name for name, entry in entries.items() if entry.newest.state == "accepted"]
        assert open_ones == ([] if job.log.under_way is None else [job.log.under_way])
        assert all(entries[name].newest == answer for name, answer in ended.items())
        ended |= {name: entry.newest for name, entry in entries.items() if name not in open_ones}
        assert all(entry.first.state in ("accepted", "refused") for entry in entries.values())
        assert all(entry.newest.reason for entry in entries.values() if entry.newest.state in ("refused", "expired"))


@given(st.lists(EVENTS, max_size=40), st.data())
def test_a_repeated_request_gets_the_first_answer_again_and_changes_nothing(
    events: Events, data: st.DataObject
) -> None:
    job, first = Job(), dict[str, tuple[Asked, request_log.Answer]]()
    for event in events:
        happens(job, event)
        if isinstance(event, Asked) and event.id not in first:
            answer = request_log.first_answer(job.log, event)
            assert answer is not None
            first[event.id] = event, answer
        if first and data.draw(st.booleans()):
            request, answer = first[data.draw(st.sampled_from(sorted(first)))]
            log, count = job.log, len(job.sent)
            job.hears(request)
            assert (job.log, len(job.sent)) == (log, count)
            assert request_log.first_answer(job.log, request) == answer


@given(st.lists(EVENTS, max_size=40))
def test_what_a_request_asks_of_the_coordinator_keeps_to_the_limits_of_the_job(events: Events) -> None:
    job = Job(limits=Limits(2, 3))
    for event in events:
        if isinstance(event, list) and not 2 <= len(event) <= 3:
            continue
        happens(job, event)
    # A request may lower the minimum.
    assert all(1 <= one.what.size <= 3 for one in job.sent if isinstance(one.what, Resize))
