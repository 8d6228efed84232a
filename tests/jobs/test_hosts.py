"""Jobs on several hosts, which come, are taken away, die and stand still; all of them are this machine."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from kungfu.runtime.checkpoints.folder import find
from kungfu.runtime.checkpoints.manifest import read_manifest
from tests.jobs.convex_runs import NO_QUORUM_CODE, on_one_host, training
from tests.jobs.harness import Ended, asked

SOAK = pytest.mark.skipif("KUNGFU_SOAK_HOSTS" not in os.environ, reason="make soak runs it")


def hosts_of(ended: Ended) -> dict[int, int]:
    """Where each peer was started, by its id."""
    return {event["peer"]: event["host"] for event in ended.all_of("spawned")}


def story(ended: Ended) -> list[tuple[str, int]]:
    """What became of hosts."""
    kinds = ("host", "host noticed", "host left", "host lost", "head")
    return [(event["event"], event["host"]) for event in ended.events if event["event"] in kinds]


@SOAK
def test_a_job_on_two_hosts_is_steered_through_the_folder_of_either(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with training(tmp_path, slots=(2, 2), size=2, most=3) as run:
        here, there = run.hosts.folders
        run.hosts[1].event("view", version=1)
        assert asked(there, capsys, "migrate", 1, "127.0.0.2")["state"] == "carried out"
        assert asked(here, capsys, "resize", 3)["state"] == "carried out"
        peers = {peer["id"]: peer["host"] for peer in asked(there, capsys, "status")["peers"]}
        assert peers == {0: "127.0.0.1", 2: "127.0.0.2", 3: "127.0.0.2"}, "the slot that was left is avoided at first"
        both = run.ends(0, 0)
    for ended in both:
        assert [event["peers"] for event in ended.all_of("view")] == [[0, 1], [0, 2], [0, 2, 3]]
        assert hosts_of(ended) == {0: 0, 1: 0, 2: 1, 3: 1}
        assert [row["step"] for row in ended.metrics] == [row["step"] for row in both[0].metrics]


@SOAK
def test_the_first_host_is_killed_and_the_second_is_taken_away(tmp_path: Path) -> None:
    with training(tmp_path, slots=(1, 1, 3), size=3) as run:
        run.faults("at step 10 kill host 0; once settled notice host 1")
        _, left, ended = run.ends(-signal.SIGKILL, 0, 0, tells=2)
    assert story(ended)[3:] == [("head", 1), ("host lost", 0), ("host noticed", 1), ("host left", 1), ("head", 2)]
    assert hosts_of(ended) == {0: 0, 1: 1, 2: 2, 3: 2, 4: 2}
    assert [event["peers"] for event in ended.all_of("view")][-1] == [2, 3, 4]
    assert [event["peer"] for event in ended.all_of("lost")] == [0]
    assert "left the job" in left.output


@SOAK
@pytest.mark.parametrize("attachment", ["local", "horovod"])
def test_a_host_that_does_not_lead_is_killed_and_its_peers_start_elsewhere(tmp_path: Path, attachment: str) -> None:
    with training(tmp_path, "--attachment", attachment, slots=(2, 1, 1), size=3) as run:
        run.faults("at step 10 kill host 1")
        ended, _, other = run.ends(0, -signal.SIGKILL, 0)
    assert story(ended)[3:] == story(other)[3:] == [("host lost", 1)]
    assert hosts_of(ended) == {0: 0, 1: 0, 2: 1, 3: 2}


@pytest.mark.parametrize("host", [pytest.param(0, id="leader"), pytest.param(1, id="follower")])
@SOAK
def test_a_host_that_stands_still_is_given_up_and_stops_when_it_wakes_up(tmp_path: Path, host: int) -> None:
    with training(tmp_path, slots=(1, 1, 2), size=3) as run:
        run.faults(f"at step 10 freeze host {host}; once settled thaw host {host}")
        woken = run.hosts[host].end(code=NO_QUORUM_CODE)
        codes = [0, 0, 0]
        codes[host] = NO_QUORUM_CODE
        *_, ended = run.ends(*codes, tells=2)
    assert "the others may continue without it" in woken.output
    assert [event["host"] for event in ended.all_of("host lost")] == [host]
    assert hosts_of(ended) == {0: 0, 1: 1, 2: 2, 3: 2}


@SOAK
def test_the_half_with_rank_0_continues_and_a_host_that_comes_back_has_room(tmp_path: Path) -> None:
    with training(tmp_path, slots=(1, 1), size=2) as run:
        run.hosts[0].steps(10)
        run.hosts[1].signal(signal.SIGKILL)
        run.hosts[0].event("host lost", host=1)
        run.hosts[0].event("recovered", to=1)
        run.hosts.back(1)
        run.hosts[0].event("rescale", to=2)
        ended, *_ = run.ends(0, -signal.SIGKILL, 0)
    assert ended.sizes == [2, 1, 2]
    assert [where for _, where in sorted(hosts_of(ended).items())] == [0, 1, 1]


@SOAK
def test_a_checkpoint_of_several_hosts_is_one_and_a_job_on_one_host_goes_on_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, kept = tmp_path / "first", tmp_path / "second", tmp_path / "kept"
    first.mkdir()
    with training(first, "--checkpoints", kept, slots=(1, 1, 2), size=3) as run:
        run.hosts[0].steps(10)
        before = asked(run.hosts.folders[1], capsys, "checkpoint")
        run.faults("at step 12 kill host 0")
        after = asked(run.hosts.folders[2], capsys, "checkpoint")
        for host in (1, 2):
            run.hosts[host].signal(signal.SIGKILL)
        *_, ended = run.hosts.ends()
    written = [event["path"] for event in ended.all_of("checkpoint")]
    assert [one["state"] for one in (before, after)] == ["carried out"] * 2
    assert [Path(one).parent for one in written] == [kept] * 2
    assert find(kept) == Path(written[-1])
    assert read_manifest(find(kept)).step > 12

    with on_one_host(second, "--resume", kept, size=2, epochs=40, marks=["hurry"]) as (job, steered):
        again = job.end()
    steered.ended(again)


@pytest.mark.parametrize("host", [1, 0])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@SOAK
def test_an_interrupt_or_a_second_notice_to_any_host_ends_the_job(
    tmp_path: Path, number: signal.Signals, host: int
) -> None:
    with training(tmp_path, "--heartbeat", 100, slots=(1, 2), size=2) as run:
        run.hosts[0].steps(10)
        # While its only peer stands still it cannot leave, so the second notice comes before the host is let go.
        os.kill(run.hosts[0].event("spawned", host=host)["pid"], signal.SIGSTOP)
        run.hosts[host].signal(number)
        if number == signal.SIGTERM:
            run.hosts[0].event("host noticed", host=host)
            run.hosts[host].signal(number)
        assert [ended.code for ended in run.hosts.ends()] == [128 + number] * 2
