"""The benchmarks of a step's overhead run what a job runs: in small here, and without a look at their times."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.soak import SOAK


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "figure"),
    [
        (["policy_overhead", "--rounds", "3", "--samples", "4", "--large-rounds", "0"], "processor"),
        pytest.param(
            ["runtime_overhead", "--jobs", "1", "--rounds", "3", "--samples", "4", "--device-ms", "0"],
            "overhead",
            marks=SOAK,
        ),
        pytest.param(
            ["runtime_overhead", "--jobs", "1", "--rounds", "3", "--samples", "4", "--device-ms", "0", "--watched"],
            "watched_overhead",
            marks=SOAK,
        ),
    ],
)
@SOAK
def test_it_gives_its_figures(words: list[str], figure: str) -> None:
    command = [sys.executable, "-m", f"benchmarks.{words[0]}", *words[1:]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert figure in json.loads(done.stdout.splitlines()[-1])
