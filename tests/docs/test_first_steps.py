"""The first page, done as it says: its script saved, its commands typed, in two terminals.

Its job that grows by a command is a part of the test of the wheel, the one with a policy is here.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.docs.test_programs import blocks
from tests.jobs.harness import awaited
from tests.soak import SOAK

PAGE = Path(__file__).parents[2] / "docs" / "first-steps.md"
COMMAND = re.compile(r"^\$ (.*)$", re.MULTILINE)
DEADLINE_S = 240.0  # of one command


def script() -> str:
    """The script of the page."""
    (source,) = (source for kind, source in blocks(PAGE.read_text()) if kind == "python")
    return source


def commands() -> list[str]:
    """Its commands, in order."""
    return COMMAND.findall(PAGE.read_text())


@contextmanager
def job(command: str, *, folder: Path, programs: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """The job of a command in the first terminal, with what it shows; ended by its id if the block ends before."""
    screen = folder / "first terminal.txt"
    with screen.open("wb") as shown:
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"], cwd=folder, env=environment(programs), stdin=subprocess.DEVNULL,
            stdout=shown, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        yield process, screen
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def typed(command: str, *, folder: Path, programs: Path) -> str:
    """What the second terminal shows for a command."""
    ran = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment(programs), stdin=subprocess.DEVNULL, capture_output=True,
        text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, f"{command} gave {ran.returncode}:\n{ran.stdout}{ran.stderr}"
    return ran.stdout


def environment(programs: Path) -> dict[str, str]:
    """The environment of a terminal in which an environment with these programs is active."""
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**own, "PATH": os.pathsep.join([str(programs), own["PATH"]])}


def shows(screen: Path, text: str, process: subprocess.Popen[bytes]) -> None:
    """Waits until the first terminal shows a text."""

    def look() -> bool:
        found = re.search(text, screen.read_text()) is not None
        assert found or process.poll() is None, screen.read_text()
        return found

    awaited(look, what=f"{text!r} on the screen", deadline_s=DEADLINE_S)


def take_first_steps(folder: Path, *, programs: Path) -> None:
    """From the script to a job that has grown, by the commands of the page in their order, up to its end."""
    start, status, resize, stop, with_policy, why = commands()
    (folder / "train.py").write_text(script())
    with job(start, folder=folder, programs=programs) as (process, screen):
        shows(screen, r"Epoch 2/", process)
        assert "view 1: 1 peer (" in typed(status, folder=folder, programs=programs)
        assert resize == "kungfu resize 2"
        assert "resize 2: carried out" in typed(resize, folder=folder, programs=programs)
        typed(stop, folder=folder, programs=programs)
        assert process.wait(DEADLINE_S) == 0, screen.read_text()
    assert "accuracy: 0." in screen.read_text()
    (record,) = (folder / "runs").iterdir()
    shown = typed(re.sub(r"runs/\S+", f"runs/{record.name}", why), folder=folder, programs=programs)
    assert "1 -> 2 peers; peer 1 joined" in shown
    assert with_policy.startswith("kungfu-run ")


def test_the_page_has_one_script_that_compiles_and_six_commands() -> None:
    compile(script(), str(PAGE), "exec")
    assert [command.split()[:2] for command in commands()] == [
        ["kungfu-run", "-np"],
        ["kungfu", "status"],
        ["kungfu", "resize"],
        ["kungfu", "stop"],
        ["kungfu-run", "-np"],
        ["kungfu", "why"],
    ]


def test_the_script_is_keras_but_for_the_marked_line_and_an_import() -> None:
    others = [line for line in script().splitlines() if "kf" in line]
    assert others == ["import kungfu as kf", "kf.keras.attach(model)  # the line"]


@SOAK
@pytest.mark.slow
def test_the_second_job_of_the_page_grows_to_four_peers_by_its_policy(tmp_path: Path) -> None:
    programs = Path(sys.executable).parent
    *_, stop, with_policy, _ = commands()
    (tmp_path / "train.py").write_text(script())
    with job(with_policy, folder=tmp_path, programs=programs) as (process, screen):
        shows(screen, r"-> 4", process)
        typed(stop, folder=tmp_path, programs=programs)
        assert process.wait(DEADLINE_S) == 0, screen.read_text()
