"""A long job on machines of an emulated network, under changes by chance, with the agents and with an etcd.

``KUNGFU_SOAK_NETWORK`` is CHANGES,SEED. Peers, kungfu-runs, machines, links and the etcd are hit, those that lead too.
Three machines found the job. A host that is lost comes back at once, or after the job has forgotten it; a fourth
machine, which no list names, joins and leaves.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.emulation.network import Network
from kungfu.event_log.job import Job as JobState
from kungfu.testing.faults import JobWatcher, SignalHosts
from kungfu.testing.faults.inject import why_it_would_end
from tests.jobs.convex_runs import Run, run_faults, training
from tests.jobs.harness import Job, awaited, networked
from tests.jobs.test_faults import LOSSES, hundredths, soon
from tests.runtime.agent.etcd_server import EtcdServer, etcd_server, needs_etcd

NETWORK = os.environ.get("KUNGFU_SOAK_NETWORK", "")
SLOTS = (1, 2, 2, 1)  # of each machine; the first three found the job, and the last one joins it
FOUNDERS, JOINER, STORE = 3, 3, 4  # the numbers of machines
FORGET_S = 20


@dataclass(frozen=True)
class Change:
    """One change of a job on a network.

    Args:
        size: The size of the job after it.
        faults: The faults, as a schedule.
        lost: The numbers of the hosts that the faults cost the job.
        code: The exit code of their kungfu-runs.
        forgotten: True if their machines come back once the job has forgotten these hosts, instead of at once.
        by_joining: True if these machines then join the job, instead of their first line.
        joins: True if the fourth machine joins the job meanwhile.
        store: The machines from which the etcd is cut off meanwhile; the etcd's own for a freeze.
        store_s: The seconds after which the etcd answers again.
    """

    size: int
    faults: str = ""
    lost: tuple[int, ...] = ()
    code: int = 0
    forgotten: bool = False
    by_joining: bool = False
    joins: bool = False
    store: tuple[int, ...] = ()
    store_s: float = 0.0

    def __str__(self) -> str:
        joins = "a host joins; " if self.joins else ""
        how = "frozen" if self.store == (STORE,) else f"cut off from machines {self.store}"
        store = f"the etcd is {how} for {self.store_s:g} s; " if self.store else ""
        back = "; back once forgotten" * self.forgotten + ", by joining" * self.by_joining
        return f"{joins}{store}{self.faults}{back}"


@dataclass
class Machines:
    """The machines of a network, and the hosts of a job that run on them.

    Args:
        run: The job.
        net: The network.
        etcd: The etcd that decides on the leader, if any.
        codes: The exit codes of all kungfu-runs, in the order of their starts.
        jobs: The running kungfu-run of each host that is in the job, by the number of the host; the oldest first.
        machines: The machine of each host that has ever been in the job.
        watches: The followers of their records.
        size: The size of the job.
    """

    run: Run
    net: Network
    etcd: EtcdServer | None
    codes: list[int] = field(default_factory=list)
    jobs: dict[int, Job] = field(default_factory=dict)
    machines: dict[int, int] = field(default_factory=dict)
    watches: dict[int, JobWatcher] = field(default_factory=dict)
    size: int = FOUNDERS

    def enter(self, machine: int, job: Job) -> None:
        """Waits until the host that a machine has started is in the job, and knows it from then on."""
        number = job.event("host", pid=job.process.pid)["host"]
        self.codes += [0] * (len(self.run.hosts.jobs) - len(self.codes))
        self.jobs[number], self.machines[number], self.watches[number] = job, machine, JobWatcher(job.folder)

    def join(self, machine: int) -> Job:
        """Starts a host that no list names; those of the job may be lost at the moment."""
        others = ",".join(self.net.hosts[other].name for other in range(FOUNDERS) if other != machine)
        asked = ("--join", others) if self.etcd is None else ()
        name = f"joiner-{machine}-{len(self.run.hosts.jobs)}"
        return self.run.hosts.join(machine + 1, SLOTS[machine], *asked, name=name)

    def has(self, machine: int) -> bool:
        """True if a host on this machine is in the job."""
        return machine in {self.machines[number] for number in self.jobs}

    def slots_without(self, lost: tuple[int, ...]) -> int:
        """The slots of the other hosts of the job, in which the lost peers are replaced."""
        return sum(SLOTS[self.machines[host]] for host in self.jobs if host not in lost)

    def look(self) -> JobState:
        """The job according to the oldest record."""
        return next(iter(self.watches.values())).look()

    def carry_out(self, change: Change) -> None:
        """Carries a change out, and waits until the job has settled and all hosts are in it that shall be."""
        with self._store_disturbed(change):
            joiner = self.join(JOINER) if change.joins else None
            running = [*self.jobs.values()]
            given: dict[str, Any] = {"size": self.size, "within": self.net, "watches": self.watches}
            run_faults(change.faults, running, self.run.steered, **given)
        self.size = change.size
        if joiner is not None:
            self.enter(JOINER, joiner)
        self._lose(change)
        present = {*self.jobs}

        def all_in() -> bool:
            return all({*watch.look().hosts_present} == present for watch in self.watches.values())

        awaited(all_in, what=lambda: f"hosts {present}: {self.look().hosts_present}", deadline_s=60.0)

    def _lose(self, change: Change) -> None:
        """Waits for the ends of the lost hosts; then the machines come back, apart from the one that no list names."""
        lost = {host: self.jobs.pop(host) for host in change.lost}
        for host, job in lost.items():
            del self.watches[host]
            self.codes[self.run.hosts.jobs.index(job)] = change.code
            job.end(code=change.code)
        for host in lost if change.forgotten else ():
            next(iter(self.jobs.values())).event("host left", host=host)
        for machine in (self.machines[host] for host in lost):
            if machine != JOINER:
                self.enter(machine, self.join(machine) if change.by_joining else self.run.hosts.back(machine))

    @contextmanager
    def _store_disturbed(self, change: Change) -> Iterator[None]:
        """The etcd does not answer from the beginning of the block on, for the seconds of the change."""
        if not change.store:
            yield
            return
        assert self.etcd is not None
        machines = [*change.store]
        if machines == [STORE]:
            self.etcd.signal(signal.SIGSTOP)
        else:
            self.net.part(machines, [STORE])
        timer = threading.Timer(change.store_s, self._mend_store, [machines])
        timer.start()
        try:
            yield
        finally:
            timer.join()

    def _mend_store(self, machines: list[int]) -> None:
        assert self.etcd is not None
        if machines == [STORE]:
            self.etcd.signal(signal.SIGCONT)
        else:
            self.net.mend(machines, [STORE])
            self.net.mend([STORE], machines)


@pytest.mark.timeout(7200)
@pytest.mark.skipif(not NETWORK, reason="make soak runs it")
@pytest.mark.parametrize(
    "with_etcd", [pytest.param(False, id="agents"), pytest.param(True, marks=needs_etcd, id="etcd")]
)
def test_a_job_on_a_network_under_changes_by_chance(tmp_path: Path, with_etcd: bool) -> None:
    changes, seed = (int(word) for word in NETWORK.split(","))
    draw = random.Random(seed)
    options: list[object] = ["--attachment", "horovod", "--failures", 1000, "--forget-host", FORGET_S]
    given: dict[str, Any] = {"slots": SLOTS[:FOUNDERS], "listed": not with_etcd, "epochs": 10 * changes}
    with ExitStack() as stack:
        net, etcd = stack.enter_context(networked(STORE + 1)), None
        if with_etcd:
            etcd = stack.enter_context(etcd_server(tmp_path, within=net.hosts[STORE]))
            options += ["--store", f"etcd://{etcd.address}", "--job", "soak", "--min-hosts", FOUNDERS]
        run = stack.enter_context(training(tmp_path, *options, size=FOUNDERS, within=net, **given))
        machines = Machines(run, net, etcd)
        for machine, job in enumerate([*run.hosts.jobs]):
            machines.enter(machine, job)
        machines.carry_out(Change(FOUNDERS))
        print(f"seed {seed}:")
        for number in range(changes):
            change = random_change(draw, machines)
            print(f"  {number}: {change}", flush=True)
            machines.carry_out(change)
        run.steered.hurry()
        longest = next(iter(machines.jobs.values()))
        longest.end(deadline_s=1800.0)
        every = run.ends(*machines.codes, tells=run.hosts.jobs.index(longest))
    assert not any(ended.all_of("dissent") for ended in every), "the peers held the same state at all barriers"


# ---- drawn by chance -------------------------------------------------------------------------------------------------


def random_change(draw: random.Random, machines: Machines) -> Change:
    """A change that the job survives: of its peers, of its hosts, of the links, or of the etcd."""
    with_etcd, has_joined, size = machines.etcd is not None, machines.has(JOINER), machines.size
    kind = draw.choice(
        [*["loss"] * 5, "forgotten", *["peer"] * 2, "outage", "resize", *["joiner"] * 2, *["store"] * 3 * with_etcd]
    )
    if kind == "outage":
        host = draw.choice([*machines.jobs])
        return Change(size, f"{soon(draw)} cut host {host}; now after {1 + hundredths(draw, 100):g} s mend host {host}")
    if kind == "joiner" and has_joined:
        joiner = next(host for host in machines.jobs if machines.machines[host] == JOINER)
        return random_loss(draw, machines, among=[joiner])
    if kind == "joiner":
        other = random_loss(draw, machines) if draw.random() < 0.5 else Change(size)
        return replace(other, joins=True)
    if kind == "store":
        cut = draw.choice([(STORE,), (STORE,), tuple(range(STORE)), (draw.randrange(FOUNDERS),)])
        inner = draw.choice(["loss", "loss", "peer", "resize", "none"])
        other = Change(size)
        if inner == "loss":
            # A cut of the whole machine would be mended in part, with the link to the etcd.
            verbs = ("kill", "unplug", "notice", "freeze", "suspend")
            other = random_loss(draw, machines, verbs=verbs)
        elif inner != "none":
            other = random_change_of_peers(draw, inner, size=size)
        return replace(other, store=cut, store_s=0.5 + hundredths(draw, 850))
    if kind in ("loss", "forgotten"):
        return random_loss(draw, machines, forgotten=kind == "forgotten")
    return random_change_of_peers(draw, kind, size=size)


def random_change_of_peers(draw: random.Random, kind: str, *, size: int) -> Change:
    if kind == "resize":
        size = 2 if size == FOUNDERS else FOUNDERS
        return Change(size, f"{soon(draw)} resize {size}")
    verb = draw.choice(("kill", "kill", "notice", "freeze"))
    return Change(size, f"{soon(draw)} {verb} rank {draw.randrange(size)}")


def random_loss(
    draw: random.Random,
    machines: Machines,
    *,
    among: list[int] | None = None,
    verbs: tuple[str, ...] = tuple(LOSSES),
    forgotten: bool = False,
) -> Change:
    """The loss of a host, of the one that leads more often than of others, or of a peer if no host can be lost; with an
    etcd also of two hosts at once."""
    job, size = machines.look(), machines.size
    with_etcd = machines.etcd is not None
    losable = [host for host in among or machines.jobs if is_losable((host,), job, with_etcd=with_etcd)]
    if not losable:
        return random_change_of_peers(draw, "peer", size=size)
    leader = [host for host in losable if job.is_led_by(host)]
    hosts: tuple[int, ...] = (draw.choice([*losable, *leader, *leader]),)
    verb = draw.choice(verbs)
    if with_etcd and verb in ("kill", "unplug") and draw.random() < 0.5:
        pairs = [(*hosts, other) for other in machines.jobs if other not in hosts]
        losable_pairs = [pair for pair in pairs if is_losable(pair, job, with_etcd=True)]
        hosts = draw.choice([hosts, *(pair for pair in losable_pairs if machines.slots_without(pair) >= size)])
    named = f"hosts {','.join(map(str, hosts))}"
    code, after = LOSSES[verb]
    faults, lost = f"{soon(draw)} {verb} {named}", f"at next host lost after {hundredths(draw, 50)} s"
    # The host wakes, or is reached again, while the job recovers from its loss or from another one meanwhile.
    left = size - sum(len(job.peers_of(host)) for host in hosts)
    if verb != "notice" and left > 1 and draw.random() < 0.3:
        faults, lost = f"{faults}; {lost} kill rank 0", "once settled"
    faults = f"{faults}; {lost} {after} {named}" if after else faults
    by_joining = forgotten and not with_etcd and draw.random() < 0.5
    return Change(size, faults, hosts, code, forgotten, by_joining)


def is_losable(hosts: tuple[int, ...], job: JobState, *, with_etcd: bool) -> bool:
    """True if the job survives the loss of hosts: with an etcd, any other host that has the state is enough."""
    peers = [peer for host in hosts for peer in job.peers_of(host)]
    if with_etcd:
        return not {*job.members} <= {*peers}
    return not why_it_would_end(SignalHosts("kill", hosts), job, peers, living=job.members)
