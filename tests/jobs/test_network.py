"""Jobs on hosts of an emulated network whose links are cut, to each other and to an etcd; Horovod averages."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from benchmarks.emulation.network import Network
from tests.jobs.convex_runs import NO_QUORUM_CODE, Run, training
from tests.jobs.harness import Job, awaited, lines_of, networked
from tests.runtime.agent.etcd_server import etcd_server, needs_etcd
from tests.soak import SOAK

pytestmark = pytest.mark.skipif(
    find_spec("horovod") is None, reason="horovod is not installed; `python -m kungfu.native.horovod` builds it"
)

HOROVOD = ("--attachment", "horovod", "--deadline", 60)
STATE_MB = 16.0


def test_the_leading_host_is_cut_off_and_the_others_go_on(tmp_path: Path) -> None:
    with networked(3) as net, training(tmp_path, *HOROVOD, slots=(1, 1, 1), size=3, epochs=10, within=net) as run:
        run.hosts[1].steps(10)
        net.part([0], [1, 2])
        run.hosts[1].event("recovered", to=2)
        run.hosts[0].end(code=NO_QUORUM_CODE)
        _, *others = run.ends(NO_QUORUM_CODE, 0, 0, tells=1)
    for ended in others:
        assert "Timed out waiting" not in ended.output, "no engine waits until its deadline"
        assert ended.sizes == [3, 2]
        assert [event["host"] for event in ended.all_of("host lost")] == [0]


@SOAK
def test_of_three_partitions_the_one_with_most_peers_goes_on(tmp_path: Path) -> None:
    with networked(5) as net, training(tmp_path, *HOROVOD, slots=(1,) * 5, size=5, within=net) as run:
        run.hosts[0].steps(10)
        net.part([0], [1], [2, 3, 4])
        run.hosts[2].event("recovered", to=3)
        ended = run.ends(*[NO_QUORUM_CODE] * 2, 0, 0, 0, tells=2)
    assert ended[2].sizes == [5, 3]


@SOAK
@pytest.mark.parametrize(
    ("senders", "receivers", "lost"),
    [
        pytest.param([0], [1, 2], 0, id="a leader that cannot send"),
        pytest.param([1, 2], [0], 0, id="a leader that cannot receive"),
        pytest.param([1], [0, 2], 1, id="a follower that cannot send"),
        pytest.param([0, 2], [1], 1, id="a follower that cannot receive"),
    ],
)
def test_a_host_that_is_cut_off_in_one_direction_is_lost(
    tmp_path: Path, senders: list[int], receivers: list[int], lost: int
) -> None:
    with networked(3) as net, training(tmp_path, *HOROVOD, slots=(1, 1, 1), size=3, within=net) as run:
        run.hosts[2].steps(10)
        net.cut(senders, receivers)
        run.hosts[2].event("recovered", to=2)
        run.hosts[lost].end(code=NO_QUORUM_CODE)
        *_, ended = run.ends(*(NO_QUORUM_CODE if host == lost else 0 for host in range(3)), tells=2)
    assert [event["host"] for event in ended.all_of("host lost")] == [lost]


@SOAK
@pytest.mark.parametrize("host", [pytest.param(0, id="leader, with rank 0"), pytest.param(1, id="follower")])
def test_a_host_whose_processes_all_freeze_is_lost_and_stops_when_it_wakes_up(tmp_path: Path, host: int) -> None:
    with networked(3) as net, training(tmp_path, *HOROVOD, slots=(1, 1, 1), size=3, within=net) as run:
        run.hosts[2].steps(10)
        net.hosts[host].signal(signal.SIGSTOP)
        run.hosts[2].event("recovered", to=2)
        net.hosts[host].signal(signal.SIGCONT)
        run.hosts[host].end(code=NO_QUORUM_CODE)
        *_, ended = run.ends(*(NO_QUORUM_CODE if one == host else 0 for one in range(3)), tells=2)
    assert ended.sizes == [3, 2]
    assert "Timed out waiting" not in ended.output


@SOAK
def test_a_host_that_was_cut_off_for_a_minute_comes_back(tmp_path: Path) -> None:
    with networked(3) as net, training(tmp_path, *HOROVOD, slots=(1, 1, 1), size=3, within=net) as run:
        run.hosts[0].steps(10)
        cut = time.monotonic()
        net.part([0, 1], [2])
        run.hosts[0].event("recovered", to=2)
        run.hosts[2].end(code=NO_QUORUM_CODE)
        awaited(lambda: time.monotonic() > cut + 60.0, what="a minute", deadline_s=90.0)
        net.part([0, 1, 2])
        run.hosts.back(2)
        run.hosts[0].event("rescale", to=3)
        ended, *_ = run.ends(0, 0, NO_QUORUM_CODE, 0)
    assert ended.sizes == [3, 2, 3]


@SOAK
def test_a_host_is_cut_off_while_a_peer_starts_in_place_of_another(tmp_path: Path) -> None:
    with networked(4) as net, training(tmp_path, *HOROVOD, slots=(1,) * 4, size=3, within=net) as run:
        run.hosts[0].steps(10)
        net.hosts[1].signal(signal.SIGKILL)
        run.hosts[0].event("spawned", host=3)
        net.part([0, 3], [2])
        run.hosts[0].event("recovered", to=1)
        run.hosts[0].event("rescale", to=2)
        ended, *_ = run.ends(0, -signal.SIGKILL, NO_QUORUM_CODE, 0)
    assert [event["host"] for event in ended.all_of("host lost")] == [1, 2]


@SOAK
def test_a_host_is_cut_off_while_another_one_comes_back(tmp_path: Path) -> None:
    with networked(4) as net, training(tmp_path, *HOROVOD, slots=(1,) * 4, size=4, within=net) as run:
        run.hosts[0].steps(10)
        net.hosts[3].signal(signal.SIGKILL)
        run.hosts[0].event("recovered", to=3)
        back = run.hosts.back(3)
        run.hosts[0].event("host", pid=back.process.pid)
        net.part([0, 1, 3], [2])
        run.hosts[0].event("recovered", to=2)
        run.hosts[0].event("rescale", to=3)
        ended, *_ = run.ends(0, 0, NO_QUORUM_CODE, -signal.SIGKILL, 0)
    assert [event["host"] for event in ended.all_of("host lost")] == [3, 2]


@SOAK
def test_the_state_reaches_two_joiners_of_a_host_over_its_slow_link_once(tmp_path: Path) -> None:
    options: dict[str, Any] = {"slots": (1, 1, 2), "size": 2, "most": 4, "more": ["--ballast-mb", STATE_MB]}
    with networked(3) as net, training(tmp_path, *HOROVOD, within=net, **options) as run:
        net.slow_down(2, mbit=20)
        run.hosts[0].steps(10)
        before = net.hosts[2].received_bytes
        run.steered.resize(4)
        run.hosts[0].event("rescale", to=4)
        came_mb = (net.hosts[2].received_bytes - before) / 2**20
        ended, *_ = run.ends(0, 0, 0)
    assert ended.sizes == [2, 4]
    assert STATE_MB < came_mb < 1.7 * STATE_MB, "with calls and messages, and not once for each joiner"


@contextmanager
def beside_an_etcd(tmp_path: Path, *, slots: tuple[int], size: int) -> Iterator[tuple[Network, Run, Job]]:
    """A job that host 0 has founded without a list, and that begins with two more hosts; the last host has the etcd."""
    with networked(4) as net, etcd_server(tmp_path, within=net.hosts[3]) as etcd:
        line = [*HOROVOD, "--store", f"etcd://{etcd.address}", "--job", "digits", "--min-hosts", 3]
        with training(tmp_path, *line, slots=slots, size=size, listed=False, within=net) as run:
            run.hosts[0].event("host", host=0)
            yield net, run, run.hosts[0]


@SOAK
@needs_etcd
@pytest.mark.parametrize("cut", [pytest.param([0], id="the leader"), pytest.param([0, 1, 2], id="all hosts")])
def test_training_goes_on_while_the_etcd_is_cut_off_and_a_lost_host_waits_for_it(
    tmp_path: Path, cut: list[int]
) -> None:
    """Host 0 founds the job, as the others are started later. Changes that all hold go on too: a peer is replaced. Then
    host 2 loses its power."""
    with beside_an_etcd(tmp_path, slots=(2,), size=3) as (net, run, leader):
        follower, other = run.hosts.join(2, 1), run.hosts.join(3, 1)
        follower.steps(10)
        machine = other.event("host", pid=other.process.pid)["host"]
        net.part(cut, [3])
        assert "has not answered" in leader.event("store", host=0, state="lost")["why"]
        leader.signal(signal.SIGKILL, peer=leader.event("view")["peers"][0])
        leader.event("recovered", to=2)
        leader.event("rescale", to=3)
        leader.steps(len(lines_of(leader.folder / "metrics.jsonl")) + 20)
        net.hosts[2].signal(signal.SIGKILL)
        leader.event("store", state="awaited")
        kinds = [event["event"] for event in lines_of(leader.folder / "events.jsonl")]
        assert kinds.count("recovered") == 1, "only the peer"
        net.part([0, 1, 3])
        leader.event("store", host=0, state="back")
        leader.event("host lost", host=machine)
        ended, *_ = run.ends(0, 0, -signal.SIGKILL)
    assert ended.all_of("head") == [], "host 0 led all the time"
    assert ended.sizes[:3] == [3, 2, 3]


@SOAK
@needs_etcd
def test_a_leader_without_peers_that_only_the_etcd_hears_leaves_the_job_to_others(
    tmp_path: Path,
) -> None:
    with beside_an_etcd(tmp_path, slots=(1,), size=2) as (net, run, leader):
        others = [run.hosts.join(2, 1), run.hosts.join(3, 1)]
        leader.steps(10)
        leader.signal(signal.SIGTERM, peer=0)
        assert leader.event("rescale", to=2)["left"] == [], "peer 0 had left before"
        net.part([0], [1, 2])
        leader.end(code=NO_QUORUM_CODE)
        first = {event["host"] for event in (others[0].event("head"), others[1].event("head"))}
        _, ended, _ = run.ends(NO_QUORUM_CODE, 0, 0, tells=1)
    assert first <= {1, 2}
    assert ended.sizes[-1] == 2
    assert [event["host"] for event in ended.all_of("host lost")] == [0]
