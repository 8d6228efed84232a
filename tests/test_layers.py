"""The layers: imports point one way, no modules import each other in a ring, and a name stands for one class.

Names of tests are bounded, and docstrings name their things by nouns.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests import layers
from tests.layers import PACKAGES, PLANNING, PLANNING_ROOT, ROOT, WITHIN

PUBLIC = {"kungfu", "kungfu.errors"}
TABLES = {
    "kungfu": PACKAGES,
    "kungfu_planning": PLANNING,
    **{f"kungfu.{package}": rows for package, rows in WITHIN.items()},
}


@pytest.mark.parametrize("package", TABLES)
def test_every_package_has_a_row_and_every_row_a_package(package: str) -> None:
    rooms = layers.rooms_in(package)
    assert rooms - set(TABLES[package]) == set(), "give it a row in tests/layers.py, and run `python -m tests.layers`"
    assert set(TABLES[package]) - rooms == set(), "no such package is left: take its row out of tests/layers.py"


@pytest.mark.parametrize("package", TABLES)
def test_a_row_names_only_rows_that_stand_below_it(package: str) -> None:
    order = list(TABLES[package])
    for name, below in TABLES[package].items():
        assert all(order.index(one) > order.index(name) for one in below), f"the row of {name}"


@pytest.mark.parametrize("package", TABLES)
def test_a_package_imports_only_what_stands_below_it(package: str) -> None:
    assert layers.trespasses(package, TABLES[package]) == []


def test_training_and_planning_share_only_errors() -> None:
    """Neither kungfu nor kungfu_planning imports the other, also not later or by a name, but for `kungfu.errors`."""
    found = {name: crossings for name, path in layers.modules().items() if (crossings := layers.crossings(name, path))}
    assert found == {}
    assert any(layers.SHARED in those for name, those in layers.graph().items() if layers.room(name, "kungfu_planning"))


def test_each_way_to_import_the_other_package_is_found(tmp_path: Path) -> None:
    lines = """
import importlib
from typing import TYPE_CHECKING
import kungfu.errors
from kungfu import errors
from kungfu.errors import UsageError
import kungfu_planning.tune
if TYPE_CHECKING:
    from kungfu.ops import clip
def later():
    "Names kungfu.data in a sentence."
    import kungfu
    from kungfu_planning.schedule import job
    importlib.import_module("kungfu.signal")
    importlib.import_module("kungfu_planning.cli:run")
"""
    (path := tmp_path / "module.py").write_text(lines)
    assert layers.crossings("kungfu_planning.module", path) == ["kungfu", "kungfu.ops.clip", "kungfu.signal"]
    found = layers.crossings("kungfu.module", path)
    assert found == ["kungfu_planning.cli:run", "kungfu_planning.schedule.job", "kungfu_planning.tune"]


def test_no_modules_import_each_other_in_a_ring() -> None:
    assert layers.ring(layers.graph()) == [], "imports inside functions count"


def test_a_ring_is_found_between_what_leads_to_it_and_what_it_leads_to() -> None:
    graph = {"first": {"a"}, "a": {"b"}, "b": {"c", "last"}, "c": {"a"}, "last": set[str](), "apart": {"last"}}
    assert layers.ring(graph) == ["a", "b", "c"]
    assert layers.ring(graph | {"c": set()}) == []


def test_a_name_stands_for_one_public_class() -> None:
    assert layers.twins() == {}, "rename the class so that it says what it is"


@pytest.mark.parametrize("page", layers.pages(), ids=lambda page: page.name)
def test_the_pages_show_the_layers(page: Path) -> None:
    text = page.read_text()
    assert text == layers.with_section(text, layers.pages()[page]), "run `python -m tests.layers`"


def test_prebuilt_policies_use_the_public_list_only() -> None:
    paths = [one for one in sorted((ROOT / "policies").glob("*.py")) if one.name != "__init__.py"]
    assert paths
    for path in paths:
        for imported in layers.imports(path):
            known = imported in PUBLIC or imported.rpartition(".")[0] in PUBLIC
            assert known, f"policies/{path.name} imports {imported}"


# Beside the attachments: the memory of variables, and what loads TensorFlow for the program of a "loaded" spare.
_WITH_TENSORFLOW = {Path("state/variables.py"), Path("agent/supervisor/script_runner.py")}


def test_only_some_modules_of_the_runtime_import_tensorflow() -> None:
    """In the runtime only attachments, the memory of variables and "loaded" spares import TensorFlow."""
    for path in sorted((ROOT / "runtime").rglob("*.py")):
        inside = path.relative_to(ROOT / "runtime")
        if "attachment" not in inside.parts and inside not in _WITH_TENSORFLOW:
            assert not _loads_tensorflow(ast.parse(path.read_text())), path


def test_what_runs_a_script_loads_tensorflow_for_a_loaded_spare_only() -> None:
    tree = ast.parse((ROOT / "runtime" / "agent" / "supervisor" / "script_runner.py").read_text())
    loading = [one.name for one in tree.body if isinstance(one, ast.FunctionDef) and _loads_tensorflow(one)]
    assert loading == ["_load_and_wait"]
    assert not any(_loads_tensorflow(one) for one in tree.body if not isinstance(one, ast.FunctionDef))


def _loads_tensorflow(tree: ast.AST) -> bool:
    return any(
        name.split(".")[0] == "tensorflow"
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names])
    )


def test_every_package_only_gathers_names_in_its_init() -> None:
    for path in sorted([*ROOT.rglob("__init__.py"), *PLANNING_ROOT.rglob("__init__.py")]):
        defined = [
            one.name
            for one in ast.parse(path.read_text()).body
            if isinstance(one, (ast.FunctionDef, ast.ClassDef)) and not one.name.startswith("__")
        ]
        assert not defined, f"{path.relative_to(ROOT.parent)} defines {defined}"


def test_names_of_tests_have_at_most_80_characters() -> None:
    tests = Path(__file__).parent
    for path in sorted(tests.rglob("test_*.py")):
        names = re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
        long = [name for name in names if len(name) > 80]
        assert long == [], f"{path.relative_to(tests)}: the sentence goes to the docstring"


_PRONOUN = r"(?:What|Whether|Where|Who|Whom|Which|That|Those|How|As|Of|By)\b"


@pytest.mark.parametrize("folder", ["kungfu", "kungfu_planning", "policies", "examples", "benchmarks", "tools"])
def test_a_docstring_names_its_thing_by_a_noun(folder: str) -> None:
    """The first line of a docstring does not begin with a pronoun: "True if ...", not "Whether ..."."""
    paths = sorted((ROOT.parent / folder).rglob("*.py"))
    assert paths
    for path in paths:
        found = re.findall(rf'^ *r?"""({_PRONOUN}.*)', path.read_text(), re.MULTILINE)
        assert found == [], path.relative_to(ROOT.parent)
