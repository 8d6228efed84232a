"""A job that is steered from outside, through the commands."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from kungfu.cli.main import main
from kungfu.runtime.job_api.job_file import NAME, read_job_file
from kungfu.trace import read_trace
from tests.jobs.harness import asked, endless, started


def test_a_job_is_resized_thinned_migrated_kept_and_stopped_by_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask(*words: object, code: int = 0) -> Any:
        return asked(job.folder, capsys, *words, code=code)

    with started(tmp_path, "-np", 2, "--max", 3, program="network.py", arguments=endless(tmp_path)) as job:
        job.event("view", version=1)
        assert stat.S_IMODE((job.folder / NAME).stat().st_mode) == 0o600
        grown = ask("resize", 3, "--if-view", 1, "--id", "grow")
        assert (grown["state"], grown["view"]) == ("carried out", 2), grown
        assert "not in view 1" in ask("scale-in", 1, "--if-view", 1, code=1)["reason"]
        assert ask("scale-in", 0)["state"] == "carried out", "rank 0 leaves as any other"
        assert ask("resize", 3, "--if-view", 1, "--id", "grow")["state"] == "carried out", "once, not again"
        assert ask("migrate", 1, "localhost")["state"] == "carried out"
        kept = ask("checkpoint")
        assert (kept["state"], Path(kept["reason"]).is_dir()) == ("carried out", True), kept
        status = ask("status")
        assert [(peer["id"], peer["rank"]) for peer in status["peers"] if peer["rank"] is not None] == [(2, 0), (3, 1)]
        assert (status["membership"]["version"], status["figures"]["step"] > 0) == (4, True)
        assert main(["why", str(job.folder)]) == 0
        assert "the job runs: 2 peers train, for " in " ".join(capsys.readouterr().out.split()), "others have left"
        assert ask("scale-in", 2)["state"] == "carried out"
        assert ask("migrate", 3, "localhost")["state"] == "carried out", "the only one, and nothing is lost"
        assert ask("stop")["state"] == "carried out"
        ended = job.end()
    assert [event["peers"] for event in ended.all_of("view")] == [[0, 1], [0, 1, 2], [1, 2], [2, 3], [3], [3, 4], [4]]
    assert {event["peer"]: event["leaving"] for event in ended.all_of("finished")} == {
        **dict.fromkeys(range(4), True), 4: False
    }  # fmt: skip
    assert {row["batch"] for row in ended.metrics} == {12}, "nobody outside changes what is trained"
    replaced = [one.agreed["replaced_peers"] for one in read_trace(ended.folder).steps]
    assert (replaced[0], sorted(set(replaced)), replaced[-1]) == (0, [0, 1, 2], 2), "by migrations"
    requests = [(event["request"], event["state"]) for event in ended.all_of("request")]
    assert requests[:2] == [("resize 3", "accepted"), ("resize 3", "carried out")]
    assert requests.count(("resize 3", "carried out")) == 1
    assert (read_job_file(job.folder).code, read_job_file(job.folder).secret) == (0, "")
    assert main(["status", str(job.folder)]) == 2
    assert "the job is over; it ended with exit code 0" in capsys.readouterr().err
