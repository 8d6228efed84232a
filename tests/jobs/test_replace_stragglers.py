"""A peer that is slow in a real job is replaced; and what the peers know of joiners on their host."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from kungfu.trace import Trace, read_trace, replay
from tests.jobs.harness import Ended, lines_of, started
from tests.jobs.on_hosts import started_on_hosts
from tests.soak import SOAK


def trace_of(ended: Ended) -> Trace:
    """The record, which a replay of the run's own plan has to go through as the run did."""
    trace = read_trace(ended.folder)
    assert trace.plan is not None
    assert replay(trace.plan, trace, whose="the run's").differences == ()
    return trace


def beside(trace: Trace, *, view: int) -> list[tuple[int, ...]]:
    """How many joiners each peer saw on its host, by step of a view."""
    return [tuple(own["host_joiners"] for own in step.local) for step in trace.steps if step.view == view]


def test_a_peer_that_sleeps_in_its_steps_is_replaced_when_another_one_is_ready(tmp_path: Path) -> None:
    (tmp_path / "slow").touch()
    with started(tmp_path, "-np", 3, "--max", 3, program="paced.py", arguments=[tmp_path, "slowed", 1]) as job:
        job.event("rescale", view=2)
        (tmp_path / "hurry").touch()
        ended = job.end()
    assert [event["peers"] for event in ended.all_of("view")][:2] == [[0, 1, 2], [0, 2, 3]]
    decided: dict[str, Any] = ended.all_of("decision")[0]
    assert (decided["rule"], decided["peers"], decided["when"]) == ("replace_stragglers", [1], "replaced")
    trace = trace_of(ended)
    first = beside(trace, view=1)
    assert first[0] == (0, 0, 0)
    assert (1, 1, 1) in first, "the newcomer got ready beside all of them"
    # In a hurry the steps are uneven, so that others may be replaced later.
    assert beside(trace, view=2)[0] == (0, 0, 0), "and takes nothing from them now"


@SOAK
def test_one_wave_of_joiners_grows_the_job_and_replaces_a_straggler(tmp_path: Path) -> None:
    """A straggler of a growing job is replaced, and one wave of joiners serves both."""
    # Two peers run on the first host and one on the second, where the fourth one starts. The second peer is slow.
    (tmp_path / "slow").touch()
    words = [tmp_path, "slowed", 1, 5, 4]
    with started_on_hosts(tmp_path, "-np", 3, "--max", 4, slots=(2, 3), program="paced.py", arguments=words) as hosts:
        job = hosts[0]
        assert job.event("spawned", peer=3)["host"] == 1
        # It is held up, so the growth is under way until the straggler is found, and another one is on its way for it.
        decided = job.event("decision", rule="replace_stragglers")
        assert job.event("spawned", peer=4)["host"] == 1
        (tmp_path / "come").touch()
        job.event("rescale", view=2)
        (tmp_path / "hurry").touch()
        ended, other = hosts.ends()
    assert (ended.code, other.code) == (0, 0), ended.output + other.output
    assert (decided["peers"], decided["when"]) == ([1], "replaced")
    assert [event["peers"] for event in ended.all_of("view")][:2] == [[0, 1, 2], [0, 2, 3, 4]]
    trace = trace_of(ended)
    first = beside(trace, view=1)
    assert first[0] == (0, 0, 0)
    assert set(first) <= {(0, 0, 0), (0, 0, 1), (0, 0, 2)}, "no joiner is beside those on the other host"
    assert set(first) & {(0, 0, 1), (0, 0, 2)}, "the third peer trained beside them"
    assert beside(trace, view=2)[0] == (0, 0, 0, 0)


@SOAK
def test_a_replacement_without_a_free_slot_is_asked_for_again_after_a_host_came(tmp_path: Path) -> None:
    """A replacement without a free slot is asked for once, and again when a host has come."""
    # Two peers run on the first host and one on the second. The third one, which would have room, is lost at first.
    with started_on_hosts(
        tmp_path, "-np", 3, "--max", 3, slots=(2, 1, 1), program="paced.py", arguments=[tmp_path, "slowed", 1]
    ) as hosts:
        job = hosts[0]
        job.event("view", version=1)
        hosts[2].signal(signal.SIGKILL)
        job.event("host lost", host=2)
        (tmp_path / "slow").touch()
        refused = job.event("missing")
        # The rule looks every ten steps, and the peer is as slow as before.
        job.steps(len(lines_of(job.folder / "metrics.jsonl")) + 40)
        asked = [event for event in lines_of(job.folder / "events.jsonl") if event["event"] == "decision"]
        hosts.back(2)
        job.event("rescale", view=2)
        (tmp_path / "hurry").touch()
        ended, other, _, third = (one.end(code=None) for one in hosts.jobs)
    assert [one.code for one in (ended, other, third)] == [0, 0, 0], ended.output
    assert refused["reason"] == "peer 3: no host has a free slot"
    assert [(one["rule"], one["peers"]) for one in asked] == [("replace_stragglers", [1])], "said once, and remembered"
    again = [one for one in ended.all_of("decision") if one not in asked]
    assert (again[0]["rule"], again[0]["peers"]) == ("replace_stragglers", [1])
    (newcomer,) = set(ended.all_of("view")[1]["peers"]) - {0, 1, 2}
    assert ended.all_of("view")[1]["peers"] == [0, 2, newcomer]
    assert {event["peer"]: event["host"] for event in ended.all_of("spawned")}[newcomer] == 2
    trace_of(ended)
