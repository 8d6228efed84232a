"""What a type checker, and so an editor, knows of a marked step and of the average."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from mypy import api

PROGRAM = """
import kungfu as kf

def program(training: kf.Training) -> None:
    @training.step
    def step(x: int, *, scale: float = 1.0) -> str:
        reveal_type(training.average({"w": [1.0]}, loss=0.5))
        return "done"

    reveal_type(step)
    result = step(1, scale=2.0)
    if result is not training.SKIPPED:
        reveal_type(result)
    step("one")
"""


def checked(path: Path, *options: str) -> tuple[int, list[str], str]:
    """What the type checker says: its exit status, what it has to say of this file, and all of it."""
    try:
        out, err, status = api.run([str(path), "--config-file", "pyproject.toml", *options])
    except sqlite3.Error as error:  # of its cache
        return 2, [], repr(error)
    told = [line.partition(": ")[2] for line in out.splitlines() if line.startswith(str(path))]
    return status, told, out + err


@pytest.mark.slow
def test_a_marked_step_keeps_its_signature_and_an_average_its_structure(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    # Of a file with the same text, wherever it is, the cache would repeat what was told, under the path that it had.
    path.write_text(f"# {path}\n{PROGRAM}")
    # With the cache of the linter, which has read all of kungfu before; a linter that runs now may have locked it.
    status, told, said = checked(path)
    if status == 2:
        status, told, said = checked(path, "--cache-dir", str(tmp_path / "cache"))
    assert (status, len(told)) == (1, 4), said
    assert '"dict[str, list[float]]"' in told[0], said
    assert '"def (x: int, *, scale: float =) -> str | kungfu.training.loop.step_calls.Skipped"' in told[1]
    assert '"str"' in told[2], "after the test for SKIPPED the result is what the function returns"
    assert "incompatible type" in told[3]
