"""Partitions that peers take over from others, whose way to their place is longer than a step may wait."""

from __future__ import annotations

from tests.jobs.harness import asked, awaited, left_in, started
from tests.jobs.programs.keras_fit import SAMPLES
from tests.soak import SOAK

DEADLINE_S = 10


@SOAK
def test_a_peer_that_reads_to_its_place_is_waited_for_and_killed_there(tmp_path, capsys):
    """A peer that reads to its place is waited for, and is killed there while others read and join."""
    results, record = tmp_path / "results", tmp_path / "log" / "events.jsonl"
    words = ["--results", results, "--record", record, "--deadline", DEADLINE_S]
    options = ["-np", 4, "--min", 1, "--max", 4, "--failures", 0, "--deadline", DEADLINE_S]
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
    (longest,) = [event for event in ended.all_of("took over") if event["seconds"] > DEADLINE_S]
    assert longest["samples"] >= 9
    assert found[longest["peer"]]["passed"] >= longest["samples"]
    assert "reads to its place there; the others wait for it" in ended.output
