"""What held under faults, by records that are written down here."""

from __future__ import annotations

from typing import Any

import pytest

from kungfu.cli.chaos.outcome import ChaosReport, report_chaos
from kungfu.cli.chaos.samples import SampleCheck
from kungfu.event_log.events import AnyEvent
from kungfu.testing.faults import Fault, Injection, parse
from tests.event_log.made import made

SAMPLES = SampleCheck(120, "120 samples")


def event(kind: str, time: float, **fields: Any) -> AnyEvent:
    return made(event=kind, time=time, **fields)


def view(time: float, version: int, *peers: int, begins: int = 0) -> list[AnyEvent]:
    span = event("span", time, what="join", peer=peers[0], view=version, step=begins)
    return [event("view", time, version=version, peers=[*peers]), span]


def begin(peers: int = 3) -> list[AnyEvent]:
    spawned = [event("spawned", 1.0, peer=peer, pid=100 + peer) for peer in range(peers)]
    return [*spawned, *view(2.0, 1, *range(peers))]


def rows(*times: float) -> list[dict[str, Any]]:
    return [{"step": step, "time": time, "batch": 12} for step, time in enumerate(times, start=1)]


def every(since: float, until: float, s: float = 0.5) -> list[float]:
    return [since + s * step for step in range(round((until - since) / s))]


def injected(text: str, at: float | None = 10.2, *, peers: tuple[int, ...] = (), **more: Any) -> Injection:
    (fault,) = parse(text)
    assert isinstance(fault, Fault)
    return Injection(fault, at, 20, peers, **{"until": at or 0.0, **more})


def report(one: Injection, events: list[AnyEvent], times: list[float], **more: Any) -> ChaosReport:
    given = {"job": "job", "since": 10.0, "within_s": 30.0, "samples": SAMPLES, "code": None, **more}
    return report_chaos([one], [*begin(), *events], rows(*times), **given)


def recovery(**more: Any) -> list[AnyEvent]:
    """Peer 0 is lost at 10.3; the others go on at 10.5, and peer 3 comes at 16."""
    told = {"step": 20, "from": 3, "to": 2, "view": 2, "lost": {"0": "killed by SIGKILL"}, "target": 3, "stop_s": 0.3}
    return [
        event("lost", 10.3, peer=0, rank=0, how="killed by SIGKILL"),
        event("regrouping", 10.4, version=2, peers=[1, 2], target=3),
        *view(10.5, 2, 1, 2, begins=20),
        event("spawned", 10.6, peer=3, pid=103),
        event("recovered", 11.0, noticed_s=0.1, regrouped_s=0.15, state_of=1, **told),
        *view(16.0, 3, 1, 2, 3, begins=27),
        event("rescale", 16.1, step=27, view=3, to=3, **{"from": 2}, joined=[3]),
        *([event(more["kind"], 16.2, **more["fields"])] if more else []),
    ]


def test_a_kill_is_over_when_somebody_has_come_for_the_peer() -> None:
    found = report(injected("now kill coordinator", peers=(0,)), recovery(), [*every(2.5, 10.5), *every(10.6, 20)])
    (one,) = found.faults
    assert (one.noticed_s, one.stop_s, one.held) == (0.1, 0.3, True)
    assert one.whole_s == pytest.approx(5.9), "until the first step of the third view"
    assert "training continues with 2 peers of 3" in one.result
    assert [(check.version, check.digests) for check in found.views] == [(2, "equal"), (3, "equal")]
    assert (found.held, found.problems) == (True, ())
    assert any("rank 0 (peer 0) is lost: killed by SIGKILL" in line for line in found.events)


def test_a_job_that_is_whole_too_late_or_never_has_not_held() -> None:
    times = [*every(2.5, 10.5), *every(10.6, 20)]
    late = report(injected("now kill coordinator", peers=(0,)), recovery(), times, within_s=3.0)
    assert "3 s after it the job was only after 5.9 s whole again" in late.problems[0]
    never = report(injected("now kill coordinator", peers=(0,)), recovery()[:5], times)
    assert "30 s after it the job was not whole again" in never.problems[0]
    assert not never.held
    over = report(injected("now kill coordinator", peers=(0,)), recovery()[:5], times, code=0)
    assert over.held, "its training was over before anybody came"


def test_a_frozen_peer_that_nobody_gave_up_held_the_others_for_its_seconds() -> None:
    one = injected("now freeze rank 1 for 3 s", peers=(1,), until=13.2)
    found = report(one, [], [*every(2.5, 10.5), *every(13.5, 20)])
    (fault,) = found.faults
    assert fault.stop_s == pytest.approx(13.5 - 10.0 - 0.5)
    assert fault.whole_s == pytest.approx(0.3)
    assert (fault.result, fault.held) == ("nobody gave peer 1 up", True)


def test_a_slowed_peer_shows_in_the_throughput() -> None:
    one = injected("now slow rank 1 to 50 % for 4 s", peers=(1,), until=14.2)
    found = report(one, [], [*every(2.5, 10.5), *every(11.0, 15.0, 1.0), *every(15.0, 20)])
    assert found.faults[0].result == "24 -> 12 samples/s meanwhile"


def test_a_resize_is_over_when_the_job_has_carried_it_out() -> None:
    asked = {"id": "chaos-1", "request": "resize 2"}
    events = [
        event("request", 10.2, state="accepted", **asked),
        *view(11.0, 2, 0, 1, begins=20),
        event("rescale", 11.2, step=20, rule="kungfu resize 2", view=2, to=2, left=[2], stop_s=0.2, **{"from": 3}),
        event("finished", 11.1, peer=2, leaving=True),
        event("request", 11.3, state="carried out", **asked),
    ]
    one = injected("now resize 2", request="chaos-1")
    (fault,) = report(one, events, every(2.5, 20)).faults
    assert (fault.stop_s, fault.held) == (0.2, True)
    assert "3 -> 2 peers; peer 2 left" in fault.result
    refused = [
        event("request", 10.2, state="accepted", **asked),
        event("request", 12, state="refused", reason="no room", **asked),
    ]
    (fault,) = report(one, refused, every(2.5, 20)).faults
    assert not fault.held
    assert fault.result == "kungfu resize 2: refused (no room)"


def test_rounding_and_views_of_one_peer_are_told_apart_from_equal_states() -> None:
    events = [*view(11.0, 2, 1, begins=20), event("rounded", 12.0, view=3), *view(12.0, 3, 0, 1, begins=22)]
    found = report(injected("now checkpoint", request="chaos-1"), events, every(2.5, 20))
    assert [one.digests for one in found.views] == ["one peer", "equal after rounding"]


@pytest.mark.parametrize(
    ("events", "more", "problem"), [
        ([event("failed", 12.0, error="InternalError: states differ", code=1)], {"code": 1},
         "the job ended with exit code 1: InternalError: states differ"),
        ([event("checkpoint", 12.0, step=30, path="x", error="No space left")], {}, "no checkpoint could be written"),
        ([], {"samples": SampleCheck(1, "", ("step 3 began after 10",))}, "step 3 began after 10"),
    ],
)  # fmt: skip
def test_what_was_lost_beside_the_faults_is_a_problem(
    events: list[AnyEvent], more: dict[str, Any], problem: str
) -> None:
    one = injected("now freeze rank 1 for 1 s", peers=(1,), until=11.2)
    found = report(one, events, every(2.5, 20), **more)
    assert problem in found.problems[-1]


def test_a_fault_that_was_not_carried_out_has_not_held() -> None:
    found = report(injected("now kill rank 5", None, why="there is no peer to kill rank 5"), [], every(2.5, 20))
    assert found.problems == ("now kill rank 5: not carried out: there is no peer to kill rank 5",)
