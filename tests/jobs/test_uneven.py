"""A job whose epochs end with a step that has fewer samples than there are peers."""

from __future__ import annotations

import pytest

from tests.jobs.harness import PROGRAMS, TWO_DEVICES, left_in, ran


@pytest.mark.parametrize(
    ("most", "calls", "devices"), [(None, 6, 1), (4, 10, 2)], ids=["whole shares", "micro-batches on two devices"]
)
def test_a_step_with_fewer_samples_than_peers_counts_each_sample_once(tmp_path, most, calls, devices):
    """A step with fewer samples than peers loses no peer and counts each sample once."""
    results = tmp_path / "results"
    arguments = ["--results", results, *(["--max-local", most] if most else [])]
    line = [*([TWO_DEVICES] if devices == 2 else []), PROGRAMS / "uneven.py", *arguments]
    ended = ran(tmp_path, "-np", 2, program=line[0], arguments=line[1:])
    assert (ended.sizes, ended.all_of("lost")) == ([2], [])
    found = [*left_in(results).values()]
    assert [sum(counts) for counts in zip(*(one["seen"] for one in found), strict=True)] == [2] * 25
    assert [one["counted"] for one in found] == [26.0, 24.0], "the metric of a peer counts its own samples"
    assert [one["of_job"] for one in found] == [[25.0, 12.0]] * 2, "that of the job counts those of the last epoch"
    assert found[0]["drawn"] != found[1]["drawn"], "what a step draws is the peer's own"
    assert found[0]["between"] == found[1]["between"], "what is drawn beside the steps is equal"
    for one in found:
        assert (one["counter"], one["called"], one["traces"]) == (calls, calls, 1)
        assert one["weights"] == found[0]["weights"]
