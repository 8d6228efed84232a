"""A loop of the program's own whose step averages several times, as a job that loses rank 0 in the middle of a step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.jobs.harness import LEAN, ONE_THREAD_EACH, PROGRAMS, ROOT, ran
from tests.soak import SOAK

pytestmark = pytest.mark.slow


def alone(path: Path) -> dict[str, Any]:
    """What the program comes to by itself."""
    environment = {**os.environ, **ONE_THREAD_EACH, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, LEAN)))}
    line = [sys.executable, PROGRAMS / "critic_steps.py", path]
    subprocess.run(line, check=True, env=environment, timeout=280)
    return dict(json.loads(path.read_text()))


@pytest.mark.parametrize("attachment", ["local", "horovod"])
@SOAK  # `test_a_step_that_fails_after_its_first_average_is_undone` is its sibling in the gate
def test_critic_steps_that_lose_rank_0_come_to_what_one_process_does(tmp_path, attachment):
    """Critic steps of a job that loses rank 0 between them come to what one process comes to."""
    ended = ran(
        tmp_path, "-np", 3, "--min", 1, "--max", 3, "--attachment", attachment, program="critic_steps.py",
        arguments=[tmp_path / "job.json", 7], deadline_s=280.0,
    )  # fmt: skip
    assert ended.code == 0, ended.output
    assert ended.sizes[:2] == [3, 2]
    (recovered,) = ended.all_of("recovered")
    assert recovered["noticed_by"].startswith("in step 7: ")
    if attachment == "local":  # Horovod does not say in which message
        assert recovered["noticed_by"].endswith("died during gradients 2"), "the message of the second average"
    after = [row["step"] for row in ended.metrics if row["size"] == 2]
    assert after == list(range(7, 17)), "step 7 anew"
    job, plain = json.loads((tmp_path / "job.json").read_text()), alone(tmp_path / "alone.json")
    assert job["traces"] == plain["traces"] == 1
    assert job["kept"].keys() == plain["kept"].keys()
    for path, value in plain["kept"].items():
        np.testing.assert_allclose(job["kept"][path], value, rtol=1e-8, atol=1e-12, err_msg=path)
