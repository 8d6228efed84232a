"""The layers of kungfu and kungfu_planning as a table: which package may import which.

The tests hold the sources and the pages to it. Of each other the two import nothing but ``kungfu.errors``.

``python -m tests.layers`` writes it into CONTRIBUTING.md and docs/architecture.md. A new package, or a new module
beside packages, needs a row here; a row names only rows that stand below it, so that no two packages import each other.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import kungfu
import kungfu_planning

ROOT, PLANNING_ROOT = Path(kungfu.__file__).parent, Path(kungfu_planning.__file__).parent
BEGIN, END = "<!-- layers: written by `python -m tests.layers` -->", "<!-- end of layers -->"

Rows = dict[str, tuple[str, ...]]

CALCULUS = ("policy_definition", "monitor", "control", "ops", "signal")
PACKAGES: Rows = {
    "cli": (
        "testing",
        "compiler",
        "trace",
        "runtime",
        "event_log",
        "native",
        *CALCULUS,
        "slowness",
        "extras",
        "errors",
    ),
    "testing": ("rule_requests", "compiler", "trace", "runtime", "event_log", *CALCULUS, "errors"),
    "keras": (
        "data",
        "training",
        "framework_internals",
        "compiler",
        "runtime",
        "policy_definition",
        "control",
        "errors",
    ),
    "data": ("training", "errors"),
    "training": (
        "framework_internals",
        "rule_requests",
        "compiler",
        "trace",
        "runtime",
        "event_log",
        "native",
        *CALCULUS,
        "errors",
    ),
    "rule_requests": ("compiler", "runtime", *CALCULUS, "errors"),
    "trace": ("compiler", *CALCULUS, "errors"),
    "compiler": ("native", *CALCULUS, "slowness", "errors"),
    "policy_definition": ("monitor", "control", "ops", "signal", "errors"),
    "monitor": ("ops", "signal", "errors"),
    "control": ("ops", "signal", "errors"),
    "worth": ("ops", "signal", "errors"),
    "ops": ("signal", "errors"),
    "signal": ("errors",),
    "runtime": ("event_log", "native", "slowness", "errors"),
    "event_log": ("errors",),
    "native": ("extras", "errors"),
    "framework_internals": (),
    "slowness": (),
    "extras": (),
    "errors": (),
}

# Those of kungfu_planning.
PLANNING: Rows = {
    "cli": ("measure", "schedule", "tune", "pictures", "units"),
    "measure": (),
    "schedule": ("pictures", "profile"),
    "tune": ("profile", "units"),
    "pictures": (),
    "profile": (),
    "units": (),
}
SHARED = "kungfu.errors"

# The parts of a package: a package, or a module that stands beside packages.
WITHIN: dict[str, Rows] = {
    "runtime": {
        "api": ("peer", "state", "attachment", "checkpoints", "core", "settings"),
        "agent": ("peer", "job_api", "checkpoints", "ipc", "core", "hosts", "settings"),
        "peer": ("state", "attachment", "preemption", "ipc", "core", "settings"),
        "state": ("attachment", "ipc", "core"),
        "attachment": ("ipc", "core", "settings"),
        "job_api": ("ipc", "core", "hosts", "settings"),
        "checkpoints": ("core",),
        "ipc": ("core",),
        "core": ("settings",),
        "preemption": (),
        "hosts": (),
        "settings": (),
    },
    "training": {
        "loop": ("run", "telemetry", "state", "data", "graph"),
        "run": ("telemetry", "state", "data", "graph"),
        "telemetry": ("graph",),
        "state": ("graph",),
        "data": ("graph",),
        "graph": (),
    },
}


def modules() -> dict[str, Path]:
    """Every module of both by name, except the prebuilt policies, which are held to the public list."""
    paths = [*sorted(ROOT.rglob("*.py")), *sorted(PLANNING_ROOT.rglob("*.py"))]
    paths = [path for path in paths if not path.is_relative_to(ROOT / "policies")]
    names = [".".join(path.relative_to(ROOT.parent).with_suffix("").parts) for path in paths]
    return {name.removesuffix(".__init__"): path for name, path in zip(names, paths, strict=True)}


def imports(path: Path) -> Iterator[str]:
    """What a file imports of both when it runs, inside functions too, as ``module.name``; what only a type checker
    reads does not count."""
    tree = ast.parse(path.read_text())
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    yield from _imported(node for node in ast.walk(tree) if id(node) not in skipped)


def _imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names if _OURS.fullmatch(one.name))
        elif isinstance(node, ast.ImportFrom) and _OURS.fullmatch(node.module or ""):
            yield from (f"{node.module}.{one.name}" for one in node.names)


_OURS = re.compile(r"kungfu(_planning)?(\.\w+)*(:\w+)?")


def crossings(name: str, path: Path) -> list[str]:
    """The modules that a module of one of the two takes from the other and must not: imported anywhere, for a type
    checker too, or named in a text, as `importlib.import_module` takes it."""
    own, nodes = name.split(".")[0], [*ast.walk(ast.parse(path.read_text()))]
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    found = {*_imported(nodes), *filter(_OURS.fullmatch, texts)}
    may = SHARED if own == PLANNING_ROOT.name else own
    return sorted(one for one in found if re.split(r"[.:]", one)[0] != own and not _within(one, may))


@functools.cache  # it reads all sources
def graph() -> Mapping[str, set[str]]:
    """Every module and the modules that it imports."""
    known = modules()
    found = {
        name: {one if one in known else one.rpartition(".")[0] for one in imports(path)} for name, path in known.items()
    }
    return {name: {one for one in those if one in known and one != name} for name, those in found.items()}


def room(module: str, package: str) -> str:
    """The row of ``package`` that a module stands in; '' for the package's own file and what is not in it.

    >>> room("kungfu.runtime.ipc.rpc", "kungfu.runtime"), room("kungfu.ops", "kungfu.runtime")
    ('ipc', '')
    """
    return module.removeprefix(f"{package}.").split(".")[0] if module.startswith(f"{package}.") else ""


def rooms_in(package: str) -> set[str]:
    """The packages and modules that stand directly in a package."""
    return {room(module, package) for module in modules()} - {""}


def trespasses(package: str, rows: Mapping[str, Iterable[str]]) -> list[str]:
    """The imports inside ``package`` that its rows do not allow, each as a line."""
    return [
        f"{module} imports {imported}, which stands not below it in the row of {room(module, package)!r}"
        for module, those in graph().items()
        for imported in sorted(those)
        if (here := room(module, package)) and (there := room(imported, package))
        if there not in (here, *rows.get(here, ()))
    ]


def ring(imported: Mapping[str, set[str]]) -> list[str]:
    """The modules on rings of imports, sorted, of a graph as ``graph`` gives it."""
    left = dict(imported)
    while ends := [module for module, those in left.items() if not those & left.keys()]:
        for module in ends:
            del left[module]
    # What is left reaches a ring; what nothing in it imports only leads there.
    while starts := left.keys() - {one for those in left.values() for one in those}:
        for module in starts:
            del left[module]
    return sorted(left)


def _within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def twins() -> dict[str, list[str]]:
    """The names of public classes that stand in several modules, with the modules."""
    found = defaultdict(list)
    for module, path in modules().items():
        if path.stem.endswith(("_pb2", "_pb2_grpc")):
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(module)
    return {name: those for name, those in sorted(found.items()) if len(those) > 1}


def table() -> str:
    """The rows as the table of CONTRIBUTING.md."""
    lines = ["| package | may import |", "| --- | --- |"]
    for name, below in PACKAGES.items():
        lines.append(f"| `{name}` | {_listed(below)} |")
        lines += [f"| `{name}/{inner}` | {_listed(those)} |" for inner, those in WITHIN.get(name, {}).items()]
    lines += [f"| `kungfu_planning/{name}` | {_listed((*below, SHARED))} |" for name, below in PLANNING.items()]
    return "\n".join(lines)


def diagram() -> str:
    """The packages as the diagram of docs/architecture.md: an arrow per import that follows from no others."""
    lines, rows = ["```mermaid", "flowchart TB"], {PLANNING_ROOT.name: ("errors",), **PACKAGES}
    for name in rows:
        if name in _NESTED:
            lines += [f"  subgraph {name}", *(f"    {name}_{inner}[{inner}]" for inner in _NESTED[name]), "  end"]
        else:
            lines.append(f"  {name}")
    lines += [f"  {a} --> {b}" for a, b in _arrows(rows)]
    for name, inner_rows in _NESTED.items():
        lines += [f"  {name}_{a} --> {name}_{b}" for a, b in _arrows(inner_rows)]
    return "\n".join([*lines, "```"])


_NESTED = {PLANNING_ROOT.name: PLANNING, "runtime": WITHIN["runtime"]}  # drawn with their parts


def _arrows(rows: Rows) -> list[tuple[str, str]]:
    """The pairs of rows of which one may import the other, without those that follow from others."""

    def below(name: str) -> set[str]:
        return {*rows[name], *(deeper for one in rows[name] for deeper in below(one))}

    return [(name, one) for name in rows for one in rows[name] if not any(one in below(o) for o in rows[name])]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "nothing of kungfu"


def with_section(page: str, content: str) -> str:
    """A page with what stands between its marks replaced."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{content}\n{END}{rest.partition(END)[2]}"


def pages() -> dict[Path, str]:
    """The pages that show the layers, with what they are to show."""
    return {ROOT.parent / "CONTRIBUTING.md": table(), ROOT.parent / "docs" / "architecture.md": diagram()}


if __name__ == "__main__":
    for page, content in pages().items():
        page.write_text(with_section(page.read_text(), content))
