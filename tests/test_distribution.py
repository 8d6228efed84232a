"""What is handed out: the wheel and the source distribution hold all of kungfu, and work away from the repository."""

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

import pytest

REPOSITORY = Path(__file__).parent.parent
SOURCES = ("kungfu", "policies", "LICENSE", "MANIFEST.in", "README.md", "CHANGELOG.md", "pyproject.toml")
# Of one command: the first use of the compiled part may have to build it, on a machine that is busy.
DEADLINE_S = 240

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
    told = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=folder, env=told, capture_output=True, text=True, timeout=deadline_s, check=False)
    assert done.returncode == 0, f"{words} gave {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


def build(what: str, *, sources: Path, into: Path) -> Path:
    """A distribution, made by the backend that pyproject.toml names."""
    program = f"from setuptools import build_meta; print('made', build_meta.build_{what}({str(into)!r}))"
    last = run(sys.executable, "-c", program, folder=sources).splitlines()[-1]
    return into / last.removeprefix("made ")


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The source distribution of the repository, and the wheel that is built from nothing but it."""
    folder = tmp_path_factory.mktemp("distribution")
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


def files_of_package() -> Iterator[str]:
    for folder, folders, names in os.walk(REPOSITORY / "kungfu", followlinks=True):
        folders[:] = [name for name in folders if name != "__pycache__"]
        yield from (str((Path(folder) / name).relative_to(REPOSITORY)) for name in names)


def test_the_wheel_holds_each_file_of_the_package_and_nothing_else(distributions: tuple[Path, Path]) -> None:
    _, wheel = distributions
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == set(files_of_package())
    # By name too, because a search that finds nothing would be equal to an empty wheel.
    needed = {
        "kungfu/py.typed",
        "kungfu/native/state/transfer.cc",
        "kungfu/native/all_reduce/group.h",
        "kungfu/runtime/ipc/messages.proto",
        "kungfu/runtime/ipc/messages_pb2.py",
        "kungfu/policies/gns_batch.py",
    }
    assert needed <= held


def test_the_wheel_names_its_programs_and_what_it_needs(distributions: tuple[Path, Path]) -> None:
    _, wheel = distributions
    with zipfile.ZipFile(wheel) as archive:
        told = {Path(name).name: name for name in archive.namelist() if ".dist-info/" in name}
        programs = archive.read(told["entry_points.txt"]).decode()
        metadata = archive.read(told["METADATA"]).decode().splitlines()
    assert "kungfu-run = kungfu.cli.run:main" in programs
    assert "Name: kungfu-training" in metadata
    assert "LICENSE" in told
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


def works(environment: Path, folder: Path) -> None:
    """Imports, asks for help and trains with one peer, by the programs of this environment alone."""
    programs = environment / "bin"
    home = run(programs / "python", "-c", "import kungfu; print(kungfu.__file__)", folder=folder).strip()
    assert Path(home).is_relative_to(environment)
    assert "usage: kungfu-run" in run(programs / "kungfu-run", "--help", folder=folder)
    (folder / "train.py").write_text(TRAIN)
    job = [programs / "kungfu-run", "-np", 1, programs / "python", "train.py"]
    for command in ([programs / "python", "train.py"], job):
        shown = run(*command, folder=folder)
        assert "trained 6 steps" in shown, shown
        assert str(environment) in shown


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
    pip = [sys.executable, "-m", "pip", "--python", environment, "install", "--quiet", "--no-index", "--no-deps"]
    run(*pip, "--ignore-installed", wheel, folder=folder)
    works(environment, folder)


@pytest.mark.slow
@pytest.mark.skipif("KUNGFU_SOAK" not in os.environ, reason="make soak runs it: pip fetches all of TensorFlow")
@pytest.mark.timeout(1800)
def test_pip_installs_the_wheel_with_the_newest_of_what_it_needs(
    distributions: tuple[Path, Path], tmp_path: Path
) -> None:
    _, wheel = distributions
    environment, folder = tmp_path / "environment", tmp_path / "project"
    folder.mkdir()
    venv.create(environment, symlinks=True, with_pip=True)
    pip = [environment / "bin" / "python", "-m", "pip"]
    run(*pip, "install", "--quiet", wheel, folder=folder, deadline_s=1500)
    run(*pip, "check", folder=folder)
    found = {one["name"]: one["version"] for one in json.loads(run(*pip, "list", "--format=json", folder=folder))}
    assert found["tensorflow"].startswith("2.21."), "the newest that pyproject.toml allows"
    works(environment, folder)
