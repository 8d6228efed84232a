"""Jobs with hooks: one that does all that rules can, and the one of listing 1 in the KungFu paper."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.jobs.harness import ROOT, ran, started
from tests.soak import SOAK

pytestmark = pytest.mark.slow
DEADLINE_S = 180.0


@SOAK
def test_a_hook_does_in_a_job_what_rules_can_and_rank_0s_word_counts(tmp_path):
    options = ["-np", 2, "--max", 3, "--checkpoints", tmp_path / "kept"]
    ended = ran(tmp_path, *options, program="hooked.py", arguments=[tmp_path], deadline_s=DEADLINE_S)
    assert ended.code == 0, ended.output
    assert ended.sizes == [2, 3, 2]
    assert {row["batch"] for row in ended.metrics if row["size"] == 3} == {12}, "the batch stayed where the size grew"
    told = [(event["rule"], event["what"], event["to"]) for event in ended.all_of("set")]
    assert told == [
        ("adapted", "learning rate", 0.5),
        ("adapted", "global batch size", 30.0),
        ("adapted", "stop", None),
    ]
    lost = [(event["rule"], event["what"], event["by"]) for event in ended.all_of("superseded")]
    assert lost == [
        ("contradicted", "a global batch size of 60", "adapted"),
        ("contradicted", "the value 'temperature' to be 99.0", "adapted"),
    ]
    adapting = (event for event in ended.all_of("called") if event["rule"] == "adapted")
    called = [(event["asked"], *event.get("also", ())) for event in adapting]
    asked = [one for one in called if one != (None,)]
    assert asked == [
        (3, "set_learning_rate(0.5)"),
        (None, "set_global_batch_size(30)", "set_value('temperature', 0.5)", "evict([1])"),
        (None, "checkpoint()", "stop()"),
    ]
    (saved,) = ended.all_of("checkpoint")
    assert saved["step"] == ended.metrics[-1]["step"]
    found = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in ("0", "2")}
    assert found["0"] == found["2"] == {"temperature": 0.5, "rate": 0.5, "traces": 1}
    assert not (tmp_path / "1.json").exists(), "rank 1 was evicted"


def test_listing_1_runs_as_printed_and_grows_the_job_by_its_noise(tmp_path):
    arguments = ["--epochs", 1_000_000, "--device-ms", 20]
    example = ROOT / "examples" / "listing_1.py"
    with started(tmp_path, "-np", 2, "--min", 2, "--max", 3, program=example, arguments=arguments) as job:
        rescale = job.event("rescale", to=3, deadline_s=DEADLINE_S)
        line = [sys.executable, "-m", "kungfu.cli.main", "stop", "--logdir", str(job.folder)]
        assert subprocess.run(line, cwd=ROOT, env={**os.environ}, timeout=180, check=False).returncode == 0
        ended = job.end(deadline_s=DEADLINE_S)
    assert ended.code == 0, ended.output
    assert rescale["rule"] == "listing_1"
    (first, *_) = [event for event in ended.all_of("called") if event["asked"] and event["asked"] >= 3]
    assert first["asked"] == pytest.approx(first["saw"]["noise_scale"] / 16, abs=0.51)
