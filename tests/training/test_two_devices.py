"""Steps whose variables are on two devices, as they are beside a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak import SOAK

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
# Loops of steps, registered variables, slots, XLA. Micro-batches, and what layers keep, are in the
# jobs on two devices.
STEPS = ["tests/training/graph/test_step.py", "tests/training/graph/test_accelerated.py"]
# Barriers, batches without samples, steps that are done again.
BARRIERS = ["tests/training/graph/test_variable_io.py", "tests/training/graph/test_rollback.py"]


@pytest.mark.parametrize("files", [BARRIERS, pytest.param(STEPS, marks=SOAK)], ids=["barriers", "steps"])
def test_the_tests_of_steps_pass_too_where_variables_are_on_two_devices(files: list[str]) -> None:
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "tests.two_devices", *files]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-1000:]
