"""Builds Horovod from its sources for the TensorFlow of this environment: ``python -m kungfu.native.horovod``.

pip alone is not enough: the sources are patched first (``horovod.patch`` gives the reasons), and the build must see the
target TensorFlow. The wheel is stored in the user's cache with kungfu's own libraries. The name of the wheel's folder
depends on all inputs, so the next environment with the same TensorFlow needs no compilation.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

from kungfu.errors import InternalError, UsageError
from kungfu.extras import install_command
from kungfu.native.builder import cache_folder, locked, print_built, work_folder

VERSION = "0.28.1"
_PATCH = Path(__file__).with_suffix(".patch")
# The parts of Horovod to build: its ops for TensorFlow, over Gloo. The environment may add others, such as
# HOROVOD_GPU_OPERATIONS=NCCL.
_PARTS = {
    "HOROVOD_WITH_TENSORFLOW": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_MPI": "1",
    "HOROVOD_WITHOUT_PYTORCH": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
}
# The programs that a build needs; cmake is in the extra `horovod`.
_PROGRAMS = ("g++", "make", "patch", "cmake")
_LOADS = "import horovod.tensorflow as hvd; assert hvd.gloo_built()"


def install() -> Path:
    """Builds Horovod if the cache has no matching wheel, and installs it into this environment.

    Returns:
        The path of the wheel.

    Raises:
        UsageError: A program that the build needs is not on PATH.
        InternalError: The build fails, or its result cannot be loaded.

    Cost:
        About a minute on two cores, and 300 MB; a few seconds if the cache has the wheel.
    """
    wheel = build()
    _run("install", _pip("install", "--force-reinstall", wheel))
    _run("load", [sys.executable, "-c", _LOADS])
    return wheel


def build() -> Path:
    """The cached wheel for the TensorFlow of this environment, built if missing; raises the errors of `install`."""
    import tensorflow as tf

    environment = _environment(os.environ)
    parts = {name: value for name, value in environment.items() if name.startswith("HOROVOD_")}
    made_from = [VERSION, tf.__version__, sys.implementation.cache_tag, _PATCH.read_text(), sorted(parts.items())]
    digest = hashlib.sha256(json.dumps(made_from).encode()).hexdigest()[:16]
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / f"horovod-{VERSION}-tensorflow-{tf.__version__}-{digest}"
    lock = cache / f"{folder.name}.lock"
    with locked(lock):
        # If several processes build at once, one compiles, and the others find its result.
        if not folder.exists():
            with work_folder(lock) as work:
                _compile(work, environment).rename(folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


def _environment(outer: Mapping[str, str]) -> dict[str, str]:
    """The build's variables: Horovod's parts, a PATH to this environment's cmake, and no options of an outer make."""
    inherited = {name: value for name, value in outer.items() if name not in ("MAKELEVEL", "MFLAGS")}
    jobs = {"MAKEFLAGS": f"-j{len(os.sched_getaffinity(0))}"}  # otherwise Horovod's setup uses eight
    return _PARTS | inherited | jobs | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{outer.get('PATH', '')}"}


def _compile(work: Path, environment: Mapping[str, str]) -> Path:
    """Compiles Horovod; returns a folder with the wheel."""
    for program in _PROGRAMS:
        if shutil.which(program, path=environment["PATH"]) is None:
            source = install_command("horovod") if program == "cmake" else f"Debian, Ubuntu: apt-get install {program}"
            raise UsageError(f"Horovod must be compiled and no {program} is on PATH; install it ({source})")
    _run("fetch", _pip("download", "--no-binary", "horovod", "--dest", work, f"horovod=={VERSION}"), environment)
    with tarfile.open(work / f"horovod-{VERSION}.tar.gz") as archive:
        archive.extractall(work, filter="data")
    sources = work / f"horovod-{VERSION}"
    _run("change", ["patch", "--forward", "--batch", "--strip=1", "--directory", str(sources), f"--input={_PATCH}"])
    _run("compile", _pip("wheel", "--no-cache-dir", "--wheel-dir", work / "wheel", sources), environment)
    return work / "wheel"


def _pip(command: str, *words: object) -> list[str]:
    # Without isolation the build sees TensorFlow.
    isolation = () if command == "install" else ("--no-build-isolation",)
    return [sys.executable, "-m", "pip", command, "--no-deps", *isolation, *map(str, words)]


def _run(what: str, command: list[str], environment: Mapping[str, str] | None = None) -> None:
    """Runs a command of the build, and shows its output; raises ``InternalError`` if the command fails."""
    done = subprocess.run(command, env=environment, check=False)
    if done.returncode:
        raise InternalError(
            f"Horovod {VERSION}: {what} failed with exit code {done.returncode}, its output is above; the command was "
            f"{' '.join(command)}"
        )


if __name__ == "__main__":
    print_built(install)
