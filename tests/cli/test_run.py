"""The command line of kungfu-run, as far as no process is started."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kungfu.cli.hosting import SECRET_KEY, Hosting
from kungfu.cli.run import _new_folder, _raise_descriptor_limit, _settings, main, make_parser
from kungfu.runtime.checkpoints.folder import CheckpointFolder
from kungfu.runtime.hosts import Host
from kungfu.runtime.settings import Settings
from tests.runtime.checkpoints.test_folder import held_elsewhere, writing

SCREEN_LINES = 40
HERE = (Host("127.0.0.1", 2, 0), Host("127.0.0.2", 2, 0))


def settings_of(words: Sequence[str]) -> Settings:
    """The settings of the peers of a command line with these words."""
    return _settings(make_parser().parse_args(words), Hosting(HERE, 0, "job", "ab"), maximum=1)


def made(indices: Sequence[int]) -> list[str]:
    """The folders of runs that all begin in the same second, on the hosts of these indices."""
    with ThreadPoolExecutor(len(indices)) as runs:
        hostings = [Hosting(HERE, index, "job", "ab") for index in indices]
        return sorted(str(folder) for folder in runs.map(lambda one: _new_folder(one, "20261122-1200"), hostings))


def test_runs_that_begin_in_the_same_second_get_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert made([0] * 4) == [f"runs/20261122-1200{nth}" for nth in ("", "-2", "-3", "-4")]
    assert all(folder.is_dir() for folder in (tmp_path / "runs").iterdir())
    assert made([1, 1]) == ["runs/20261122-1200-127.0.0.2", "runs/20261122-1200-2-127.0.0.2"]


def test_every_policy_of_the_line_is_one_of_the_job(tmp_path: Path) -> None:
    specs = ("schedule({10: 2})", "linear_scaling(over_steps=5)")
    words = ["--logdir", str(tmp_path / "log"), *(word for spec in specs for word in ("--policy", spec))]
    assert settings_of(["-np", "1", *words, sys.executable, "-m", "train"]).policies == specs


_IN_NO_ROOM = """
import pathlib, re, resource, sys
import kungfu.cli.console.run_console, kungfu.cli.run, kungfu.runtime.agent.agent
used = int(re.search(r"VmSize:\\s*(\\d+)", pathlib.Path("/proc/self/status").read_text())[1]) * 1024
resource.setrlimit(resource.RLIMIT_AS, (used + (2 << 20),) * 2)
sys.exit(kungfu.cli.run.main(sys.argv[1:]))
"""


def test_without_output_and_without_room_for_a_thread_there_is_a_line_for_each(tmp_path: Path) -> None:
    words = [sys.executable, "-c", _IN_NO_ROOM, "-np", "1", "--logdir", str(tmp_path / "log"), sys.executable, "-c", ""]
    ended = subprocess.run(
        ["bash", "-c", 'exec "$@" >&-', "bash", *words], stderr=subprocess.PIPE, text=True, timeout=120, check=False
    )
    closed, no_room = ended.stderr.splitlines()
    assert closed == "kungfu-run: standard output is closed; what the job prints is in its record alone"
    assert ended.returncode == 1
    assert no_room.startswith("kungfu-run: this machine, or its limits (ulimit -v, -u), have no room for a thread")


def test_one_line_of_a_supervisor_begins_anew_and_then_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["-np", "1", "--logdir", "log", "--checkpoints", "kept", "--resume-if-any", "kept", "bash", "run.sh"]
    first = settings_of(words).checkpoints
    assert (first.resume, first.resume_option) == ("", f"--resume-if-any {tmp_path}/kept")
    assert "--resume-if-any kept: no checkpoint is there yet; training begins anew\n" in capsys.readouterr().err
    made = CheckpointFolder(tmp_path / "kept").publish(7, writing(7))
    assert settings_of(words).checkpoints.resume == str(made)
    assert capsys.readouterr().err == ""
    (made / "kungfu.json").write_text("{")
    assert main(words) == 2, "a damaged one is none that is not there"
    with pytest.raises(SystemExit, match="2"):
        main(["--resume", "kept", *words])
    assert "not allowed with argument --resume" in capsys.readouterr().err


def test_a_run_goes_on_from_a_checkpoint_by_name_which_is_that_of_then(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "kept")
    best = folder.publish(7, writing(7), names=["best"])
    folder.publish(9, writing(9))
    words = ["-np", "1", "--keep", "2,best:val_loss", "--resume", str(tmp_path / "kept" / "best"), "bash", "run.sh"]
    settings = settings_of(words).checkpoints
    assert (settings.resume, settings.keep, settings.best_signal) == (str(best), 2, "val_loss")


def test_it_may_have_the_descriptors_that_the_system_allows() -> None:
    before = soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    try:
        _raise_descriptor_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (min(hard, 1 << 16), hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_folder_of_checkpoints_that_another_job_has_is_refused_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["-np", "1", "--logdir", "log", "--checkpoints", "kept", sys.executable, "-c", ""]
    with held_elsewhere(tmp_path / "kept", "job 3f9a1c20"):
        assert main(words) == 2
    assert "kept is in use: job 3f9a1c20 writes its checkpoints there" in " ".join(capsys.readouterr().err.split())
    assert not list((tmp_path / "log").glob("peers/*"))


def test_a_missing_compiler_is_told_before_any_peer_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUNGFU_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", "")
    for attachment in ("local", "horovod"):
        assert main(["-np", "1", "--attachment", attachment, "--logdir", "log", sys.executable, "-c", ""]) == 2
        assert "no g++ is on PATH; install it (Debian, Ubuntu: apt-get install g++)" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("-np", "0"), ("-np 0", "1 <= min <= np <= max")),
        (("-np", "5", "--max", "4"), ("-np 5", "--max 4")),
        (("-np", "1", "--policy", "nowhere.py:rule"), ("nowhere.py", "no such file")),
        (("-np", "1", "--policy", "kungfu.policies:gsn_batch"), ("gsn_batch", "gns_batch")),
        (("-np", "1", "--policy", "kungfu.policies:gns_batch"), ("max_peers",)),
        (
            ("-np", "1", "--policy", "schedule({1: 2})", "--policy", "gns_batch(max_peers=2)"),
            ("'schedule', 'gns_batch' all rescale", "--policy 'schedule({1: 2})'", "--policy 'gns_batch(max_peers=2)'"),
        ),
        (("-np", "1", "--ready-deadline", "0"), ("--ready-deadline", "86400")),
        (("-np", "1", "--heartbeat", "0"), ("--heartbeat", "86400")),
        (("-np", "1", "--resume", "nowhere"), ("--resume nowhere", "there is no checkpoint", "--resume-if-any")),
        (("-np", "1", "--keep", "0"), ("--keep 0", "from 1 to 1000")),
        (("-np", "1", "--keep", "1001,best"), ("--keep 1001", "from 1 to 1000")),
        *(
            (("-np", "1", "--keep", one), (f"--keep {one}: takes a number", "--keep 3,best:val_loss"))
            for one in ("many", "3,", ",best", "best:", "best,3", "3best", "3,worst", "best:a,b")
        ),
        (("-np", "1", "--report-every", "0"), ("--report-every 0", "from 0.05 to 3600")),
        (("-np", "1", "--compare-every", "0"), ("--compare-every 0", "from 1 to 1000000 steps")),
        (("-np", "1", "--grace", "0"), ("--grace 0: must be from 1 to 86400 seconds",)),
        *(
            (("-np", "1", "--spares", one), (f"--spares {one}: takes a number from 0 to --max, which is 1",))
            for one in ("2", "-1", "many", "1:warm", "1:", ":loaded", "")
        ),
        (("-np", "1", "--spares", "1:loaded", "python", "-c", "1"), ("--spares 1:loaded with python -c 1",)),
        (
            ("-np", "1", "--spares", "1:loaded", "bash", "run.sh"),
            ("--spares 1:loaded with bash run.sh", "takes `python` with a script", "without `:loaded` takes any"),
        ),
        (("-np", "1", "no-such-program"), ("cannot run 'no-such-program'",)),
        (("-np", "2", "-H", "127.0.0.1:1"), ("has room for 1 peer;",)),
    ],
)
def test_a_command_line_that_cannot_work_is_refused_before_anything_starts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    words: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(SECRET_KEY, raising=False)
    (tmp_path / "train.py").touch()
    assert main(["--logdir", "log", *options, sys.executable, "train.py"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("kungfu-run: ")
    assert all(word in message for word in words), message
    assert len(message.splitlines()) <= SCREEN_LINES, message
    assert [one.name for one in tmp_path.iterdir()] == ["train.py"], "nothing was started, so there is no record"
