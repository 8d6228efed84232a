"""Distributions of kungfu, and environments away from the repository that they are tried in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from tests.docs.test_first_steps import take_first_steps

__all__ = ["REPOSITORY", "distributions", "run", "works"]

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


def distributions(folder: Path) -> tuple[Path, Path]:
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
