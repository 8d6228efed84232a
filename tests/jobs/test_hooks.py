"""Jobs with hooks: one that does all that rules can, and the one of listing 1 in the KungFu paper."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.jobs.harness import ROOT, started


def test_listing_1_runs_as_printed_and_grows_the_job_by_its_noise(tmp_path):
    arguments = ["--epochs", 1_000_000, "--device-ms", 20]
    example = ROOT / "examples" / "listing_1.py"
    with started(tmp_path, "-np", 2, "--min", 2, "--max", 3, program=example, arguments=arguments) as job:
        rescale = job.event("rescale", to=3)
        line = [sys.executable, "-m", "kungfu.cli.main", "stop", "--logdir", str(job.folder)]
        assert subprocess.run(line, cwd=ROOT, env={**os.environ}, timeout=180, check=False).returncode == 0
        ended = job.end()
    assert rescale["rule"] == "listing_1"
    (first, *_) = [event for event in ended.all_of("called") if event["asked"] and event["asked"] >= 3]
    assert first["asked"] == pytest.approx(first["saw"]["noise_scale"] / 16, abs=0.51)
