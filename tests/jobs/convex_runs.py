"""Runs of ``programs/convex.py`` under a schedule of faults, on one host and on several, with all that must hold.

Unlike ``kungfu.testing.inject``, a fault that cannot be carried out is an error.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.emulation.network import Network
from kungfu.runtime.core.request import Resize
from kungfu.runtime.core.sample_slices import Position
from kungfu.testing.faults import Fault, JobWatcher, SignalHosts, SignalPeers, When, parse
from kungfu.testing.faults.inject import has_come, hit_peers, job_state, processes_of
from kungfu.training.data.sampler import SerialSampler, StepSlice
from tests.jobs.harness import Ended, Hosts, Job, awaited, left_in, started, started_on_hosts
from tests.jobs.programs.convex import FEATURES, MOMENTUM, SHIFT, data

NO_QUORUM_CODE = 4  # the exit code of a host that has no quorum
MOST = 4
SAMPLES, BATCH = 200, 12
OPTIONS = ("--heartbeat", 4, "--deadline", 20, "--failures", 100)
MOMENT_WITHIN_S = 240.0  # of a fault, after the previous one
# The faults of a host of an emulated network, each with the fault of its kungfu-run that is the same for the job: all
# its processes are killed, stopped and continued; its links are cut, in both directions or in one, and mended.
MACHINE_FAULTS = {
    "unplug": "kill", "suspend": "freeze", "wake": "thaw", "cut": "freeze", "mute": "freeze", "deafen": "freeze",
    "mend": "thaw",
}  # fmt: skip
SIGNALS = {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP, "thaw": signal.SIGCONT, "notice": signal.SIGTERM}


@dataclass(frozen=True)
class Steered:
    """The folder by which a test steers the peers of a job, and in which they leave what they came to."""

    folder: Path
    epochs: int

    @property
    def words(self) -> list[object]:
        """The arguments of the program; makes the folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return ["--results", self.folder, "--epochs", self.epochs, "--samples", SAMPLES, "--batch-size", BATCH]

    def resize(self, size: int) -> None:
        """The program asks for this size by itself."""
        (self.folder / "size.new").write_text(str(size))
        (self.folder / "size.new").replace(self.folder / "size")

    def hurry(self) -> None:
        """From now on it trains to its end."""
        (self.folder / "hurry").touch()

    def ended(self, ended: Ended) -> dict[int, dict[str, Any]]:
        """What its last peers wrote down, by id; all must be as if nothing had happened to the job."""
        same_as_undisturbed(ended, found := left_in(self.folder), epochs=self.epochs)
        return found


@contextmanager
def on_one_host(
    tmp_path: Path, *options: object, size: int, epochs: int, marks: Sequence[str] = (), more: Sequence[object] = ()
) -> Iterator[tuple[Job, Steered]]:
    """A job of ``size`` peers, and of `MOST` at most, that goes on until it is told to hurry."""
    steered = Steered(tmp_path / "results", epochs)
    words = [*steered.words, *more]
    for mark in marks:
        (steered.folder / mark).touch()
    with started(tmp_path, "-np", size, "--max", MOST, *options, program="convex.py", arguments=words) as job:
        yield job, steered


@dataclass(frozen=True)
class Faulted:
    """A job to its end through faults: the peers that each ``hit``, and what its last peers wrote down, by id."""

    ended: Ended
    hit: list[tuple[int, ...]]
    found: dict[int, dict[str, Any]]


def faulted(tmp_path: Path, faults: str, *options: object, size: int, **given: Any) -> Faulted:
    """A job on which faults are carried out, and which then trains to its end in a hurry; with all that must hold."""
    with on_one_host(tmp_path, *options, size=size, **given) as (job, steered):
        hit = run_faults(faults, [job], steered, size=size)
        steered.hurry()
        ended = job.end()
    return Faulted(ended, hit, steered.ended(ended))


@dataclass(frozen=True)
class Run:
    """A job of ``programs/convex.py`` that runs on several hosts."""

    hosts: Hosts
    steered: Steered
    size: int

    def faults(self, text: str) -> None:
        """Carries faults out, and waits until the job has settled with as many peers as before."""
        run_faults(text, self.hosts.jobs, self.steered, size=self.size)

    def ends(self, *codes: int, tells: int = 0) -> list[Ended]:
        """Has it train to its end; all hosts end with these codes, and host ``tells`` tells the whole story."""
        self.steered.hurry()
        ended = self.hosts.ends()
        assert [one.code for one in ended] == [*codes], "\n".join(one.output for one in ended)
        self.steered.ended(ended[tells])
        return ended


@contextmanager
def training(
    tmp_path: Path,
    *options: object,
    size: int,
    epochs: int = 40,
    most: int | None = None,
    more: Sequence[object] = (),
    **given: Any,
) -> Iterator[Run]:
    """A job of ``size`` peers, and of ``most`` at most, that goes on until it is told to hurry; on ``given`` hosts."""
    steered = Steered(tmp_path / "results", epochs)
    line = ["-np", size, "--max", most or size, *OPTIONS, *options]
    words = [*steered.words, *more]
    with started_on_hosts(tmp_path, *line, program="convex.py", arguments=words, **given) as hosts:
        yield Run(hosts, steered, size)


def same_as_undisturbed(ended: Ended, found: dict[int, dict[str, Any]], *, epochs: int) -> None:
    """What must hold of every run, whatever happened to it."""
    assert "InternalError" not in ended.output
    last = [one for one in found.values() if not one["left"]]
    assert len(last) == ended.sizes[-1], ended.output
    assert {one["digest"] for one in last} == {last[0]["digest"]}, "the last peers hold the same state, bit by bit"
    assert all(one["seen"] == {"1.0": SAMPLES * epochs} for one in last), [one["seen"] for one in last]
    assert all(one["traces"] == 1 for one in found.values())
    assert np.abs(np.array(last[0]["slope"]) - undisturbed(epochs)).max() < 1e-6
    steps = epochs * -(-SAMPLES // BATCH)
    assert max(row["step"] for row in ended.metrics) == steps, "as many steps as without faults"
    assert {one["steps"] for one in last} == {steps}, "a registered variable counts them"
    assert [one["counted"] for one in last] == [{"steps": steps, "samples": SAMPLES * epochs}] * len(last)
    assert all(one["numbers"] == [SAMPLES, (SAMPLES - 1) / 2] for one in last), "of the last epoch"
    mean = (SHIFT + data(SAMPLES)[0].mean(axis=0)) * (1 - MOMENTUM**steps)
    assert np.abs(np.array(last[0]["mean"]) - mean).max() < 0.08, "BatchNorm's mean is that of so many steps"


def undisturbed(epochs: int) -> np.ndarray:
    """The slope at the end of a run of one peer: gradient descent with momentum on the same batches."""
    (x, y), order = data(SAMPLES), SerialSampler(SAMPLES, 3)
    slope = speed = np.zeros((FEATURES, 1))
    turn = StepSlice(Position(0, 0), 1, 1, 0, BATCH)
    while turn.position.epoch < epochs:
        rows = order.indices(turn)
        gradient = 2 * x[rows].T @ (x[rows] @ slope - y[rows]) / len(rows)
        speed = 0.5 * speed - float(np.float32(0.05)) * gradient
        slope, turn = slope + speed, turn.after(SAMPLES)
    return slope.ravel()


# ---- faults ----------------------------------------------------------------------------------------------------------


def run_faults(
    text: str,
    jobs: Sequence[Job],
    steered: Steered,
    *,
    size: int,
    within: Network | None = None,
    watches: Mapping[int, JobWatcher] | None = None,
) -> list[tuple[int, ...]]:
    """Carries out faults, one after the other, on a job that runs on this machine, and waits until it has settled.

    It has settled when it has the size that it is to have, and no joiner is on its way. What is frozen stays frozen:
    the job gives it up, or another fault thaws it. Faults of a machine (see `MACHINE_FAULTS`) need its network, in
    ``within``, where it has the name of its host. Of the records of ``jobs``, one a host, the first one whose host was
    not hit counts; ``watches`` follow them, by the number of the host, if they were followed before. Gives for each
    fault the ids of the peers that it hit; of one on hosts, all peers that these had started.
    """
    watches = watches or {host: JobWatcher(job.folder) for host, job in enumerate(jobs)}
    carried, doomed, hosts = list[tuple[int, ...]](), set[int](), set[int]()
    begun = _undisturbed(watches, hosts).look().steps
    await_moment = partial(_await, begun=begun, jobs=jobs)
    for machine_fault, fault in _faults(text):
        watch = _undisturbed(watches, hosts)
        coming = await_moment(fault.when, watch, size=size, doomed=doomed)
        job = watch.look()
        peers = hit_peers(fault.what, job, coming)
        carried.append(peers)
        if isinstance(fault.what, Resize):
            size = fault.what.size
            steered.resize(size)
            continue
        assert isinstance(fault.what, SignalPeers | SignalHosts)
        if machine_fault:
            assert within is not None
            assert isinstance(fault.what, SignalHosts)
            names = {job.hosts[host].name for host in fault.what.hosts}
            machines = [machine for machine, one in enumerate(within.hosts) if one.name in names]
            _hit_machines(machine_fault, SIGNALS[fault.what.verb], machines, within)
        else:
            for process in processes_of(fault.what, job, peers):
                assert process.pid is not None, f"the record does not name a process of {fault}"
                with suppress(ProcessLookupError):  # it has just ended
                    os.kill(process.pid, SIGNALS[fault.what.verb])
        spares = fault.what.verb == "thaw"
        doomed = doomed - {*peers} if spares else doomed | {*peers}
        if isinstance(fault.what, SignalHosts):
            hit = {*fault.what.hosts}
            # A host that was given up meanwhile writes no more of the record when it wakes.
            hosts = hosts - (hit & {*job.hosts_present}) if spares else hosts | hit
    await_moment(When("settled"), _undisturbed(watches, hosts), size=size, doomed=doomed)
    return carried


def _faults(text: str) -> Iterator[tuple[str, Fault]]:
    """Each fault of a schedule with its name in `MACHINE_FAULTS`; '' for one of kungfu's own language."""
    faults = (fault for line in text.splitlines() for fault in line.partition("#")[0].split(";"))
    for words in map(str.split, faults):
        name = next((word for word in words if word in MACHINE_FAULTS), "")
        for fault in parse(" ".join(MACHINE_FAULTS.get(word, word) for word in words)):
            yield name, fault


def _hit_machines(fault: str, number: int, machines: Sequence[int], net: Network) -> None:
    """Carries out one of `MACHINE_FAULTS`, by a signal of this number where it hits processes."""
    for host in machines:
        others = [one for one in range(len(net.hosts)) if one != host]
        if fault in ("unplug", "suspend", "wake"):
            net.hosts[host].signal(number)
            continue
        for senders, receivers, faults in (([host], others, ("cut", "mute")), (others, [host], ("cut", "deafen"))):
            (net.cut if fault in faults else net.mend)(senders, receivers)


def _undisturbed(watches: Mapping[int, JobWatcher], hit: set[int]) -> JobWatcher:
    """The record of a host that was hit may have ended, or stand still."""
    others = (watch for host, watch in watches.items() if host not in hit)
    return next(others, next(iter(watches.values())))


def _await(
    when: When, watch: JobWatcher, *, size: int, doomed: set[int], begun: int, jobs: Sequence[Job]
) -> tuple[int, ...]:
    """Gives those who were on their way when the moment came, which may lie ``after_s`` seconds back.

    Those who are doomed were hit by a fault: as long as they live, the job has not settled.
    """
    before = watch.look().tally.counts

    def has_come_now() -> bool:
        state = watch.look()
        calm = state.is_settled(size) and doomed.isdisjoint(state.members)
        is_there = has_come(when, state, calm=calm, begun=begun, before=before)
        is_running = any(job.process.poll() is None for job in jobs)
        assert is_there or is_running, f"the job ended before the moment {when}; let it train longer"
        return is_there

    awaited(has_come_now, what=lambda: f"{when}; {job_state(watch.look())}", deadline_s=MOMENT_WITHIN_S)
    coming = watch.look().joiners
    if when.after_s:
        time.sleep(when.after_s)
    return coming
