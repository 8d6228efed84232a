"""A job and its peers for the page, from the record alone."""

from __future__ import annotations

from typing import Any

from kungfu.cli.page.run_model import job_summary, peer_rows
from kungfu.event_log.job import Job, fold
from tests.event_log.made import made


def facts(*events: dict[str, Any]) -> Job:
    return fold(made(time=float(time), **fields) for time, fields in enumerate(events))


def shown(job: Job) -> list[tuple[Any, ...]]:
    return [(row["id"], row["rank"], row["host"], row["state"]) for row in peer_rows(job)]


BEGUN = (
    {"event": "host", "host": 0, "name": "a", "pid": 1},
    {"event": "host", "host": 1, "name": "b", "pid": 2},
    {"event": "started", "job": "j", "size": 2, "command": ["python", "train.py"]},
    {"event": "spawned", "peer": 0, "pid": 10, "host": 0},
    {"event": "spawned", "peer": 1, "pid": 11, "host": 1},
    {"event": "view", "version": 1, "peers": [0, 1]},
)


def test_peers_come_train_and_go() -> None:
    assert shown(facts(*BEGUN)) == [(0, 0, "a", "training"), (1, 1, "b", "training")]
    grown = (*BEGUN, {"event": "spawned", "peer": 2, "pid": 12, "host": 1}, {"event": "offered", "peers": [2]})
    assert shown(facts(*grown))[2:] == [(2, None, "b", "ready")]
    lost = (
        *grown, {"event": "lost", "peer": 0, "how": "killed by SIGKILL"},
        {"event": "peer ended", "peer": 0, "how": "killed by SIGKILL"},
        {"event": "view", "version": 2, "peers": [1, 2]},
    )  # fmt: skip
    found = facts(*lost)
    assert shown(found) == [
        (1, 0, "b", "training"), (2, 1, "b", "training"), (0, None, "a", "ended: killed by SIGKILL")
    ]  # fmt: skip
    assert [row["since"] for row in peer_rows(found)] == [5.0, 10.0, 8.0]
    assert job_summary(found)["view"] == 2


def test_a_host_that_is_lost_and_one_that_leads_are_known() -> None:
    found = facts(
        *BEGUN, {"event": "host lost", "host": 0, "name": "a", "why": "x"}, {"event": "head", "host": 1, "name": "b"}
    )
    assert (job_summary(found)["hosts"], job_summary(found)["leader"]) == (["b"], "b")
    assert shown(found)[-1] == (0, None, "a", "ended: its host was lost")
    ended = job_summary(facts(*BEGUN, {"event": "failed", "peer": 1, "error": "rank 1: x", "code": 1}))
    assert (ended["job"], ended["command"], ended["ended"], ended["how"]) == ("j", "python train.py", 6.0, "rank 1: x")


def test_speeds_are_those_of_the_newest_step_that_tells_them() -> None:
    found = facts(*BEGUN)
    fractions = {"0": 1.0, "1": 0.5, "x": 1.0, "9" * 5000: 1.0, "2": "NaN"}
    found = found.after_step({"step": 1, "straggler_fractions": fractions}).after_step({"step": 2})
    assert [(row["speed"], row["is_slow"]) for row in peer_rows(found)] == [(1.0, False), (0.5, True)]


def test_only_the_last_processes_that_ended_are_shown() -> None:
    events = [
        event for peer in range(40) for event in (
            {"event": "spawned", "peer": peer, "pid": peer}, {"event": "peer ended", "peer": peer, "how": "exit code 0"}
        )
    ]  # fmt: skip
    assert [row["id"] for row in peer_rows(facts(*events))] == list(range(32, 40))
