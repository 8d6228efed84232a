"""A policy that chooses the size by throughput, in a real job."""

from __future__ import annotations

import pytest

from tests.jobs.harness import ran

pytestmark = pytest.mark.slow


def test_autoscale_asks_for_another_peer_once_it_has_measured_the_first(tmp_path):
    ended = ran(
        tmp_path,
        "-np", 1, "--max", 2, "--policy", "kungfu.policies:autoscale(max_peers=2, efficiency=-1e9, every=5)",
        program="network.py",
        arguments=["--results", tmp_path / "results", "--epochs", 80, "--patient-at", 1],
    )  # fmt: skip
    assert ended.code == 0, ended.output
    (first, *_) = ended.all_of("decision")
    assert (first["rule"], first["asked"]) == ("autoscale", 2)
    assert first["step"] >= 10, "a size is measured before it is left"
