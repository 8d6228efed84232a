"""The command line of kungfu-run, as far as no process is started."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kungfu.cli.hosting import Hosting
from kungfu.cli.run import _new_folder, main
from kungfu.runtime.hosts import Host

HERE = (Host("127.0.0.1", 2, 0), Host("127.0.0.2", 2, 0))


def made(places: Sequence[int]) -> list[str]:
    """The folders of runs that all begin in the same second, on the hosts of these places."""
    with ThreadPoolExecutor(len(places)) as runs:
        hostings = [Hosting(HERE, place, "job", "ab") for place in places]
        return sorted(str(folder) for folder in runs.map(lambda one: _new_folder(one, "20261122-1200"), hostings))


def test_runs_that_begin_in_the_same_second_get_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert made([0] * 4) == [f"runs/20261122-1200{nth}" for nth in ("", "-2", "-3", "-4")]
    assert all(folder.is_dir() for folder in (tmp_path / "runs").iterdir())
    assert made([1, 1]) == ["runs/20261122-1200-127.0.0.2", "runs/20261122-1200-2-127.0.0.2"]


def test_a_line_that_is_refused_leaves_no_folder_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    scripts = [["bash", "run.sh"], ["python", "-c", "1"]]
    for words in (["--standby", "2", "python", "-c", ""], *(["--standby", "1", *script] for script in scripts)):
        assert main(["-np", "1", *words]) == 2
    told = capsys.readouterr().err
    assert "--standby 2: must be from 0 to --max, which is 1" in told
    assert "--standby 1 with bash run.sh: takes `python` with a script" in told
    for words in (["--keep", "0", "python", "-c", ""], ["--grace", "0", "python", "-c", ""], ["no-such-program"]):
        assert main(["-np", "1", *words]) == 2
    assert "--grace 0: must be from 1 to 86400 seconds" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
