"""Jobs on several hosts whose leader an etcd decides on: they lose hosts, and the etcd."""

from __future__ import annotations

import os
import secrets
import signal
from pathlib import Path

import pytest

from kungfu.cli.hosting import SECRET_KEY
from tests.jobs.convex_runs import NO_QUORUM_CODE, training
from tests.jobs.harness import asked, awaited, lines_of, ran
from tests.jobs.test_hosts import hosts_of, story
from tests.jobs.test_restarts import after, in_one_piece, options
from tests.runtime.agent.consensus.agents import free_port
from tests.runtime.agent.etcd_server import EtcdServer, etcd_server, needs_etcd

pytestmark = needs_etcd
SOAK = pytest.mark.skipif("KUNGFU_SOAK" not in os.environ, reason="make soak runs it")
KEYS = "kungfu/digits/"


def store(server: EtcdServer) -> tuple[str, ...]:
    return "--store", f"etcd://{server.address}", "--job", "digits"


def test_a_job_of_two_hosts_loses_the_one_with_rank_0_and_then_the_other(tmp_path: Path) -> None:
    with etcd_server(tmp_path) as etcd, training(tmp_path, *store(etcd), slots=(1, 1), size=2) as run:
        run.hosts[0].steps(10)
        run.hosts[0].signal(signal.SIGKILL)
        run.hosts[1].event("recovered", to=1)
        run.hosts.back(0)
        run.hosts[1].event("rescale", to=2)
        run.hosts[2].event("rescale", to=2)
        run.hosts[1].signal(signal.SIGKILL)
        run.hosts[2].event("recovered", to=1)
        *_, ended = run.ends(-signal.SIGKILL, -signal.SIGKILL, 0, tells=2)
        assert [*etcd.keys(KEYS)] == ["holders"], "only that the job is over is kept, for a day"
    assert ended.all_of("head")[-1]["host"] == 0
    assert [event["host"] for event in ended.all_of("host lost")] == [0, 1]


def test_training_goes_on_while_the_etcd_is_lost_and_a_lost_host_waits_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with etcd_server(tmp_path) as etcd, training(tmp_path, *store(etcd), slots=(1, 1), size=2) as run:
        # The host that leads is the one that came first.
        leads = run.hosts[0].event("host")["host"]
        here, there = run.hosts[leads], run.hosts[1 - leads]
        here.steps(10)
        with etcd.frozen():
            assert "has not answered" in here.event("store", host=leads, state="lost")["why"]
            here.steps(len(lines_of(here.folder / "metrics.jsonl")) + 20)
            assert asked(there.folder, capsys, "checkpoint")["state"] == "carried out", "all holders acknowledge it"
            there.signal(signal.SIGKILL)
            here.event("store", state="awaited")
            assert "recovered" not in {event["event"] for event in lines_of(here.folder / "events.jsonl")}
        here.event("store", host=leads, state="back")
        here.event("recovered", to=1)
        etcd.end()
        here.steps(len(lines_of(here.folder / "metrics.jsonl")) + 20)
        codes = {here: 0, there: -signal.SIGKILL}
        ended = run.ends(*(codes[job] for job in run.hosts.jobs), tells=leads)[leads]
    assert ended.sizes == [2, 1]
    assert "does not run" in ended.output


def test_without_a_list_the_same_line_founds_the_job_or_joins_it(tmp_path: Path) -> None:
    line = ("--min-hosts", 2)
    with (
        etcd_server(tmp_path) as etcd,
        training(tmp_path, *store(etcd), *line, slots=(1,), size=2, listed=False) as run,
    ):
        awaited(lambda: "leader" in etcd.keys(KEYS), what="the founder", deadline_s=60.0)
        second = run.hosts.join(2, 1)
        second.steps(10)
        run.hosts[0].signal(signal.SIGKILL)
        second.event("recovered", to=1)
        third = run.hosts.join(3, 1)
        third.event("rescale", to=2)
        awaited(lambda: {"hosts/1", "hosts/2"} <= etcd.keys(KEYS).keys(), what="the hosts' keys", deadline_s=60.0)
        _, ended, _ = run.ends(-signal.SIGKILL, 0, 0, tells=1)
    names = {event["host"]: event["name"] for event in ended.all_of("host")}
    assert names == {0: "127.0.0.1", 1: "127.0.0.2", 2: "127.0.0.3"}
    assert [event["host"] for event in ended.all_of("host lost")] == [0]


@SOAK
def test_all_hosts_without_a_list_are_killed_and_found_the_job_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with etcd_server(tmp_path) as etcd:
        line = [*options(tmp_path), *store(etcd), "--checkpoints", tmp_path / "kept", "--min-hosts", 2]
        with training(tmp_path, *line, slots=(1,), size=2, listed=False) as run:
            run.hosts.join(2, 1)
            after(run.hosts[1], 0)
            for host in (0, 1):
                run.hosts[host].signal(signal.SIGKILL)
                run.hosts[host].end(code=-signal.SIGKILL, deadline_s=60.0)
            second = run.hosts.join(2, 1)
            run.hosts.jobs.append(run.hosts.launch(0, "host-0"))
            first = second.event("restarted", deadline_s=120.0)
            *_, told, ended = run.ends(-signal.SIGKILL, -signal.SIGKILL, 0, 0, tells=2)
    assert first["step"] > 0
    assert in_one_piece(told, 1, capsys) == in_one_piece(ended, 1, capsys) == [first]


@SOAK
@pytest.mark.parametrize("host", [pytest.param(0, id="leader"), pytest.param(1, id="follower")])
def test_a_host_that_stands_still_is_struck_and_stops_when_it_wakes_up(tmp_path: Path, host: int) -> None:
    with etcd_server(tmp_path) as etcd, training(tmp_path, *store(etcd), slots=(1, 1), size=2, epochs=80) as run:
        run.hosts[0].steps(10)
        peer = run.hosts[0].event("spawned", host=host)["pid"]
        for process in (run.hosts[host].process.pid, peer):
            os.kill(process, signal.SIGSTOP)
        run.hosts[1 - host].event("recovered", to=1)
        for process in (run.hosts[host].process.pid, peer):
            os.kill(process, signal.SIGCONT)
        run.hosts[host].end(code=NO_QUORUM_CODE)
        codes = [0, 0]
        codes[host] = NO_QUORUM_CODE
        ended = run.ends(*codes, tells=1 - host)[1 - host]
    assert [event["host"] for event in ended.all_of("host lost")] == [host]


@SOAK
def test_the_first_of_three_hosts_is_killed_and_the_second_is_taken_away(tmp_path: Path) -> None:
    with etcd_server(tmp_path) as etcd, training(tmp_path, *store(etcd), slots=(1, 1, 3), size=3) as run:
        run.faults("at step 10 kill host 0; once settled notice host 1")
        _, left, ended = run.ends(-signal.SIGKILL, 0, 0, tells=2)
    assert {("host lost", 0), ("host noticed", 1), ("host left", 1)} <= {*story(ended)}
    assert hosts_of(ended)[4] == 2
    assert "left the job" in left.output


@SOAK
def test_all_hosts_are_killed_and_the_same_line_founds_the_job_anew(tmp_path: Path) -> None:
    with etcd_server(tmp_path) as etcd, training(tmp_path, *store(etcd), slots=(1, 1), size=2) as run:
        run.hosts[1].steps(10)
        for host in (0, 1):
            run.hosts[host].signal(signal.SIGKILL)
            run.hosts[host].end(code=-signal.SIGKILL)
        for host in (1, 0):
            run.hosts.back(host)
        run.hosts[2].event("view")
        *_, ended = run.ends(-signal.SIGKILL, -signal.SIGKILL, 0, 0, tells=2)
    assert ended.sizes == [2]


def test_a_full_etcd_ends_the_start_with_the_reason(tmp_path: Path) -> None:
    with etcd_server(tmp_path, "--quota-backend-bytes", "1") as etcd:
        line = ("-H", "127.0.0.1:1,127.0.0.2:1", "--self", "127.0.0.1", "--port", free_port("127.0.0.1"))
        given = {"environment": {SECRET_KEY: secrets.token_hex(32)}, "program": "convex.py"}
        ended = ran(tmp_path, *line, "-np", 2, *store(etcd), code=2, **given)
    assert "database space exceeded; free room" in ended.output
