"""The desk of an agent: what it makes of the job's events for those who ask."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from kungfu.event_log import events
from kungfu.event_log.record_follower import NewRecords
from kungfu.runtime.core.cluster.cluster import Cluster, JobLimits, Processes, Starting
from kungfu.runtime.core.cluster.events import Tick, TrainingFinished, ViewStarted
from kungfu.runtime.core.request import Asked, Leave, Profile, Request, Resize, SaveCheckpoint, SetLimits
from kungfu.runtime.core.requests.profiling import TimedStep
from kungfu.runtime.core.view import View
from kungfu.runtime.job_api.job_service import ProgressQuery, Query, StatusQuery, Subject
from kungfu.runtime.job_api.request_handler import RequestHandler
from kungfu.runtime.job_api.status import JobMetrics, JobStatus, RequestProgress
from kungfu.runtime.settings import Deadlines, Limits, Settings
from tests.runtime.job_api.served_job import view

SETTINGS = Settings("job", -1, "127.0.0.1:80", "", "local", Limits(1, 4), Deadlines(60.0, 20.0))
ROW = {"step": 7, "epoch": 1, "size": 2, "batch": 64, "loss": 0.5, "samples_per_s": 128.0}


class Agent:
    """Asks a desk, and moves its job."""

    now = 0.0

    def __init__(self) -> None:
        self.recorded: list[events.LoggedEvent] = []
        self.handler = RequestHandler(
            SETTINGS, scaling="elastic", record=self.recorded.append, process_of=lambda peer: 100 + peer
        )
        self.cluster = Cluster(JobLimits(SETTINGS.deadlines))
        self.moves(view(3, 0, 1))

    def handle(self, event: Any) -> None:
        self.handler.handle(event, self.cluster, self.now)
        self.handler.send_replies()

    def moves(self, after: View, *starting: int) -> None:
        """A view is in force; those who are starting are beside it."""
        people = Processes(alive=frozenset(after.ids) | set(starting))
        on_the_way = {peer: Starting(self.now) for peer in starting}
        self.cluster = replace(self.cluster, view=after, processes=people, starting=on_the_way)
        self.handle(ViewStarted(after))

    def ask(self, subject: Subject) -> Any:
        query = Query(subject)
        self.handle(query)
        return query.reply.result(timeout=0.0)

    def asked(self, action: Request, *, name: str = "r") -> RequestProgress:
        return self.ask(Asked(action, id=name))

    def look(self) -> RequestProgress:
        return self.ask(ProgressQuery("r"))

    def status(self) -> JobStatus:
        return self.ask(StatusQuery())


def test_a_peer_is_told_with_how_long_it_has_been_as_it_is() -> None:
    agent = Agent()
    agent.now = 5.0
    agent.moves(view(4, 1), 2)
    agent.now = 7.0
    agent.handle(Tick())
    assert [(one.id, one.state, one.for_s) for one in agent.status().peers] == [
        (1, "training", 7.0),
        (2, "starting", 2.0),
    ]


def test_joiners_that_never_got_ready_refuse_what_waits_for_them_with_their_reason() -> None:
    agent = Agent()
    agent.asked(Resize(3))
    agent.handler.on_record(events.MissingEvent(peers=(2,), reason="peer 2: ended (exit code 5)"))
    agent.handle(Tick())
    assert (agent.look().state, agent.look().reason) == ("refused", "peer 2: ended (exit code 5)")
    assert [one.text for one in agent.status().troubles] == ["peer 2 never got ready: peer 2: ended (exit code 5)"]


def test_a_reply_waits_until_it_is_sent() -> None:
    agent, query = Agent(), Query(Asked(Resize(3), id="r"))
    assert agent.handler.handle(query, agent.cluster, agent.now)
    assert not query.reply.done(), "the followers do not know of the request yet"
    agent.handler.send_replies()
    assert query.reply.result(timeout=0.0).state == "accepted"


def test_joiners_that_never_got_ready_are_nothing_to_what_does_not_wait_for_them() -> None:
    agent = Agent()
    agent.handler.on_record(events.MissingEvent(peers=(2,), reason="host b is lost"))  # between two events
    assert agent.asked(Resize(3)).state == "accepted", "a later request"
    agent.handle(Tick())
    assert agent.look().state == "accepted"
    agent = Agent()
    agent.handler.on_record(events.MissingEvent(peers=(2,), reason="of a policy"))
    agent.handle(Tick())
    agent.asked(Leave((0,)))  # peers that leave
    agent.handle(Tick())
    assert agent.look().state == "accepted"
    agent.moves(view(4, 1))
    assert agent.look().state == "carried out"


def test_a_checkpoint_that_could_not_be_written_is_refused_with_where_and_why() -> None:
    agent = Agent()
    agent.asked(SaveCheckpoint())
    failed = events.CheckpointEvent(
        step=7, rule="kungfu checkpoint", path="ckpt", error="No space left on device", seconds=0.1, stop_s=0.0
    )
    agent.handle(NewRecords(events=(structs.replace(failed, rule="a policy"),)))
    assert agent.look().state == "accepted"
    agent.handle(NewRecords(events=(failed,)))
    assert (agent.look().state, agent.look().reason) == ("refused", "ckpt: No space left on device")


def test_steps_beside_which_somebody_gets_ready_do_not_count_in_a_profile() -> None:
    agent = Agent()
    agent.asked(Profile(2, 2, 5))
    agent.moves(view(3, 0, 1), 2)
    agent.handle(NewRecords(rows=(ROW,) * 20))
    assert agent.look().state == "accepted"
    agent.moves(view(3, 0, 1))
    agent.handle(NewRecords(rows=(ROW,) * 20))
    (point,) = agent.look().points
    assert (agent.look().state, point.size, point.steps, point.samples_per_s) == ("carried out", 2, 5, 128.0)


def test_once_training_is_over_nothing_is_taken_any_more() -> None:
    agent = Agent()
    agent.asked(Resize(3))
    agent.handle(TrainingFinished(0, leaving=True))
    assert agent.look().state == "accepted", "that one has only left"
    agent.handle(TrainingFinished(1, leaving=False))
    assert "training is over" in agent.look().reason
    assert "training is over" in agent.asked(Resize(2), name="s").reason


def test_the_speed_of_each_peer_is_told_where_a_policy_measures_it() -> None:
    agent = Agent()
    assert [(one.speed, one.is_straggler) for one in agent.status().peers] == [(None, None)] * 2
    agent.handle(NewRecords(rows=({**ROW, "straggler_fractions": {"0": 0.8, "1": 0.79, "9": 0.1}},)))
    assert [(one.id, one.speed, one.is_straggler) for one in agent.status().peers] == [(0, 0.8, False), (1, 0.79, True)]
    # One takes the place of another: of the newcomer nothing is known yet.
    agent.moves(view(4, 0, 2))
    assert [(one.id, one.speed, one.is_straggler) for one in agent.status().peers] == [
        (0, 0.8, False), (2, None, None)
    ]  # fmt: skip


def test_a_hold_and_moved_limits_are_in_the_status_and_recorded_with_their_reason() -> None:
    agent = Agent()
    agent.asked(Resize(2, hold_s=60.0))
    agent.asked(SetLimits(maximum=3), name="s")
    agent.now = 20.0
    where = agent.status().membership
    assert (where.minimum, where.maximum, where.held_at, where.held_for_s) == (1, 3, 2, 40.0)
    assert agent.asked(Resize(4), name="t").reason == "a size of 4: this job takes 1 to 3 (kungfu-run --min, --max)"
    agent.now = 60.0
    agent.handle(Tick())
    where = agent.status().membership
    assert (where.maximum, where.held_at, where.held_for_s) == (3, None, None)
    told = [one for one in agent.recorded if isinstance(one, events.SizeLimitsEvent)]
    assert [(one.maximum, one.held, one.why) for one in told] == [
        (4, 2, "kungfu resize 2 --hold 60"), (3, 2, "kungfu resize --max 3"), (3, None, "the time of the hold is over"),
    ]  # fmt: skip
    assert (told[0].until is not None, told[1].until == told[0].until, told[2].until) == (True, True, None)


# ---- the newest steps and the latest problems -----------------------------------------------------------------------


def test_the_status_has_the_metrics_of_the_job_as_its_record_makes_it() -> None:
    agent = Agent()
    assert agent.ask(StatusQuery()).figures == JobMetrics()
    rows = tuple({**ROW, "step": step, "batch": 64 - 28 * (step % 2)} for step in range(1, 4))
    agent.handle(NewRecords(rows=(*rows, {**ROW, "step": 4, "loss": "NaN", "straggler_fractions": {"0": 1.0}})))
    agent.handler.on_record(events.NotFiniteEvent(what="loss", step=4, value=math.nan))
    status = agent.ask(StatusQuery())
    figures = status.figures
    assert (figures.step, figures.epoch, figures.global_batch_size, figures.samples_per_s) == (4, 1, 64, 128.0)
    assert math.isnan(figures.loss or 0.0)
    assert [one.speed for one in status.peers] == [1.0, None]
    (trouble,) = status.troubles
    assert (trouble.text, trouble.time > 0) == ("step 4: the loss is NaN", True), "an event gets the present time"


@pytest.mark.parametrize(("speed", "point"), [(None, []), (math.nan, []), (32.0, [TimedStep(2, 64, 2.0)])])
def test_a_step_without_a_known_time_has_no_share_in_a_profile(speed: float | None, point: list[TimedStep]) -> None:
    agent = Agent()
    agent.handle(NewRecords(rows=({**ROW, "samples_per_s": speed},)))
    assert list(agent.handler._measured) == point
