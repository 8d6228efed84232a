"""What a type checker, and so an editor, knows of a marked step and of the average."""

from __future__ import annotations

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


@pytest.mark.slow
def test_a_marked_step_keeps_its_signature_and_an_average_its_structure(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    # With the cache of the linter, which has read all of kungfu before.
    out, err, _ = api.run([str(path), "--config-file", "pyproject.toml"])
    told = [line.partition(": ")[2] for line in out.splitlines() if line.startswith(str(path))]
    assert '"dict[str, list[float]]"' in told[0], out + err
    assert '"def (x: int, *, scale: float =) -> str | kungfu.training.step_runner.Skipped"' in told[1]
    assert '"str"' in told[2], "after the test for SKIPPED the result is what the function returns"
    assert "incompatible type" in told[3]
