"""The guide to the commands: its table, its fields and its program are those of the code."""

from __future__ import annotations

import io
import re
from contextlib import redirect_stdout
from dataclasses import fields
from pathlib import Path

import pytest

from kungfu.cli.job.status import JobSummary
from kungfu.cli.main import main
from kungfu.cli.report.narrative import RunTotals
from kungfu.runtime.core.request import Resize
from kungfu.runtime.job_api.status import JobMetrics, JobStatus, MembershipStatus, PeerStatus, RequestProgress, Trouble
from tests.runtime.job_api.served_job import serve_job

GUIDE = (Path(__file__).parents[3] / "docs" / "commands.md").read_text(encoding="utf-8")


def test_its_table_names_every_command_that_looks_at_a_job(capsys: pytest.CaptureFixture[str]) -> None:
    named = re.findall(r"^\| `kungfu ([\w-]+)", GUIDE, flags=re.MULTILINE)
    asking = ["resize", "scale-out", "scale-in", "migrate", "checkpoint", "profile", "stop", "chaos"]
    assert [*dict.fromkeys(named)] == ["status", "top", *asking, "page"]
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    assert all(f"\n    {name}" in shown for name in named)


def test_it_names_every_field_of_a_status() -> None:
    named = set(re.findall(r"`(\w+)`", GUIDE))
    kinds = (JobStatus, MembershipStatus, PeerStatus, JobMetrics, RequestProgress, Trouble, JobSummary, RunTotals)
    assert {one.name for kind in kinds for one in fields(kind)} <= named


def test_its_program_steers_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", GUIDE, flags=re.DOTALL)
    folder = tmp_path / "runs" / "20261120-2300"
    folder.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    said = io.StringIO()
    with serve_job(folder) as place, redirect_stdout(said):
        exec(compile(program, "commands.md", "exec"), {})
        assert [external.what for external in place.told] == [Resize(2)]
    assert said.getvalue() == "accepted \ncarried out\n"
