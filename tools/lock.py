"""Writes requirements.lock: the exact version of everything that pyproject.toml leads to.

pip resolves without installing anything; its report is turned into one pin a line. Run by ``make lock`` when a
dependency is to move; extra arguments go to pip, for example ``--constraint FILE``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SEPARATE = "horovod"  # compiled against the locked TensorFlow, so it cannot be resolved together with it
HELD = "tensorflow<2.19"  # pyproject.toml allows newer ones, against which horovod 0.28.1 does not build as it is
HEADER = "# Written by `make lock` from pyproject.toml; do not edit. horovod is installed last, by tools/setup.sh.\n"


def requirements() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    separate = extras.pop(SEPARATE)
    together = [*project["project"]["dependencies"], *(line for lines in extras.values() for line in lines)]
    return [HELD, *together, *project["build-system"]["requires"], f"pip=={version('pip')}", *separate]


def resolve(wanted: list[str], *, pip_options: list[str]) -> list[str]:
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    report = subprocess.run([*command, *pip_options, *wanted], check=True, stdout=subprocess.PIPE, text=True).stdout
    found = [package["metadata"] for package in json.loads(report)["install"]]
    return [f"{package['name']}=={package['version']}" for package in found]


def main() -> None:
    wanted = requirements()
    separate = [line for line in wanted if line.startswith(SEPARATE)]
    pins = resolve([line for line in wanted if line not in separate], pip_options=sys.argv[1:])
    (ROOT / "requirements.lock").write_text(HEADER + "\n".join(sorted([*pins, *separate], key=str.lower)) + "\n")


if __name__ == "__main__":
    main()
