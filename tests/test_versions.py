"""The versions that are taken, each in an environment of its own, as a user gets them; `make soak` runs it.

`make test` tries the newest TensorFlow on one Python, and `make test-oldest` the oldest one.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.distribution import REPOSITORY, distributions, run
from tests.soak import SOAK

CASES = [("3.11", "2.18"), ("3.11", "2.19"), ("3.11", "2.20"), ("3.11", "2.21"), ("3.12", "2.21"), ("3.13", "2.21")]
INSTALL_S = 1500.0


def interpreter(version: str) -> str:
    """That of this version, on PATH or of pyenv; the test is skipped where there is none."""
    installed = sorted(str(path) for path in Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"))
    for candidate in (f"python{version}", *installed):
        if shutil.which(candidate):
            # A shim of pyenv may be there and start nothing.
            started = subprocess.run([candidate, "-V"], capture_output=True, check=False)
            if started.returncode == 0:
                return candidate
    pytest.skip(f"there is no Python {version} here")


def demo(python: Path, attachment: str, summary: Path, *, folder: Path) -> dict[str, Any]:
    """The summary of a demo that trains long enough for its joiners, however slowly peers start on this machine."""
    for epochs in (40, 160, 640):
        command = (python, "-m", "examples.demo", "--attachment", attachment, "--epochs", epochs)
        run(*command, folder=folder, deadline_s=INSTALL_S)
        told: dict[str, Any] = json.loads(summary.read_text())
        if not told["too_late"]:
            return told
    pytest.fail(f"no joiner was ready in time: {told}")


@SOAK
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("python", "tensorflow"), CASES)
def test_demo_and_keras_example_run_with_both_attachments(python: str, tensorflow: str, tmp_path: Path) -> None:
    environment, folder = tmp_path / "environment", tmp_path / "project"
    folder.mkdir()
    run(interpreter(python), "-m", "venv", environment, folder=folder)
    own = environment / "bin" / "python"
    _, wheel = distributions(tmp_path)
    words = ("install", "--quiet", f"{wheel}[horovod,examples]", f"tensorflow=={tensorflow}.*")
    run(own, "-m", "pip", *words, folder=folder, deadline_s=INSTALL_S)
    run(own, "-m", "pip", "check", folder=folder)
    run(own, "-m", "kungfu.native.horovod", folder=folder, deadline_s=INSTALL_S)
    shutil.copytree(REPOSITORY / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    fit = [environment / "bin" / "kungfu-run", "-np", 2, "--max", 4, own, "examples/keras/digits.py"]
    assert "held-out images: 0.9" in run(*fit, folder=folder, deadline_s=INSTALL_S)  # builds the compiled part
    for attachment, name in (("local", "demo"), ("horovod", "demo-horovod")):
        told = demo(own, attachment, folder / "runs" / name / "summary.json", folder=folder)
        assert told["accuracy"] > 0.95
        assert told["epochs_exact"]
        assert (told["traces"], told["sizes"][0], max(told["sizes"]), told["sizes"][-1]) == (1, 2, 4, 3)
