"""Peers that join and leave while training goes on."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path

import numpy as np

from kungfu import native
from tests.jobs.harness import Ended, left_in, ran
from tests.soak import SOAK


def trained(tmp_path: Path, *options: object, epochs: int, **given: object) -> tuple[Ended, list[dict]]:
    """The job of the program ``network``, and what each of its peers found."""
    words = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value)]
    words += ["--results", tmp_path / "results", "--epochs", epochs]
    ended = ran(tmp_path, *options, program="network.py", arguments=words)
    return ended, [*left_in(tmp_path / "results").values()]


def assert_exact(found: list[dict], *, epochs: int) -> None:
    """Every sample once an epoch, over all peers, those that left too; and one trace in each."""
    total = np.sum([peer["seen"] for peer in found], axis=0)
    assert total.tolist() == [epochs] * len(total)
    assert {peer["traces"] for peer in found} == {1}


def assert_streams_go_on(found: list[dict], *, job: str, joiners: set[int]) -> None:
    """Each peer has drawn once a step that it has done, from where its own number and the seeds let it begin."""
    for peer in found:
        seed = zlib.crc32(job.encode()) << 64 if peer["peer"] in joiners else 0
        begun, drawn = np.random.SeedSequence([seed, peer["peer"], 0]).generate_state(2).tolist()
        assert peer["done"] > 0
        assert peer["seeds"] == [[begun, drawn + peer["done"]]], f"peer {peer['peer']}, {peer['done']} steps"


def largest_batches(ended: Ended) -> dict[int, int]:
    """By size, the largest batch of a step; the last of an epoch is what is left."""
    return {size: max(row["batch"] for row in ended.metrics if row["size"] == size) for size in ended.sizes}


def test_a_peer_joins_in_the_background_and_two_leave_without_a_sample_lost(tmp_path):
    ended, found = trained(
        tmp_path, "-np", 2, "--max", 3, epochs=70, schedule='{"0": 2, "20": 3, "400": 1}', patient_at=2
    )
    assert ended.sizes == [2, 3, 1]
    assert_exact(found, epochs=70)
    assert_streams_go_on(found, job=ended.all_of("started")[0]["job"], joiners={2})
    assert sorted(peer["left"] for peer in found) == [False, True, True]
    assert [event["peers"] for event in ended.all_of("offered")] == [[2]], "once: each offer makes a barrier"
    grown, shrunk = ended.all_of("rescale")
    assert (grown["from"], grown["to"], grown["joined"], grown["left"]) == (2, 3, [2], [])
    assert (shrunk["from"], shrunk["to"], shrunk["joined"], shrunk["left"]) == (3, 1, [], [1, 2])
    assert (grown["global_batch_size"], shrunk["global_batch_size"]) == (18, 6)
    assert {"spawn_s", "ready_s", "barrier_s", "attach_s", "state_s", "first_step_s"} <= set(grown["parts"])
    assert grown["stop_s"] < grown["parts"]["spawn_s"] + grown["parts"]["ready_s"], "they trained while it started"
    assert [event["asked"] for event in ended.all_of("decision")] == [3, 1]
    assert largest_batches(ended) == {2: 12, 3: 18, 1: 6}


@SOAK
def test_uneven_slices_of_a_batch_that_stays_whole_leave_the_same_weights_everywhere(tmp_path):
    ended, found = trained(tmp_path, "-np", 3, epochs=4, schedule='{"9": 2}', keep="global_batch_size", batch_size=32)
    assert ended.sizes == [3, 2]
    assert_exact(found, epochs=4)
    stayed = [peer for peer in found if not peer["left"]]
    assert len(stayed) == 2
    assert stayed[0]["weights"] == stayed[1]["weights"]
    table = zlib.crc32(np.linspace(-3.0, 3.0, 1000, dtype=np.float32).tobytes())
    assert {peer["table"] for peer in found} == {table}, "a mean of three would not be the same, bit for bit"
    assert len({json.dumps(peer["seeds"]) for peer in found}) == 3, "each peer drops units of its own"
    assert [row["batch"] for row in ended.metrics] == [32, 32, 32, 4] * 4
    assert ended.all_of("rescale")[0]["global_batch_size"] == 32
    finished = {event["peer"]: event["leaving"] for event in ended.all_of("finished")}
    assert finished == {0: False, 1: False, 2: True}


@SOAK
def test_a_peer_that_leaves_makes_the_other_cut_its_share_into_more_micro_batches(tmp_path):
    # Two shares of 13 and 12 samples are three micro-batches each, the last of one without samples; alone it is five.
    ended, found = trained(
        tmp_path, "-np", 2, epochs=3, schedule='{"6": 1}', keep="global_batch_size", batch_size=25, max_local=6
    )
    assert ended.sizes == [2, 1]
    assert_exact(found, epochs=3)
    assert [row["batch"] for row in ended.metrics] == [25] * 12


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
