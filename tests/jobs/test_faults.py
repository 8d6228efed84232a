"""Jobs under a schedule of faults: whatever happens, every sample counts once, and the end is that of a quiet run.

``KUNGFU_SOAK_JOBS`` is JOBS,SEED: so many jobs, whose schedules are drawn with the seeds from SEED on. Two of three run
on one host with four changes each, the others on three hosts with three faults. ``KUNGFU_SOAK_FAULTS`` is
CHANGES,KILLS,SEED of one long job; ``make soak`` draws thirty changes with ten kills.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.jobs.convex_runs import MOST, NO_QUORUM_CODE, faulted, training

CHANCE = os.environ.get("KUNGFU_SOAK_FAULTS", "")
LONG = [tuple(int(word) for word in CHANCE.split(","))] if CHANCE else []
JOBS, SEED = (int(word) for word in os.environ.get("KUNGFU_SOAK_JOBS", "0,1").split(","))
SEEDS = range(SEED, SEED + JOBS)
HOSTS = 3
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
