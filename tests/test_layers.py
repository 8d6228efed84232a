"""The layers: imports point one way."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import kungfu

ROOT = Path(kungfu.__file__).parent

# Each layer may import those that stand below it, and itself; runtime stands beside the calculus.
CALCULUS = ["policy_definition", "monitor", "control", "ops", "signal"]
ALLOWED = {
    "errors": [],
    "signal": ["errors"],
    "ops": ["signal", "errors"],
    "control": ["ops", "signal", "errors"],
    "monitor": ["ops", "signal", "errors"],
    "policy_definition": ["monitor", "control", "ops", "signal", "errors"],
    "compiler": ["native", *CALCULUS, "errors"],
    "record": ["compiler", *CALCULUS, "errors"],
    "training": ["compiler", "record", "runtime", "native", *CALCULUS, "errors"],
    "testing": ["compiler", "record", "runtime", *CALCULUS, "errors"],
    "runtime": ["native", "errors"],
    "native": ["errors"],
}
PUBLIC = {"kungfu", "kungfu.errors"}


def imports(path: Path) -> Iterator[str]:
    """The modules of kungfu that a file imports when it runs; what is only read by a type checker does not count."""
    tree = ast.parse(path.read_text())
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name.split(".")[0] == "kungfu")
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "kungfu":
            names = [f"kungfu.{one.name}" for one in node.names] if node.module == "kungfu" else [node.module]
            yield from names


def files_of(layer: str) -> list[Path]:
    single = ROOT / f"{layer}.py"
    return [single] if single.exists() else sorted((ROOT / layer).rglob("*.py"))


@pytest.mark.parametrize("layer", ALLOWED)
def test_a_layer_imports_only_what_stands_below_it(layer: str) -> None:
    assert files_of(layer)
    for path in files_of(layer):
        for module in imports(path):
            below = module.split(".")[1]
            assert below in (layer, *ALLOWED[layer]), f"{path.relative_to(ROOT)} imports {module}"


def test_prebuilt_policies_use_the_public_list_only() -> None:
    paths = [one for one in sorted((ROOT / "policies").glob("*.py")) if one.name != "__init__.py"]
    assert paths
    for path in paths:
        for module in imports(path):
            assert module in PUBLIC, f"policies/{path.name} imports {module}"


def test_in_the_runtime_only_attachments_import_tensorflow() -> None:
    for path in sorted((ROOT / "runtime").rglob("*.py")):
        names = {
            name.split(".")[0]
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names])
        }
        if "attachment" not in path.relative_to(ROOT / "runtime").parts:
            assert "tensorflow" not in names, path


def test_every_package_only_gathers_names_in_its_init() -> None:
    for path in sorted(ROOT.rglob("__init__.py")):
        defined = [
            one.name
            for one in ast.parse(path.read_text()).body
            if isinstance(one, (ast.FunctionDef, ast.ClassDef)) and not one.name.startswith("__")
        ]
        assert not defined, f"{path.relative_to(ROOT)} defines {defined}"
