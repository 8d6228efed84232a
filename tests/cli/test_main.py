"""The ``kungfu`` command."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kungfu.cli.main import main, make_parser
from kungfu.cli.run import make_parser as make_run_parser
from kungfu.runtime.job_api.job_file import JobFile, identify_process, write_job_file
from tests.cli.conftest import Printed
from tests.cli.recorded import FAILED, GROWN, written
from tests.event_log.made import made


def test_why_tells_the_story_within_the_width_of_the_terminal(
    tmp_path: Path, printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = written(tmp_path, GROWN)
    for width in (40, 100):
        monkeypatch.setenv("COLUMNS", str(width))
        story = printed("why", run).splitlines()
        assert max(len(line) for line in story[1:]) <= width
    assert "+10.0 s    step 50: gns_batch wants 3 peers instead of 2" in story


def test_why_keeps_a_long_time_apart_from_what_happened_then(
    tmp_path: Path, printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    late = [made(time=0.0, event="started", size=1), made(time=676.0, event="ended", reason="word " * 30)]
    story = printed("why", written(tmp_path, late)).splitlines()
    assert any(line.startswith("+11 min 16 s ended: word") for line in story)
    assert max(len(line) for line in story[1:]) <= 70


def test_why_tells_a_long_story_whole_and_in_its_order(tmp_path: Path, printed: Printed) -> None:
    decisions = [made(event="decision", step=step, rule="grow", asked=3, size=2, done="x") for step in range(1, 701)]
    lines = printed("why", written(tmp_path, decisions)).splitlines()
    steps = [line.split(":")[0].split()[-1] for line in lines if "grow wants" in line]
    assert steps == list(map(str, range(1, 701)))


def test_why_puts_a_failure_on_top_and_remarks_at_the_end(tmp_path: Path, printed: Printed) -> None:
    lost = made(event="recovered", time=9.0, step=44, to=1, lost={"0": "killed by SIGKILL"})
    rows = [{"step": step} for step in (38, 39, 40, 45, 46)]
    with (written(tmp_path, [*FAILED, lost], metrics=rows) / "events.jsonl").open("a") as file:
        file.write('{"half')
    story = printed("why", tmp_path).splitlines()
    assert "this run failed: rank 1 (peer 1): killed by SIGKILL" in story[2]
    assert story[-2].startswith("note: line 13 of events.jsonl is half-written")
    assert story[-1] == "note: steps 41 to 44 are not in metrics.jsonl: rank 0 was lost before it reported them"


def test_why_of_a_job_whose_agent_lives_says_that_it_runs(tmp_path: Path, printed: Printed) -> None:
    began = time.time() - 60.0
    trains = [made(time=began, event="view", version=1, peers=[0, 1]), made(time=began + 1, event="offered", peers=[2])]
    lasting = {"process": identify_process(os.getpid()), "started": began}
    runs, ended = "the job runs: 2 peers train, for 1 min ", {"ended": began, "code": 1}
    for more, expected in (({}, runs), (ended, "in all 1.0 s")):
        write_job_file(written(tmp_path, trains), JobFile("job", "127.0.0.1:1", "", os.getpid(), **lasting, **more))
        story = " ".join(printed("why", tmp_path).split())
        assert expected in story
        assert ("its agent was killed" in story) == bool(more)


@pytest.mark.parametrize("command", ["why", "draw"])
def test_a_folder_without_a_record_is_one_message_and_code_2(command: str, tmp_path: Path, printed: Printed) -> None:
    err = printed(command, tmp_path, code=2)
    assert err.startswith(f"kungfu {command}: {tmp_path}: the folder holds no ")
    assert "--logdir" in err


def test_without_a_folder_it_is_the_newest_run(
    tmp_path: Path, printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in ("why", "draw"):
        assert f"kungfu {command}: no job was found in runs/" in printed(command, code=2)
    for started, name in enumerate(("late", "early")):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        written(folder, GROWN)
        write_job_file(folder, JobFile("job", "", "", 0, started=100.0 - started, ended=200.0, code=0))
    assert printed("why").startswith("the run in runs/late")


def test_without_a_command_there_is_help_and_code_2(printed: Printed) -> None:
    assert "explain" in printed(code=2)


def test_help_of_kungfu_has_each_command_once_with_a_sentence_under_a_heading(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    found = re.findall(r"^  (\w+):\n((?:    .*\n)+)", capsys.readouterr().out, re.MULTILINE)
    assert [group for group, _ in found] == ["run", "watch", "change", "understand", "plan"]
    shown = dict(re.findall(r"^    ([a-z-]+)\s+(\S.*)$", "".join(lines for _, lines in found), re.MULTILINE))
    (commands,) = (one.choices for one in make_parser()._actions if isinstance(one, argparse._SubParsersAction))
    assert {*shown} == {*commands}
    assert all(" " in sentence for sentence in shown.values())


def test_the_folder_of_a_record_is_called_run_in_every_help_text() -> None:
    (commands,) = (one.choices for one in make_parser()._actions if isinstance(one, argparse._SubParsersAction))
    own = {"tensorboard": {"DIR"}, "plan": set[str]()}  # the folder of TensorBoard is no record
    for name, parser in commands.items():
        folders = {
            one.metavar for one in parser._actions
            if one.type is Path and one.metavar not in ("FILE", "STEM")
        }  # fmt: skip
        assert folders - own.get(name, set()) <= {"RUN"}, name
    assert "LOGDIR" not in "".join(one.format_help() for one in (*commands.values(), make_run_parser()))
    assert "--logdir RUN" in make_run_parser().format_help()


def test_help_of_kungfu_names_plan_and_loads_nothing_of_planning() -> None:
    script = (
        "import sys; from kungfu.cli.main import make_parser; assert ' plan ' in make_parser(['--help']).format_help();"
        "sys.exit('kungfu_planning' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=120, check=False).returncode == 0


def brought(folder: Path, entry: str) -> Path:
    """A folder in which a package is installed that brings a command of `kungfu plan`."""
    (about := folder / "other-1.2.dist-info").mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.2\n")
    (about / "entry_points.txt").write_text(f"[kungfu.plan]\n{entry}\n")
    return folder


def test_a_command_of_another_package_is_found_by_its_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(brought(tmp_path, "budget = other_budget"))
    lines = (
        "SUMMARY = 'spend less'",
        "def add_arguments(parser): parser.add_argument('sum', type=int)",
        "def run(given): return given.sum - 1",
    )
    (tmp_path / "other_budget.py").write_text("\n".join(lines))
    assert main(["plan", "budget", "8"]) == 7
    with pytest.raises(SystemExit, match="0"):
        main(["plan", "--help"])
    assert "    budget    spend less\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("no_such_budget", "ModuleNotFoundError: No module named 'no_such_budget'"),
        ("json:budget", "AttributeError: module 'json' has no attribute 'budget'"),
        ("json", "AttributeError: module 'json' has no attribute 'SUMMARY'"),
    ],
)
def test_an_entry_point_that_does_not_load_is_one_message_and_code_2(
    value: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(brought(tmp_path, f"budget = {value}"))
    with pytest.raises(SystemExit, match="2"):
        main(["plan", "budget", "8"])
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == (
        f"kungfu plan: error: budget does not load: {value} of other 1.2: {why}; install the package again, or what it "
        "needs"
    )
    # The other commands are not disturbed.
    assert main(["plan", "simulate", "generated:elan:5", "--gpus", "32", "--policy", "fifo", "--json"]) == 0


def test_without_any_entry_point_what_to_install_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(SystemExit, match="2"):
        main(["plan", "simulate"])
    assert "brings a command (entry points 'kungfu.plan'); install kungfu again" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plan"], "the following arguments are required: COMMAND"),
        (["plan", "x"], "invalid choice: 'x'"),
        (["completion", "nu"], "'bash', 'zsh', 'fish'"),
        (["resise", "2"], "'resise' is no command; did you mean 'resize'?"),
        (["wy", "2"], "did you mean 'why'?"),
        (["xx", "2"], "'xx' is no command; there are explain, why, draw, doctor"),
        (["simulate", "2"], "'simulate' is no command; did you mean 'plan simulate'?"),
    ],
)
def test_a_word_that_is_missing_or_unknown_is_code_2_with_the_known_ones(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert message in capsys.readouterr().err
