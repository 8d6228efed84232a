"""Peers that join and leave while training goes on."""

from __future__ import annotations

import json
import os
import zlib
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from kungfu import native
from kungfu.runtime.checkpoints.folder import find
from tests.jobs.harness import Ended, asked, awaited, job_results, left_in, ran, started
from tests.jobs.programs.keras_fit import SAMPLES
from tests.soak import SOAK

trained = partial(job_results, "network.py")


def assert_exact(found: dict[int, dict], *, epochs: int) -> None:
    """Every sample once an epoch, over all peers, those that left too; and one trace in each."""
    total = np.sum([peer["seen"] for peer in found.values()], axis=0)
    assert total.tolist() == [epochs] * len(total)
    assert {peer["traces"] for peer in found.values()} == {1}


def assert_streams_go_on(found: dict[int, dict], *, job: str, joiners: set[int]) -> None:
    """Each peer has drawn once a step that it has done, from where its own number and the seeds let it begin."""
    for peer in found.values():
        seed = zlib.crc32(job.encode()) << 64 if peer["peer"] in joiners else 0
        begun, drawn = np.random.SeedSequence([seed, peer["peer"], 0]).generate_state(2).tolist()
        assert peer["done"] > 0
        assert peer["seeds"] == [[begun, drawn + peer["done"]]], f"peer {peer['peer']}, {peer['done']} steps"


def largest_batches(ended: Ended) -> dict[int, int]:
    """By size, the largest batch of a step; the last of an epoch is what is left."""
    return {size: max(row["batch"] for row in ended.metrics if row["size"] == size) for size in ended.sizes}


def test_a_peer_joins_in_the_background_and_two_leave_without_a_sample_lost(tmp_path):
    ended, found = trained(
        tmp_path, "-np", 2, "--max", 3, epochs=30, schedule={"0": 2, "20": 3, "200": 1}, patient_at=2, every=100
    )
    assert ended.sizes == [2, 3, 1]
    assert_exact(found, epochs=30)
    assert_streams_go_on(found, job=ended.all_of("started")[0]["job"], joiners={2})
    assert {peer: one["heard"] for peer, one in found.items()} == {
        0: [["grew", 2, 3], ["shrank", 3, 1]], 1: [["grew", 2, 3]], 2: [["joined", 0, 3]]
    }  # fmt: skip
    assert {tuple(one["ids"]) for one in found.values()} == {(0.5,)}, "of the peers 0 and 1 that were there"
    assert found[0]["counter"] == ended.metrics[-1]["step"]
    assert sorted(peer["left"] for peer in found.values()) == [False, True, True]
    assert [event["peers"] for event in ended.all_of("offered")] == [[2]], "once: each offer makes a barrier"
    grown, shrunk = ended.all_of("rescale")
    assert (grown["from"], grown["to"], grown["joined"], grown["left"]) == (2, 3, [2], [])
    assert (shrunk["from"], shrunk["to"], shrunk["joined"], shrunk["left"]) == (3, 1, [], [1, 2])
    assert (grown["global_batch_size"], shrunk["global_batch_size"]) == (18, 6)
    assert {"spawn_s", "ready_s", "barrier_s", "attach_s", "state_s", "first_step_s"} <= set(grown["parts"])
    assert grown["stop_s"] < grown["parts"]["spawn_s"] + grown["parts"]["ready_s"], "they trained while it started"
    assert [event["asked"] for event in ended.all_of("decision")] == [3, 1]
    assert largest_batches(ended) == {2: 12, 3: 18, 1: 6}
    written = ended.all_of("checkpoint")
    assert len(written) > 1
    assert {event["rule"] for event in written} == {"keeping"}
    assert find(ended.folder / "checkpoints") == Path(written[-1]["path"])


@SOAK
def test_uneven_slices_of_a_batch_that_stays_whole_leave_the_same_weights_everywhere(tmp_path):
    # Three shares of 9, 8 and 8 samples are two micro-batches each. Of two shares of 13 and 12 samples, three micro-
    # batches each, the last one has no samples.
    batch = {"samples": 104, "batch_size": 25, "max_local": 6, "keep": "global_batch_size"}
    ended, found = trained(tmp_path, "-np", 3, epochs=4, schedule={"9": 2}, **batch)
    assert ended.sizes == [3, 2]
    assert_exact(found, epochs=4)
    stayed = [peer for peer in found.values() if not peer["left"]]
    assert len(stayed) == 2
    assert stayed[0]["weights"] == stayed[1]["weights"]
    table = zlib.crc32(np.linspace(-3.0, 3.0, 1000, dtype=np.float32).tobytes())
    assert {peer["table"] for peer in found.values()} == {table}, "a mean of three would not be the same, bit for bit"
    assert len({json.dumps(peer["seeds"]) for peer in found.values()}) == 3, "each peer drops units of its own"
    assert [row["batch"] for row in ended.metrics] == [25, 25, 25, 25, 4] * 4
    assert ended.all_of("rescale")[0]["global_batch_size"] == 25
    finished = {event["peer"]: event["leaving"] for event in ended.all_of("finished")}
    assert finished == {0: False, 1: False, 2: True}


@pytest.mark.parametrize(
    ("given", "calls"),
    [pytest.param({}, 6, marks=SOAK), ({"max_local": 4, "devices": 2}, 10)],
    ids=["whole shares", "micro-batches on two devices"],
)
def test_a_step_with_fewer_samples_than_peers_counts_each_sample_once(tmp_path, given, calls):
    """A step with fewer samples than peers loses no peer and counts each sample once."""
    ended, found = trained(tmp_path, "-np", 2, epochs=2, samples=25, **given)
    assert (ended.sizes, ended.all_of("lost")) == ([2], [])
    assert_exact(found, epochs=2)
    first, second = found.values()
    assert (first["counted"], second["counted"]) == (26.0, 24.0), "the metric of a peer counts its own samples"
    assert first["drawn"] != second["drawn"], "what a step draws is the peer's own"
    assert first["between"] == second["between"], "what is drawn beside the steps is equal"
    for one in (first, second):
        assert one["of_job"] == [25.0, 12.0], "the metric of the job counts the samples of the last epoch"
        assert (one["counter"], one["called"]) == (calls, calls)
        assert one["weights"] == first["weights"]


SLOW_COMPILER = """#!/bin/sh
while [ "$1" != -o ]; do shift; done
case "$2" in *.o) exec touch "$2" ;; esac
case "$2" in *tensorflow*) sleep {seconds} ;; esac
cp "{built}/$(basename "$2")" "$2"
"""


@SOAK
def test_peers_that_compile_beyond_the_ready_deadline_are_waited_for(tmp_path):
    (tmp_path / "bin").mkdir()
    compiler = tmp_path / "bin" / "g++"
    native.builder.build_state()
    compiler.write_text(SLOW_COMPILER.format(seconds=75, built=native.builder.build().parent))
    compiler.chmod(0o755)
    paths = f"{compiler.parent}{os.pathsep}{os.environ['PATH']}"
    environment = {"PATH": paths, "KUNGFU_CACHE": str(tmp_path / "cache")}
    options = ("-np", 2, "--ready-deadline", 60)
    arguments = ["--results", tmp_path / "results", "--epochs", 1]
    given = {"arguments": arguments, "environment": environment, "executed": True}
    ended = ran(tmp_path, *options, program="network.py", deadline_s=280, **given)
    assert ended.sizes == [2]
    (begun,) = ended.all_of("started")
    trained = min(view["time"] for view in ended.all_of("view"))
    assert trained - begun["time"] > 75, "they compiled"
    (said,) = {line for line in ended.output.splitlines() if "compiling kungfu-tensorflow" in line}
    assert str(tmp_path / "cache") in said


@SOAK
def test_a_peer_that_reads_to_its_place_is_waited_for_and_killed_there(tmp_path, capsys):
    """A peer that reads to its place is waited for, and is killed there while others read and join."""
    results, deadline_s = tmp_path / "results", 10
    words = ["--results", results, "--deadline", deadline_s]
    options = ["-np", 4, "--min", 1, "--max", 4, "--failures", 0, "--deadline", deadline_s]
    with started(tmp_path, *options, program="taken_over.py", arguments=words) as job:
        # Two peers are left, of which one reads.
        awaited((results / "reads").exists, what="a peer that reads", deadline_s=180.0)
        assert asked(job.folder, capsys, "resize", 3)["state"] == "carried out"
        ended = job.end()
    assert ended.sizes == [4, 3, 2, 3]
    assert len(ended.all_of("lost")) == 2, "those that were killed, and no reader"
    assert not ended.all_of("late")
    found = left_in(results)
    assert len(found) == 3
    first, *others = found.values()
    assert first["seen"] == [1.0] * SAMPLES, "each sample once"
    assert all((one["seen"], one["weights"]) == (first["seen"], first["weights"]) for one in others)
    (longest,) = [event for event in ended.all_of("took over") if event["seconds"] > deadline_s]
    assert longest["samples"] >= 9
    assert found[longest["peer"]]["passed"] >= longest["samples"]
    assert "reads to its place there; the others wait for it" in ended.output
