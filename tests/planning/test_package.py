"""Planning needs nothing of training: what the whole package loads is itself, and libraries."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import importlib, pkgutil, sys
import kungfu.errors

before = set(sys.modules)
import kungfu_planning

for module in pkgutil.walk_packages(kungfu_planning.__path__, "kungfu_planning."):
    importlib.import_module(module.name)
loaded = sys.modules.keys() - before
assert "kungfu_planning.cli.tuning" in loaded
print(*sorted(name for name in loaded if name.split(".")[0] in ("kungfu", "tensorflow", "keras", "grpc")))
"""


@pytest.mark.slow
def test_all_of_planning_loads_of_kungfu_only_errors_and_no_tensorflow() -> None:
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=180, check=True)
    assert ran.stdout == "\n"
