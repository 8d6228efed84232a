"""The guarantees that held under faults, by records that are written down here, and their report."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from kungfu.cli.chaos.outcome import (
    ChaosReport,
    FaultOutcome,
    ViewCheck,
    injection_line,
    print_report,
    report_chaos,
)
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


BEGIN = [*(event("spawned", 1.0, peer=peer, pid=100 + peer) for peer in range(3)), *view(2.0, 1, *range(3))]


def every(since: float, until: float, s: float = 0.5) -> list[float]:
    return [since + s * step for step in range(round((until - since) / s))]


def injected(text: str, at: float | None = 10.2, *, peers: tuple[int, ...] = (), **more: Any) -> Injection:
    (fault,) = parse(text)
    assert isinstance(fault, Fault)
    return Injection(fault, at, 20, peers, **{"until": at or 0.0, **more})


def report(one: Injection, events: list[AnyEvent], times: list[float], **more: Any) -> ChaosReport:
    given = {"job": "job", "since": 10.0, "within_s": 30.0, "samples": SAMPLES, "code": None, **more}
    rows = [{"step": step, "time": time, "batch": 12} for step, time in enumerate(times, start=1)]
    return report_chaos([one], [*BEGIN, *events], rows, **given)


KILL = injected("now kill coordinator", peers=(0,))
TIMES = [*every(2.5, 10.5), *every(10.6, 20)]
LOSS = {"step": 20, "from": 3, "to": 2, "view": 2, "lost": {"0": "killed by SIGKILL"}, "target": 3, "stop_s": 0.3}
# Peer 0 is lost at 10.3; the others go on at 10.5, and peer 3 comes at 16.
RECOVERY = [
    event("lost", 10.3, peer=0, rank=0, how="killed by SIGKILL"),
    event("regrouping", 10.4, version=2, peers=[1, 2], target=3),
    *view(10.5, 2, 1, 2, begins=20),
    event("spawned", 10.6, peer=3, pid=103),
    event("recovered", 11.0, noticed_s=0.1, regrouped_s=0.15, state_of=1, **LOSS),
    *view(16.0, 3, 1, 2, 3, begins=27),
    event("rescale", 16.1, step=27, view=3, to=3, **{"from": 2}, joined=[3]),
]


def test_a_kill_is_over_when_somebody_has_come_for_the_peer() -> None:
    found = report(KILL, RECOVERY, TIMES)
    (one,) = found.faults
    assert (one.noticed_s, one.stop_s, one.held) == (0.1, 0.3, True)
    assert one.whole_s == pytest.approx(5.9), "until the first step of the third view"
    assert "training continues with 2 peers of 3" in one.result
    assert [(check.version, check.digests) for check in found.views] == [(2, "equal"), (3, "equal")]
    assert (found.held, found.problems) == (True, ())
    assert any("rank 0 (peer 0) is lost: killed by SIGKILL" in line for line in found.events)


def test_a_job_that_is_whole_too_late_or_never_has_not_held() -> None:
    late, never = report(KILL, RECOVERY, TIMES, within_s=3.0), report(KILL, RECOVERY[:5], TIMES)
    assert "3 s after it the job was only after 5.9 s whole again" in late.problems[0]
    assert "30 s after it the job was not whole again" in never.problems[0]
    assert not never.held
    assert report(KILL, RECOVERY[:5], TIMES, code=0).held, "its training was over before anybody came"


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
    one = injected("now kill rank 5", None, why="there is no peer to kill rank 5")
    line = "now kill rank 5: not carried out: there is no peer to kill rank 5"
    assert (report(one, [], every(2.5, 20)).problems, injection_line(one)) == ((line,), line)
    assert injection_line(injected("now kill coordinator", peers=(2,))).endswith("step 20: kill rank 0 (peer 2)")


# ---- as text and as JSON ---------------------------------------------------------------------------------------------

KILLED = FaultOutcome("now kill rank 0", 1000.0, 40, (0,), 0.1, 0.25, 6.5, "training continues with 1 peer of 2", True)
REPORT = ChaosReport(
    "job", (KILLED,), (ViewCheck(2, (1,), "one peer"), ViewCheck(3, (1, 2), "equal after rounding")),
    SampleCheck(120, "120 samples of steps 1 to 10", notes=("steps 3 to 4 are not recorded, and had 24 samples",)),
    ("rank 0 (peer 0) is lost: killed by SIGKILL",), None, (),
)  # fmt: skip


def test_a_report_has_times_states_and_samples(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(REPORT, form="text")
    printed = " ".join(capsys.readouterr().out.split())
    for words in (
        "250 ms", "6.5 s", "equal on all peers in 1 view, 1 view of one peer", "rounding was evened out in view 3",
        "samples: 120 samples of steps 1 to 10", "note: steps 3 to 4 are not recorded", "is lost: killed by SIGKILL",
        "everything held under 1 fault",
    ):  # fmt: skip
        assert words in printed


def test_problems_are_printed_last(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(replace(REPORT, views=(), code=1, problems=("step 3 began after 10",)), form="text")
    *_, before, last = capsys.readouterr().out.strip().split("\n")
    assert last == "did not hold: step 3 began after 10"
    assert "everything held" not in before


def test_a_program_gets_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(REPORT, form="json")
    found = json.loads(capsys.readouterr().out)
    assert (found["held"], found["problems"], found["faults"][0]["whole_s"]) == (True, [], 6.5)
    assert found["views"][1] == {"version": 3, "peers": [1, 2], "digests": "equal after rounding"}
