"""Jobs under a schedule of faults: whatever happens, every sample counts once, and the end is that of a quiet run.

``KUNGFU_SOAK_JOBS`` is JOBS,SEED: so many jobs, whose schedules are drawn with the seeds from SEED on. Two of three run
on one host with four changes each, the others on three hosts with three faults. ``KUNGFU_SOAK_FAULTS`` is
CHANGES,KILLS,SEED of one long job; ``make soak`` draws thirty changes with ten kills. ``KUNGFU_SOAK_NETWORK`` is
CHANGES,SEED of one long job on three hosts of an emulated network, which come back after each loss.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kungfu.event_log.job import Job as JobState
from kungfu.testing.faults import JobWatcher, SignalHosts
from kungfu.testing.faults.inject import why_it_would_end
from tests.jobs.convex_runs import MOST, NO_QUORUM_CODE, faulted, run_faults, training
from tests.jobs.harness import awaited, networked

CHANCE = os.environ.get("KUNGFU_SOAK_FAULTS", "")
LONG = [tuple(int(word) for word in CHANCE.split(","))] if CHANCE else []
JOBS, SEED = (int(word) for word in os.environ.get("KUNGFU_SOAK_JOBS", "0,1").split(","))
SEEDS = range(SEED, SEED + JOBS)
NETWORK = os.environ.get("KUNGFU_SOAK_NETWORK", "")
HOSTS = 3
KINDS_OF_CHANGE = (*["host"] * 5, "peer", "peer", "outage", "resize")
# The faults that cost a job a host: the exit code of its kungfu-run, and the fault that ends the first one, if any.
LOSSES = {
    "notice": (0, ""),
    "kill": (-signal.SIGKILL, ""),
    "unplug": (-signal.SIGKILL, ""),
    "freeze": (NO_QUORUM_CODE, "thaw"),
    "suspend": (NO_QUORUM_CODE, "wake"),
    "cut": (NO_QUORUM_CODE, "mend"),
    "mute": (NO_QUORUM_CODE, "mend"),
    "deafen": (NO_QUORUM_CODE, "mend"),
}


def test_an_error_deaths_a_peer_that_stands_still_and_one_that_is_taken_away(tmp_path: Path) -> None:
    faults = """
        at next recovered kill rank 0      # peer 1 has raised an error by itself; its replacement is on its way
        once settled freeze rank 0
        at next regrouping notice rank 1
    """
    run = faulted(tmp_path, faults, "--heartbeat", 4, size=3, epochs=30, marks=["raise-1"])
    (killed,), (stopped,), (noticed,) = run.hit
    lost = {event["peer"]: event for event in run.ended.all_of("lost")}
    assert lost.keys() == {1, killed, stopped}
    assert lost[1]["error"] == "ValueError: peer 1 was told to fail"
    assert [event["peer"] for event in run.ended.all_of("noticed")] == [noticed]
    assert run.found[noticed]["left"], "it had time to leave"


@pytest.mark.skipif(not CHANCE, reason="make soak runs it")
def test_two_peers_at_once_and_a_death_in_a_barrier(tmp_path: Path) -> None:
    faults = "at barrier 3 kill ranks 0,2; at next recovered resize 3; at next recovered resize 3"
    run = faulted(tmp_path, faults, size=3, epochs=60, marks=["die-4"])
    assert {event["peer"] for event in run.ended.all_of("lost")} == {0, 2, 4}
    assert run.ended.sizes == [3, 1, 3, 2, 3]


# ---- drawn at random, the same ones for the same seed ----------------------------------------------------------------


@pytest.mark.timeout(3600)  # of the long job
@pytest.mark.parametrize(("changes", "kills", "seed"), [*LONG, *((4, 2, seed) for seed in SEEDS if seed % 3)])
def test_a_job_on_one_host_under_changes_by_chance(tmp_path: Path, changes: int, kills: int, seed: int) -> None:
    faults = [*random_faults(seed, changes=changes, kills=kills, size=2)]
    print(f"seed {seed}:", *faults, sep="\n  ")
    options = ("--failures", 1000, "--heartbeat", 5, "--deadline", 30)
    run = faulted(tmp_path, "\n".join(faults), *options, size=2, epochs=max(60, 12 * changes))
    assert len(run.ended.all_of("recovered")) + len(run.ended.all_of("rescale")) >= changes


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [seed for seed in SEEDS if seed % 3 == 0])
def test_a_job_on_three_hosts_under_faults_by_chance(tmp_path: Path, seed: int) -> None:
    """One fault hits a host, any but the last: it is killed, taken away, or stopped until the job goes on without it.

    The others kill or stop one peer, and the replacement takes the slot that became free: the last host has one more
    at first, so there is always one, and no host runs most of the peers when one is lost.
    """
    draw = random.Random(seed)
    faults = [f"{soon(draw)} {draw.choice(('kill', 'freeze'))} rank {draw.randrange(HOSTS)}" for _ in range(2)]
    host, verb = draw.randrange(HOSTS - 1), draw.choice(("kill", "notice", "freeze"))
    code, after = LOSSES[verb]
    woken = f"; once settled {after} host {host}" if after else ""
    faults.insert(draw.randrange(3), f"{soon(draw)} {verb} host {host}{woken}")
    print(f"seed {seed}:", *faults, sep="\n  ")
    codes = [code if one == host else 0 for one in range(HOSTS)]
    with training(tmp_path, slots=(1, 1, 2), size=HOSTS, epochs=60) as run:
        run.faults("\n".join(faults))
        run.ends(*codes, tells=1 - host)


@pytest.mark.timeout(7200)
@pytest.mark.skipif(not NETWORK, reason="make soak runs it")
def test_a_job_on_a_network_under_changes_by_chance(tmp_path: Path) -> None:
    """Peers, kungfu-runs, machines and links are hit, those that lead too, and a lost host comes back at once."""
    changes, seed = (int(word) for word in NETWORK.split(","))
    draw, size = random.Random(seed), HOSTS
    print(f"seed {seed}:")
    given: dict[str, Any] = {"slots": (1, 2, 2), "size": size, "epochs": 8 * changes}
    with (
        networked(HOSTS) as net,
        training(tmp_path, "--attachment", "horovod", "--failures", 1000, within=net, **given) as run,
    ):
        newest, codes = [*run.hosts.jobs], [0] * HOSTS
        watches = [JobWatcher(job.folder) for job in newest]
        run_faults("", newest, run.steered, size=size, watches=watches)
        for number in range(changes):
            change = random_change(draw, watches[0].look(), size=size)
            print(f"  {number}:", change.faults, flush=True)
            run_faults(change.faults, newest, run.steered, size=size, within=net, watches=watches)
            size = change.size
            if (lost := change.lost) is not None:
                codes[run.hosts.jobs.index(newest[lost])] = change.code
                newest[lost].end(code=change.code)
                newest[lost] = run.hosts.back(lost)
                codes.append(0)
                other = (lost + 1) % HOSTS
                newest[other].event("host", pid=newest[lost].process.pid)
                # The record of a host that is back begins with its return.
                watches[lost] = JobWatcher(newest[lost].folder)
                watches[lost].job = watches[other].look()

            def all_in() -> bool:
                return all(len(watch.look().hosts_present) == HOSTS for watch in watches)

            awaited(all_in, what="hosts that were not hit, and are lost", deadline_s=60.0)
        run.steered.hurry()
        newest[0].end(deadline_s=1800.0)
        longest = min(run.hosts.jobs.index(job) for job in newest)
        every = run.ends(*codes, tells=longest)
    assert not any(ended.all_of("dissent") for ended in every), "the peers held the same state at all barriers"


@dataclass(frozen=True)
class Change:
    """The faults of a change, the size of the job after it, and the host that it costs, with the code of its end."""

    faults: str
    size: int
    lost: int | None = None
    code: int = 0


def random_change(draw: random.Random, job: JobState, *, size: int) -> Change:
    """A change that a job on a network survives: of its peers, or the loss of a host without most of the peers."""
    kind, rank, host = draw.choice(KINDS_OF_CHANGE), draw.randrange(size), draw.randrange(HOSTS)
    losable = [
        one
        for one in range(HOSTS)
        if not why_it_would_end(SignalHosts("kill", (one,)), job, job.peers_of(one), living=job.members)
    ]
    if kind == "resize":
        size = 2 if size == HOSTS else HOSTS
        return Change(f"{soon(draw)} resize {size}", size)
    if kind == "outage":
        return Change(f"{soon(draw)} cut host {host}; now after {1 + hundredths(draw, 100):g} s mend host {host}", size)
    if kind == "peer" or not losable:
        return Change(f"{soon(draw)} {draw.choice(('kill', 'kill', 'notice', 'freeze'))} rank {rank}", size)
    leader = [one for one in losable if job.is_led_by(one)]
    host, verb = draw.choice([*losable, *leader, *leader]), draw.choice([*LOSSES])
    code, after = LOSSES[verb]
    faults, lost = f"{soon(draw)} {verb} host {host}", f"at next host lost after {hundredths(draw, 50)} s"
    # The host wakes, or is reached again, while the job recovers from its loss or from another one meanwhile.
    if verb != "notice" and size - len(job.peers_of(host)) > 1 and draw.random() < 0.3:
        faults, lost = f"{faults}; {lost} kill rank 0", "once settled"
    return Change(f"{faults}; {lost} {after} host {host}" if after else faults, size, host, code)


def random_faults(seed: int, *, changes: int, kills: int, size: int) -> Iterator[str]:
    """A schedule of `changes` changes of the membership for a job that begins with `size` peers.

    Each comes up to half a second after the job has settled from the previous one. `kills` of them kill one peer, two
    in a step, a second one while the others regroup, or a joiner, or stop one; the others are notices and resizes.
    """
    draw = random.Random(seed)
    kinds = ["kill"] * kills + ["else"] * (changes - kills)
    draw.shuffle(kinds)
    for kind in kinds:
        rank, when = draw.randrange(size), soon(draw)
        if kind == "else":
            if draw.random() < 0.3:
                yield f"{when} notice rank {rank}"
            else:
                size = draw.choice([one for one in range(2, MOST + 1) if one != size])
                yield f"{when} resize {size}"
            continue
        how = draw.choice(["one", "one", "joiner", "freeze", *(["two", "again"] if size > 2 else [])])
        other = f",{(rank + draw.randrange(1, size)) % size}" if how == "two" else ""
        yield f"{when} {'freeze' if how == 'freeze' else 'kill'} ranks {rank}{other}"
        if how == "again":
            event = draw.choice(["lost", "regrouping", "view"])
            yield f"at next {event} after {hundredths(draw, 10)} s kill rank {draw.randrange(size - 1)}"
        if how == "joiner":
            event, most = draw.choice([("spawned", 300), ("offered", 20)])
            yield f"at next {event} after {hundredths(draw, most)} s kill joiner"


def soon(draw: random.Random) -> str:
    return f"once settled after {hundredths(draw, 50)} s"


def hundredths(draw: random.Random, most: int) -> float:
    """Less than so many hundredths of a second."""
    return draw.randrange(most) / 100
