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
from collections.abc import Iterable, Iterator
from email import message_from_bytes
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import kungfu
from kungfu.extras import EXTRAS
from tests.docs.test_first_steps import take_first_steps
from tests.docs.test_programs import blocks
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
    "setup.py",
)
# The build tools that tools/setup.sh installs apart from the environment.
TOOLS = Path(sys.prefix) / ".setup" / "build-tools"
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


def run(*command: object, folder: Path, deadline_s: float = DEADLINE_S, code: int = 0, path: str = "") -> str:
    """What a command prints that runs in a folder outside the repository and knows nothing of it; of one that fails as
    expected, the error. Python finds modules in `path`, too."""
    clean = {**os.environ, "PYTHONPATH": path}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=folder, env=clean, capture_output=True, text=True, timeout=deadline_s, check=False)
    assert done.returncode == code, f"{words} gave {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stderr if code else done.stdout


def build(what: str, *, sources: Path, into: Path) -> Path:
    """A distribution, made by the backend that pyproject.toml names."""
    program = f"from setuptools import build_meta; print('made', build_meta.build_{what}({str(into)!r}))"
    last = run(sys.executable, "-c", program, folder=sources, path=str(TOOLS)).splitlines()[-1]
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
    """Imports, asks for help, plans, trains alone, and takes the first steps in a job, by an environment's programs."""
    programs = environment / "bin"
    home = run(programs / "python", "-c", "import kungfu; print(kungfu.__file__)", folder=folder).strip()
    assert Path(home).is_relative_to(environment)
    assert "usage: kungfu-run" in run(programs / "kungfu-run", "--help", folder=folder)
    words = ("plan", "simulate", "generated:elan:5", "--gpus", 32, "--policy", "fifo", "--json")
    assert '"makespan_s"' in run(programs / "kungfu", *words, folder=folder)
    (folder / "train.py").write_text(TRAIN)
    shown = run(programs / "python", "train.py", folder=folder)
    assert "trained 6 steps" in shown, shown
    assert str(environment) in shown
    project = folder / "first steps"
    project.mkdir()
    take_first_steps(project, programs=programs)


def lacks_extras(environment: Path, folder: Path, extras: Iterable[str]) -> None:
    """Each command of these extras says what to install; `folder` holds what `works` has left: a run of first steps."""
    start, name, folder = ("kungfu-run", "-np", 1), "../train.py", folder / "first steps"
    commands = {
        "metrics": (*start, "--metrics-port", 0, environment / "bin" / "python", name),
        "page": (*start, "--page", environment / "bin" / "python", name),
        "plan": ("kungfu", "plan", "tuning", "tuning.yaml"),
        "plots": ("kungfu", "draw"),
        "tensorboard": ("kungfu", "tensorboard", "runs"),
    }
    for extra in extras:
        program, *words = commands[extra]
        told = run(environment / "bin" / str(program), *words, folder=folder, code=2)
        assert told.endswith(f"; pip install 'kungfu-training[{extra}]'\n"), told


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
        "kungfu/runtime/ipc/etcd_pb2.py",
        "kungfu/policies/gns_batch.py",
        "kungfu_planning/py.typed",
        "kungfu_planning/tune/planner.py",
    }
    assert needed <= held


def test_the_wheel_names_its_programs_and_what_it_needs(distributions: tuple[Path, Path]) -> None:
    _, wheel = distributions
    with zipfile.ZipFile(wheel) as archive:
        held = {name.partition(".dist-info/")[2]: name for name in archive.namelist() if ".dist-info/" in name}
        programs = archive.read(held["entry_points.txt"]).decode()
        metadata = message_from_bytes(archive.read(held["METADATA"]))
    assert "kungfu-run = kungfu.cli.run:main" in programs
    assert "[kungfu.plan]\nsimulate = kungfu_planning.cli.simulate\ntuning = kungfu_planning.cli.tuning\n" in programs
    of_project = [metadata[name] for name in ("Name", "Version", "Author", "License-Expression")]
    assert of_project == ["kungfu-training", kungfu.__version__, "kungfu developers", "Apache-2.0"]
    licences = {"LICENSE", "kungfu/cli/page/static/vendor/uPlot.LICENSE.txt"}
    assert {*metadata.get_all("License-File")} == licences
    assert {f"licenses/{name}" for name in licences} <= held.keys()
    assert "Typing :: Typed" in metadata.get_all("Classifier")
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert "kf.keras.attach(model)" in metadata.get_payload()
    assert not re.search(r"<img|<a |\]\((?!https?:)", metadata.get_payload()), "a registry has no such file"
    needed = [Requirement(line) for line in metadata.get_all("Requires-Dist")]
    base = {one.name for one in needed if one.marker is None}
    assert {"tensorflow", "keras", "numpy", "grpcio", "protobuf"} <= base
    assert len(base) <= 10


def test_the_source_distribution_has_no_tests_and_tells_the_changes(distributions: tuple[Path, Path]) -> None:
    source, _ = distributions
    with tarfile.open(source) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"} <= held
    assert not any(name.startswith("tests") for name in held)


# The start of the interpreters of the environment, which borrow more than the wheel asks for without extras.
START = f"""
import sys

sys.modules |= dict.fromkeys({["sklearn", *(module for modules in EXTRAS.values() for module in modules)]})
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
    lacks_extras(environment, folder, ["plots"])  # tests/test_extras.py has the others


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


def install(python: Path, *requirements: object, folder: Path) -> None:
    """Installs requirements into the environment of an interpreter, and checks that all packages fit."""
    run(python, "-m", "pip", "install", "--quiet", *requirements, folder=folder, deadline_s=INSTALL_S)
    run(python, "-m", "pip", "check", folder=folder)


def trains_without_extras(environment: Path, folder: Path, *, tensorflow: str) -> None:
    """Trains the Keras example of README.md, and tries each command that needs an extra."""
    ((_, example),) = blocks((REPOSITORY / "README.md").read_text())[:1]
    data = "import numpy as np\n\ndraw = np.random.default_rng(0)\n"
    data += "x, y = draw.random((2560, 784)), draw.integers(10, size=2560)\n"
    (folder / "train.py").write_text(data + example)
    job = [environment / "bin" / "kungfu-run", "-np", 2, environment / "bin" / "python", "train.py"]
    assert "training is over" in run(*job, folder=folder, deadline_s=INSTALL_S)  # builds the compiled part
    # TensorFlow up to 2.20 installs TensorBoard itself.
    brought = {"tensorboard"} if tensorflow in ("2.18", "2.19", "2.20") else set()
    lacks_extras(environment, folder, EXTRAS.keys() - brought)


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
    install(own, wheel, f"tensorflow=={tensorflow}.*", folder=folder)
    trains_without_extras(environment, folder, tensorflow=tensorflow)
    install(own, f"{wheel}[all,horovod,examples]", f"tensorflow=={tensorflow}.*", folder=folder)
    run(own, "-m", "kungfu.native.horovod", folder=folder, deadline_s=INSTALL_S)
    shutil.copytree(REPOSITORY / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    fit = [environment / "bin" / "kungfu-run", "-np", 2, "--max", 4, own, "examples/keras/digits.py"]
    assert "held-out images: 0.9" in run(*fit, folder=folder, deadline_s=INSTALL_S)
    for attachment, name in (("local", "demo"), ("horovod", "demo-horovod")):
        summary = demo(own, attachment, folder / "runs" / name / "summary.json", folder=folder)
        assert summary["accuracy"] > 0.95
        assert summary["epochs_exact"]
        assert (summary["traces"], summary["sizes"][0], max(summary["sizes"]), summary["sizes"][-1]) == (1, 2, 4, 3)
