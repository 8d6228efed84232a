"""Faults that are injected into a job whose record a test writes: what is done, and what is left out, and why."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from kungfu.errors import UsageError
from kungfu.event_log.job import Job, JobHost
from kungfu.runtime.core.request import in_words
from kungfu.testing.faults import Freezer, Injection, InjectionLimits, JobWatcher, inject, parse
from kungfu.testing.faults.inject import carry_out, local_hosts, why_out_of_reach
from tests.event_log.made import write_record

LIMITS = InjectionLimits(within_s=100.0, patience_s=1000.0)


@dataclass
class WrittenJob:
    """A job whose record is written here; time passes only while something is waited for, a second at each look.

    ``later`` happens at these times, in seconds from the beginning.
    """

    folder: Path
    later: dict[int, Callable[[], None]] = field(default_factory=dict)
    now: float = 0.0
    is_ended: bool = False
    asked: list[str] = field(default_factory=list)
    refuses: bool = False

    def request(self, what: Any, *, id: str) -> None:
        if self.refuses:
            raise UsageError("the job refuses it: 9 peers")
        self.asked.append(f"{id}: {in_words(what)}")

    def is_over(self) -> bool:
        return self.is_ended

    def pause(self, seconds: float) -> None:
        for _ in range(max(1, round(seconds))):
            self.now += 1
            self.later.pop(round(self.now), lambda: None)()

    def write(self, *events: dict[str, Any], steps: int = 0) -> None:
        write_record(self.folder, *events, *([{"step": steps, "time": self.now + 0.5}] if steps else []))

    def inject(self, text: str, limits: InjectionLimits = LIMITS) -> list[Injection]:
        with Freezer() as freezer:
            return list(
                inject(
                    parse(text), JobWatcher(self.folder), self, limits=limits, freezer=freezer,
                    clock=lambda: self.now, pause=self.pause,
                )
            )  # fmt: skip


def view(*peers: int, version: int = 1, begins: int = 0) -> list[dict[str, Any]]:
    return [
        {"event": "view", "version": version, "peers": [*peers]},
        {"event": "span", "view": version, "step": begins},
    ]


@contextmanager
def job(
    folder: Path, peers: int, *, hosts: tuple[str, ...] = ()
) -> Iterator[tuple[WrittenJob, list[subprocess.Popen]]]:
    """A job of real processes that do nothing, all in its first view after ten steps; ended by their ids."""
    children = [subprocess.Popen(["sleep", "600"]) for _ in range(peers)]
    written = WrittenJob(folder)
    written.write(*({"event": "host", "host": at, "name": name, "pid": 2**30} for at, name in enumerate(hosts)))
    for peer, child in enumerate(children):
        host = {"host": peer % len(hosts)} if hosts else {}
        written.write({"event": "spawned", "peer": peer, "pid": child.pid, **host})
    written.write(*view(*range(peers)), steps=10)
    try:
        yield written, children
    finally:
        for child in children:
            child.kill()
            child.wait()


def reasons(injections: list[Injection]) -> list[str]:
    return [one.why for one in injections]


def test_rank_0_is_killed_once_and_the_next_fault_waits_until_the_job_is_whole(tmp_path: Path) -> None:
    with job(tmp_path, 3) as (written, children):
        written.later = {
            5: lambda: written.write({"event": "regrouping", "target": 3}, {"event": "lost", "peer": 0}),
            6: lambda: written.write(*view(1, 2, version=2, begins=10), steps=11),
            9: lambda: written.write({"event": "spawned", "peer": 3, "pid": children[2].pid}),
            12: lambda: written.write(*view(1, 2, 3, version=3, begins=11), {"event": "rescale"}, steps=12),
        }
        done = written.inject("now kill coordinator; once settled resize 2")
        assert children[0].wait() == -signal.SIGKILL
        assert children[1].poll() is children[2].poll() is None
    assert [(one.at, one.peers) for one in done] == [(0.0, (0,)), (12.0, ())]
    assert written.asked == ["chaos-2: resize 2"]


def test_steps_may_be_counted_from_the_beginning_of_the_schedule(tmp_path: Path) -> None:
    with job(tmp_path, 2) as (written, _):
        written.later = {3: lambda: written.write(steps=14), 7: lambda: written.write(steps=15)}
        (done,) = written.inject("at step +5 checkpoint")
    assert (done.at, done.step) == (7.0, 15)


def test_the_last_peer_that_holds_the_state_is_spared_unless_it_is_wanted(tmp_path: Path) -> None:
    with job(tmp_path, 2) as (written, children):
        done = written.inject("now kill rank 0; now kill ranks 0,1; now kill rank 1")
        assert children[0].wait() == -signal.SIGKILL
        assert children[1].poll() is None
        assert [bool(why) for why in reasons(done)] == [False, True, True]
        assert "no other peer holds the state" in done[2].why
        written.write({"event": "lost", "peer": 0}, *view(1, version=2))
        (last,) = written.inject("now kill rank 0", InjectionLimits(100.0, 1000.0, may_end_job=True))
        assert (last.why, children[1].wait()) == ("", -signal.SIGKILL)


def test_a_frozen_peer_stands_still_for_its_seconds_and_counts_as_held_for_so_long(tmp_path: Path) -> None:
    with job(tmp_path, 2) as (written, children):
        seen = list[bool]()
        written.later = {
            1: lambda: seen.append(os.WIFSTOPPED(os.waitpid(children[1].pid, os.WUNTRACED)[1])),
            31: lambda: written.write(steps=11),
            40: lambda: written.write(steps=12),
        }
        done = written.inject("now freeze rank 1 for 30 s; once settled checkpoint")
        assert seen == [True]
        assert os.WIFCONTINUED(os.waitpid(children[1].pid, os.WCONTINUED)[1]), "the end of the block thaws"
    assert (done[0].until, done[1].at) == (30.0, 31.0)


def test_peers_and_agents_of_other_machines_are_left_alone(tmp_path: Path) -> None:
    with job(tmp_path, 3, hosts=("127.0.0.1", "192.0.2.1", "127.0.0.3")) as (written, children):
        limits = InjectionLimits(100.0, 1000.0, local_hosts=(0, 2))
        done = written.inject("now kill rank 1; now kill host 1; now kill host 2", limits)
        assert all(child.poll() is None for child in children)
    assert reasons(done)[0] == "peer 1 runs on another machine (192.0.2.1): run kungfu chaos there"
    assert reasons(done)[1] == "kungfu-run runs on another machine (192.0.2.1): run kungfu chaos there"
    assert reasons(done)[2] == f"process {2**30} has ended"


def test_the_agent_of_a_host_is_signalled_and_all_its_peers_are_hit(tmp_path: Path) -> None:
    with job(tmp_path, 4, hosts=("127.0.0.1", "127.0.0.2", "127.0.0.3")) as (written, children):
        written.write({"event": "host", "host": 1, "name": "127.0.0.2", "pid": children[3].pid})
        written.later = {
            3: lambda: written.write(
                {"event": "host lost", "host": 1}, *view(0, 2, 3, version=2, begins=10), {"event": "missing"}, steps=12
            )
        }
        done = written.inject("now kill host 1", replace(LIMITS, local_hosts=(0, 1, 2)))
        assert children[3].wait() == -signal.SIGKILL
        assert children[1].poll() is None, "the peers of a host end with their agent, and get no signal"
    assert [(one.why, one.peers) for one in done] == [("", (1,))]


def test_a_joiner_that_comes_in_while_the_seconds_pass_is_still_who_is_hit(tmp_path: Path) -> None:
    with job(tmp_path, 2) as (written, children):
        written.write(*view(0), {"event": "spawned", "peer": 1, "pid": children[1].pid})
        written.later = {
            2: lambda: written.write(*view(0, 1, version=2, begins=10), steps=11),
            6: lambda: written.write({"event": "lost", "peer": 1}, *view(0, version=3, begins=11), steps=12),
        }
        done = written.inject("now after 3 s kill joiner")
        assert children[1].wait() == -signal.SIGKILL
        assert children[0].poll() is None
    assert [(one.why, one.peers) for one in done] == [("", (1,))]


def test_a_process_id_that_was_given_again_is_not_signalled(tmp_path: Path) -> None:
    with job(tmp_path, 2) as (written, children):
        began = psutil.Process(children[1].pid).create_time()
        written.write({"event": "spawned", "time": began - 60, "peer": 1, "pid": children[1].pid})
        (done,) = written.inject("now kill rank 1")
        assert children[1].poll() is None
    assert "another one has its id now" in done.why


@pytest.mark.parametrize(
    ("text", "why"), [
        ("at step 20 kill rank 0", "waited 1000 s for at step 20"),
        ("now kill rank 5", "there is no peer to kill rank 5"),
        ("now kill joiner", "there is no peer to kill joiner"),
        ("now kill host 7", "there is no host to kill host 7"),
        ("now resize 9", "the job refuses it: 9 peers"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_left_out_with_its_reason(tmp_path: Path, text: str, why: str) -> None:
    with job(tmp_path, 1) as (written, _):
        written.refuses = True
        (done,) = written.inject(text)
    assert done.at is None
    assert why in done.why


def test_nothing_is_injected_after_the_end_or_a_loss_without_recovery(tmp_path: Path) -> None:
    with job(tmp_path, 2) as (written, children):
        first = written.inject("now kill rank 1; once settled kill rank 0; now checkpoint")
        assert children[0].poll() is None
        assert [one.at for one in first] == [0.0, None, None]
        assert all("100 s after the fault before the job was not whole" in one.why for one in first[1:])
        written.is_ended = True
        ended = written.inject("at step 40 checkpoint; at step 50 kill rank 0")
        assert reasons(ended) == ["the job had ended"] * 2


def test_a_request_that_is_under_way_keeps_a_job_from_being_whole(tmp_path: Path) -> None:
    with job(tmp_path, 2) as (written, _):
        written.write({"event": "request", "id": "a", "state": "accepted"})
        written.later = {8: lambda: written.write({"event": "request", "id": "a", "state": "carried out"})}
        (done,) = written.inject("once settled checkpoint")
    assert done.at == 8.0


def test_a_process_that_has_ended_cannot_be_frozen_and_may_be_thawed() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    freeze, thaw = (one.what for one in parse("now freeze rank 0; now thaw rank 0"))
    with Freezer() as freezer:
        carry_out(thaw, [child.pid], freezer, longest_s=1.0)
        with pytest.raises(UsageError, match=f"process {child.pid} cannot be held: it has ended"):
            carry_out(freeze, [child.pid], freezer, longest_s=1.0)


# ---- processes -------------------------------------------------------------------------------------------------------


def test_a_process_that_was_there_when_it_was_recorded_can_be_reached() -> None:
    assert why_out_of_reach(os.getpid(), started_at=time.time()) == ""
    assert why_out_of_reach(os.getpid(), started_at=None) == ""


def test_a_process_that_has_ended_is_out_of_reach_also_before_it_is_reaped() -> None:
    child = subprocess.Popen(["sleep", "600"])
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert why_out_of_reach(child.pid, started_at=None) == f"process {child.pid} has ended"
    child.wait()
    assert why_out_of_reach(child.pid, started_at=None) == f"process {child.pid} has ended"


def test_the_hosts_of_a_job_that_are_this_machine_are_known_by_their_addresses() -> None:
    assert local_hosts(Job()) == local_hosts(Job(hosts={0: JobHost("", 7)})) == {0}, "the only host of a job"
    names = ("192.0.2.1", "127.0.0.2", "localhost")
    assert local_hosts(Job(hosts={host: JobHost(name, 7) for host, name in enumerate(names)})) == {1, 2}
