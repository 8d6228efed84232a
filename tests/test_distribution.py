"""What is handed out: the wheel and the source distribution hold all of kungfu, and work away from the repository."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import distribution
from tests.distribution import REPOSITORY, run, works


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The source distribution of the repository, and the wheel that is built from nothing but it."""
    return distribution.distributions(tmp_path_factory.mktemp("distribution"))


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
        told = {Path(name).name: name for name in archive.namelist() if ".dist-info/" in name}
        programs = archive.read(told["entry_points.txt"]).decode()
        metadata = archive.read(told["METADATA"]).decode().splitlines()
    assert "kungfu-run = kungfu.cli.run:main" in programs
    assert "[kungfu.plan]\nsimulate = kungfu_planning.cli.simulate\ntuning = kungfu_planning.cli.tuning\n" in programs
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
