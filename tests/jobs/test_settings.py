"""Settings that rules change on a job whose size changes: the same on all peers, the joiner included."""

from __future__ import annotations

import math

import pytest

from tests.jobs.harness import left_in, lines_of, started
from tests.soak import SOAK

pytestmark = pytest.mark.slow
DEADLINE_S = 180.0


@SOAK
def test_noise_brings_a_peer_and_a_loss_that_is_no_number_ends_the_job(tmp_path):
    """Noise brings a peer, the batch stays where it keeps all busy, and a loss that is no number ends the job."""
    with started(tmp_path, "-np", 2, "--max", 3, program="noisy.py", arguments=[tmp_path]) as job:
        job.event("rescale", to=3, deadline_s=DEADLINE_S)
        job.steps(len(lines_of(job.folder / "metrics.jsonl")) + 10, deadline_s=DEADLINE_S)
        (tmp_path / "nan").touch()
        ended = job.end(deadline_s=DEADLINE_S)
    assert ended.code == 0, ended.output
    assert ended.sizes == [2, 3]
    # An estimate below 10 takes the wish back, and the joiner is dismissed, until one above it stands.
    decision = ended.all_of("decision")[-1]
    assert (decision["rule"], decision["asked"], decision["step"] % 20) == ("gns_batch", 3, 0)
    assert decision["saw"]["noise_scale"] >= 10, "2.5 peers with 4 samples each are rounded to 3 or 2"
    # The rescale itself would have kept 4 samples a peer; the batch and so the rate are what they were.
    settings = [(event["rule"], event["what"], event["to"]) for event in ended.all_of("set")]
    assert settings == [("hybrid_scaling", "global batch size", 8), ("stop_on_nan", "stop", None)]
    rows = ended.metrics
    assert {row["size"]: row["batch"] for row in rows} == {2: 8, 3: 8}
    unknown = [row["loss"] is None or math.isnan(float(row["loss"])) for row in rows]
    first = unknown.index(True)
    assert all(unknown[first:])
    assert 3 <= len(rows) - first <= 4, "the barrier of the third such step, or of the one after it"
    as_told = {"stopped": True, "rate": 0.125, "traces": 1}
    assert left_in(tmp_path) == dict.fromkeys(ended.all_of("view")[-1]["peers"], as_told)
