"""The guide's examples are run, and its folder keeps to plain Python."""

from __future__ import annotations

import ast
import doctest
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_every_example_of_the_guide_prints_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    failed, tried = doctest.testfile(str(ROOT / "docs" / "tuning.md"), module_relative=False)
    assert tried > 20
    assert failed == 0


def test_planning_imports_neither_tensorflow_nor_what_runs_training() -> None:
    allowed = ("kungfu.errors", "kungfu.tune", "matplotlib", "numpy", "rich", "yaml")
    for path in (ROOT / "kungfu" / "tune").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            outside = [name for name in names if name.split(".")[0] in ("kungfu", "tensorflow", "keras", "grpc")]
            assert all(name.startswith(allowed) for name in outside), f"{path} imports {outside}"
