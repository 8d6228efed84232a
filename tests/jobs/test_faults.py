"""Jobs under a schedule of faults: whatever happens, every sample counts once, and the end is that of a quiet run."""

from __future__ import annotations

import os

import pytest

from kungfu.testing.faults import parse
from tests.jobs.convex_runs import faulted
from tests.jobs.random_faults import random_faults

SOAK = os.environ.get("KUNGFU_SOAK_FAULTS", "")


def test_an_error_deaths_a_peer_that_stands_still_and_one_that_is_taken_away(tmp_path):
    faults = parse("""
        at next recovered kill rank 0      # peer 1 has raised an error by itself; its replacement is on its way
        once settled freeze rank 0
        at next regrouping notice rank 1
    """)
    run = faulted(tmp_path, faults, "--heartbeat", 4, size=3, epochs=30, marks=["raise-1"])
    (killed,), (stopped,), (noticed,) = run.hit
    lost = {event["peer"]: event for event in run.ended.all_of("lost")}
    assert lost.keys() == {1, killed, stopped}
    assert lost[1]["error"] == "ValueError: peer 1 was told to fail"
    assert [event["peer"] for event in run.ended.all_of("noticed")] == [noticed]
    assert run.found[noticed]["left"], "it had time to leave"


@pytest.mark.skipif(not SOAK, reason="make soak runs it")
def test_two_peers_at_once_and_a_death_in_a_barrier(tmp_path):
    faults = parse("at barrier 3 kill ranks 0,2; at next recovered resize 3; at next recovered resize 3")
    run = faulted(tmp_path, faults, size=3, epochs=60, marks=["die-4"])
    assert {event["peer"] for event in run.ended.all_of("lost")} == {0, 2, 4}
    assert run.ended.sizes == [3, 1, 3, 2, 3]


@pytest.mark.skipif(not SOAK, reason="make soak runs it")
def test_changes_by_chance(tmp_path):
    """KUNGFU_SOAK_FAULTS is CHANGES,KILLS,SEED; ``make soak`` draws thirty changes with ten kills."""
    changes, kills, seed = (int(word) for word in SOAK.split(","))
    faults = random_faults(seed, changes=changes, kills=kills, size=2)
    print(*faults, sep="\n")
    options = ("--failures", 1000, "--heartbeat", 5, "--deadline", 20)
    run = faulted(tmp_path, faults, *options, size=2, epochs=12 * changes)
    assert len(run.ended.all_of("recovered")) + len(run.ended.all_of("rescale")) >= changes
