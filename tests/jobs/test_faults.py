"""Jobs under a schedule of faults: whatever happens, every sample counts once, and the end is that of a quiet run."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kungfu.runtime.deciding.data import Position
from kungfu.testing.faults import Carried, Fault, drive, parse, random_faults
from kungfu.training.data.order import SerialOrder, Turn
from tests.jobs.harness import Ended, started

pytestmark = pytest.mark.slow

SAMPLES, FEATURES, BATCH = 200, 5, 12
MOST = 4
SOAK = os.environ.get("KUNGFU_SOAK_FAULTS", "")


@dataclass(frozen=True)
class Faulted:
    """A job that went through faults to its end; ``found`` is what its last peers wrote down, by id."""

    ended: Ended
    carried: list[Carried]
    found: dict[int, dict[str, Any]]


def faulted(
    tmp_path: Path,
    faults: Sequence[Fault],
    *options: object,
    size: int,
    epochs: int,
    arguments: Sequence[object] = (),
    marks: Sequence[str] = (),
    deadline_s: float = 240.0,
) -> Faulted:
    """A job on which faults are carried out, and which then trains to its end in a hurry; with all that must hold."""
    results = tmp_path / "results"
    results.mkdir()
    for mark in marks:
        (results / mark).touch()

    def resize(size: int) -> None:
        (results / "size.new").write_text(str(size))
        (results / "size.new").replace(results / "size")

    words = ["--results", results, "--epochs", epochs, "--samples", SAMPLES, "--batch-size", BATCH, *arguments]
    with started(tmp_path, "-np", size, "--max", MOST, *options, program="convex.py", arguments=words) as job:
        over = lambda: job.process.poll() is not None  # noqa: E731 - two words that need the job
        carried = drive(faults, job.folder, size=size, resize=resize, over=over, deadline_s=deadline_s)
        (results / "hurry").touch()
        ended = job.end(deadline_s=180)
    found = {int(path.stem): json.loads(path.read_text()) for path in results.glob("*.json")}
    same_as_undisturbed(ended, found, epochs=epochs)
    return Faulted(ended, carried, found)


def same_as_undisturbed(ended: Ended, found: dict[int, dict[str, Any]], *, epochs: int) -> None:
    """What must hold of every run, whatever happened to it."""
    assert ended.code == 0, ended.output
    assert "InternalError" not in ended.output
    last = [one for one in found.values() if not one["left"]]
    assert len(last) == ended.sizes[-1], ended.output
    assert {one["digest"] for one in last} == {last[0]["digest"]}, "the last peers hold the same state, bit by bit"
    assert all(one["seen"] == {"1.0": SAMPLES * epochs} for one in last), [one["seen"] for one in last]
    assert all(one["traces"] == 1 for one in found.values())
    assert np.abs(np.array(last[0]["slope"]) - undisturbed(epochs)).max() < 1e-6
    steps = [row["step"] for row in ended.metrics]
    assert max(steps) == epochs * -(-SAMPLES // BATCH), "as many steps as without faults"


def undisturbed(epochs: int) -> np.ndarray:
    """The slope at the end of a run of one peer: gradient descent with momentum on the same batches."""
    draw, order = np.random.default_rng(0), SerialOrder(SAMPLES, 3, "keep")
    x = draw.normal(size=(SAMPLES, FEATURES))
    y = x @ np.arange(1.0, FEATURES + 1)[:, None] + draw.normal(size=(SAMPLES, 1))
    slope = speed = np.zeros((FEATURES, 1))
    turn = Turn(Position(0, 0), 1, 1, 0, BATCH)
    while turn.position.epoch < epochs:
        rows = order.indices(turn)
        gradient = 2 * x[rows].T @ (x[rows] @ slope - y[rows]) / len(rows)
        speed = 0.5 * speed - float(np.float32(0.05)) * gradient
        slope, turn = slope + speed, order.after(turn)
    return slope.ravel()


def test_an_error_deaths_a_peer_that_stands_still_and_one_that_is_taken_away(tmp_path):
    faults = parse("""
        at next recovered kill rank 0      # peer 1 has raised an error by itself; its replacement is on its way
        once settled stop rank 0
        at next regrouping notice rank 1
    """)
    run = faulted(tmp_path, faults, "--heartbeat", 4, size=3, epochs=30, marks=["raise-1"])
    (killed,), (stopped,), (noticed,) = (carried.peers for carried in run.carried)
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


def test_changes_by_chance(tmp_path):
    """KUNGFU_SOAK_FAULTS is CHANGES,KILLS,SEED; ``make soak`` draws thirty changes with ten kills."""
    changes, kills, seed = (int(word) for word in (SOAK or "5,2,3").split(","))
    faults = random_faults(seed, changes=changes, kills=kills, size=2)
    print(*faults, sep="\n")
    options = ("--failures", 1000, "--heartbeat", 5, "--deadline", 20)
    run = faulted(tmp_path, faults, *options, size=2, epochs=12 * changes)
    assert len(run.ended.all_of("recovered")) + len(run.ended.all_of("rescale")) >= changes
