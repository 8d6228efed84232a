"""What is handed out: the wheel and the source distribution hold all of kungfu, and work away from the repository.

`make soak` tries each version that is taken in an environment of its own, as a user gets it; `make test` tries the
newest TensorFlow on one Python, and `make test-oldest` the oldest one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docs.test_first_steps import take_first_steps
from tests.soak import SOAK

REPOSITORY = Path(__file__).parent.parent
SOURCES = (
    "kungfu",
    "kungfu_planning",
    "policies",
    "LICENSE",
    "MANIFEST.in",
    "README.md",
    "CHANGELOG.md",
    "pyproject.toml",
)
# Of one command: the first use of the compiled part may have to build it, on a machine that is very busy.
DEADLINE_S = 600

TRAIN = """
import keras
import numpy as np
import tensorflow as tf

import kungfu as kf

model, optimizer = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]), keras.optimizers.SGD(0.1)
training = kf.attach(model, optimizer, policies=[kf.policies.gns_batch(max_peers=1, min_peers=1)])


@training.step
def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(x, training=True) ** 2)
    gradients = training.average(tape.gradient(loss, model.trainable_variables), loss=loss)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))


done = sum(step(x) is not training.SKIPPED for x in training.batches(np.eye(4), batch_size=2, epochs=3, seed=0))
print("trained", done, "steps with the package in", kf.__file__)
"""


def run(*command: object, folder: Path, deadline_s: float = DEADLINE_S) -> str:
    """What a command prints that runs in a folder outside the repository and knows nothing of it."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=folder, env=clean, capture_output=True, text=True, timeout=deadline_s, check=False)
    assert done.returncode == 0, f"{words} gave {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


def build(what: str, *, sources: Path, into: Path) -> Path:
    """A distribution, made by the backend that pyproject.toml names."""
    program = f"from setuptools import build_meta; print('made', build_meta.build_{what}({str(into)!r}))"
    last = run(sys.executable, "-c", program, folder=sources).splitlines()[-1]
    return into / last.removeprefix("made ")


def build_both(folder: Path) -> tuple[Path, Path]:
    """The source distribution of the repository, and the wheel that is built from nothing but it."""
    copy = folder / "copy"
    copy.mkdir()
    for name in SOURCES:
        if (REPOSITORY / name).is_dir():
            shutil.copytree(REPOSITORY / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(REPOSITORY / name, copy)
    source = build("sdist", sources=copy, into=folder)
    with tarfile.open(source) as archive:
        archive.extractall(folder, filter="data")
    return source, build("wheel", sources=folder / source.name.removesuffix(".tar.gz"), into=folder)


def works(environment: Path, folder: Path) -> None:
    """Imports, asks for help, plans, trains with one peer, and takes the first steps, by an environment's programs."""
    programs = environment / "bin"
    home = run(programs / "python", "-c", "import kungfu; print(kungfu.__file__)", folder=folder).strip()
    assert Path(home).is_relative_to(environment)
    assert "usage: kungfu-run" in run(programs / "kungfu-run", "--help", folder=folder)
    words = ("plan", "simulate", "generated:elan:5", "--gpus", 32, "--policy", "fifo", "--json")
    assert '"makespan_s"' in run(programs / "kungfu", *words, folder=folder)
    (folder / "train.py").write_text(TRAIN)
    job = [programs / "kungfu-run", "-np", 1, programs / "python", "train.py"]
    for command in ([programs / "python", "train.py"], job):
        shown = run(*command, folder=folder)
        assert "trained 6 steps" in shown, shown
        assert str(environment) in shown
    project = folder / "first steps"
    project.mkdir()
    take_first_steps(project, programs=programs)


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The source distribution and the wheel."""
    return build_both(tmp_path_factory.mktemp("distribution"))


def files_of_packages() -> Iterator[str]:
    for package in ("kungfu", "kungfu_planning"):
        for folder, folders, names in os.walk(REPOSITORY / package, followlinks=True):
            folders[:] = [name for name in folders if name != "__pycache__"]
            yield from (str((Path(folder) / name).relative_to(REPOSITORY)) for name in names)


def test_the_wheel_holds_each_file_of_both_packages_and_nothing_else(distributions: tuple[Path, Path]) -> None:
    _, wheel = distributions
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == set(files_of_packages())
    # By name too, because a search that finds nothing would be equal to an empty wheel.
    needed = {
        "kungfu/py.typed",
        "kungfu/native/state/transfer.cc",
        "kungfu/native/all_reduce/group.h",
        "kungfu/native/horovod.patch",
        "kungfu/runtime/ipc/messages.proto",
        "kungfu/runtime/ipc/messages_pb2.py",
        "kungfu/policies/gns_batch.py",
        "kungfu_planning/py.typed",
        "kungfu_planning/tune/planner.py",
    }
    assert needed <= held


def test_the_wheel_names_its_programs_and_what_it_needs(distributions: tuple[Path, Path]) -> None:
    _, wheel = distributions
    with zipfile.ZipFile(wheel) as archive:
        held = {Path(name).name: name for name in archive.namelist() if ".dist-info/" in name}
        programs = archive.read(held["entry_points.txt"]).decode()
        metadata = archive.read(held["METADATA"]).decode().splitlines()
    assert "kungfu-run = kungfu.cli.run:main" in programs
    assert "[kungfu.plan]\nsimulate = kungfu_planning.cli.simulate\ntuning = kungfu_planning.cli.tuning\n" in programs
    assert "Name: kungfu-training" in metadata
    assert "LICENSE" in held
    needed = {
        re.split("[<>=]", line.removeprefix("Requires-Dist: "))[0] for line in metadata if "Requires-Dist" in line
    }
    assert {"tensorflow", "keras", "numpy", "grpcio", "protobuf"} <= needed


def test_the_source_distribution_has_no_tests_and_tells_the_changes(distributions: tuple[Path, Path]) -> None:
    source, _ = distributions
    with tarfile.open(source) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"} <= held
    assert not any(name.startswith("tests") for name in held)


# The start of the interpreters of the environment, which borrow more than the wheel asks for: Keras would load it.
START = """
import os, sys

sys.modules["sklearn"] = None
if "KUNGFU_SETTINGS" in os.environ:  # a peer; the agent draws with matplotlib
    sys.modules["matplotlib"] = None
"""


def installed_at(environment: Path) -> Path:
    return Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))


@pytest.mark.slow
def test_the_wheel_works_in_an_environment_of_its_own(distributions: tuple[Path, Path], tmp_path: Path) -> None:
    """What kungfu needs is borrowed from the environment of these tests, by a path that leads not to its sources."""
    _, wheel = distributions
    environment, folder = tmp_path / "environment", tmp_path / "project"
    folder.mkdir()
    venv.create(environment, symlinks=True, with_pip=False)
    place = installed_at(environment)
    (place / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (place / "sitecustomize.py").write_text(START)
    pip = [sys.executable, "-m", "pip", "--python", environment, "install", "--quiet", "--no-index", "--no-deps"]
    run(*pip, "--ignore-installed", wheel, folder=folder)
    works(environment, folder)


# ---- versions --------------------------------------------------------------------------------------------------------

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
        found: dict[str, Any] = json.loads(summary.read_text())
        if not found["too_late"]:
            return found
    pytest.fail(f"no joiner was ready in time: {found}")


@SOAK
@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("python", "tensorflow"), CASES)
def test_demo_and_keras_example_run_with_both_attachments(python: str, tensorflow: str, tmp_path: Path) -> None:
    environment, folder = tmp_path / "environment", tmp_path / "project"
    folder.mkdir()
    run(interpreter(python), "-m", "venv", environment, folder=folder)
    own = environment / "bin" / "python"
    _, wheel = build_both(tmp_path)
    words = ("install", "--quiet", f"{wheel}[horovod,examples]", f"tensorflow=={tensorflow}.*")
    run(own, "-m", "pip", *words, folder=folder, deadline_s=INSTALL_S)
    run(own, "-m", "pip", "check", folder=folder)
    run(own, "-m", "kungfu.native.horovod", folder=folder, deadline_s=INSTALL_S)
    shutil.copytree(REPOSITORY / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    fit = [environment / "bin" / "kungfu-run", "-np", 2, "--max", 4, own, "examples/keras/digits.py"]
    assert "held-out images: 0.9" in run(*fit, folder=folder, deadline_s=INSTALL_S)  # builds the compiled part
    for attachment, name in (("local", "demo"), ("horovod", "demo-horovod")):
        summary = demo(own, attachment, folder / "runs" / name / "summary.json", folder=folder)
        assert summary["accuracy"] > 0.95
        assert summary["epochs_exact"]
        assert (summary["traces"], summary["sizes"][0], max(summary["sizes"]), summary["sizes"][-1]) == (1, 2, 4, 3)
