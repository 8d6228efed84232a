"""Writes the locks: exact versions of all dependencies of pyproject.toml, those with the oldest TensorFlow, and those
of the build, which are apart because the build of Horovod takes an older setuptools.

pip resolves without installing anything; its report is converted to one pin per line. Run by ``make lock`` to update a
dependency; further arguments are passed to pip, for example ``--constraint FILE``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
HEADER = "# Written by `make lock` from pyproject.toml; do not edit. Horovod: kungfu/native/horovod.py.\n"


@dataclass(frozen=True)
class Lock:
    """A lock: a file of pins.

    Args:
        name: The name of the file.
        held: Requirements beyond those of pyproject.toml.
        without: Extras that are incompatible with these requirements.
    """

    name: str
    held: Sequence[str] = ()
    without: Sequence[str] = ()


LOCKS = (
    Lock("requirements.lock", without=["proto"]),
    Lock("requirements-oldest.lock", held=["tensorflow<2.19", "grpcio<1.72"]),
)
BUILD = "requirements-build.lock"


def requirements(lock: Lock) -> list[str]:
    """The requirements of a lock for pip."""
    project = _pyproject()["project"]
    extras = project["optional-dependencies"].items()
    chosen = [line for name, lines in extras if name not in lock.without for line in lines]
    # An extra that refers to others by the name of the distribution adds nothing to them.
    others = [line for line in chosen if not line.startswith(f"{project['name']}[")]
    return [*lock.held, *project["dependencies"], *others, f"pip=={version('pip')}"]


def _pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def resolve(wanted: list[str], *, pip_options: list[str]) -> list[str]:
    """The pins of the wanted packages and of all their dependencies."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    report = subprocess.run([*command, *pip_options, *wanted], check=True, stdout=subprocess.PIPE, text=True).stdout
    found = [package["metadata"] for package in json.loads(report)["install"]]
    return [f"{package['name']}=={package['version']}" for package in found]


def main() -> None:
    """Writes all locks."""
    wanted = {lock.name: requirements(lock) for lock in LOCKS} | {BUILD: _pyproject()["build-system"]["requires"]}
    for name, lines in wanted.items():
        pins = resolve(lines, pip_options=sys.argv[1:])
        (ROOT / name).write_text(HEADER + "\n".join(sorted(pins, key=str.lower)) + "\n")


if __name__ == "__main__":
    main()
