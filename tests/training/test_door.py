"""Training reaches the runtime by one door, and the door is no wider than training needs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import kungfu
from kungfu.runtime import api
from tools.house_size import chains

ROOT = Path(kungfu.__file__).parent
DOOR = "kungfu.runtime.api"


def taken_from_the_runtime() -> Iterator[tuple[Path, str, str]]:
    """File, module and name of every import of the runtime in training, and in what trains by Keras' fit."""
    for path in sorted(path for folder in ("training", "keras") for path in (ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kungfu.runtime"):
                yield from ((path, node.module or "", one.name) for one in node.names)
            elif isinstance(node, ast.Import):
                yield from ((path, one.name, "") for one in node.names if one.name.startswith("kungfu.runtime"))


def test_training_imports_the_runtime_by_its_door_only() -> None:
    others = {
        f"{path.relative_to(ROOT)} imports {module}" for path, module, _ in taken_from_the_runtime() if module != DOOR
    }
    assert not others


def test_the_door_gives_what_training_takes_and_nothing_else() -> None:
    given = [
        one.name
        for node in ast.parse(Path(api.__file__).read_text()).body
        if isinstance(node, ast.ImportFrom)
        for one in node.names
    ]
    assert sorted(given) == sorted({name for _, _, name in taken_from_the_runtime()})


def test_only_the_connection_of_a_process_knows_which_membership_it_has() -> None:
    taken = [(path.name, name) for path, _, name in taken_from_the_runtime()]
    assert {path for path, name in taken if name in ("JobMembership", "StandaloneMembership")} == {"job_connection.py"}
    assert len({path for path, name in taken if name == "Membership"}) > 1, "others take the protocol"


def test_training_reaches_through_at_most_three_objects() -> None:
    trees = {path: ast.parse(path.read_text()) for path in sorted((ROOT / "training").rglob("*.py"))}
    assert {path.name: found for path, tree in trees.items() if (found := chains(tree))} == {}
