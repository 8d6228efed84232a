"""Counts the sources: lines, matched events, large classes, chains, encodings, and the walks of a request and a batch.

``python tools/house_size.py [--at COMMIT|FOLDER]`` prints tables, and as its last line a JSON object of all counts.
It reads the sources without importing them, so it runs on any commit of this repository.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import subprocess
import tarfile
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from rich.console import Console
from rich.table import Column, Table

# The classes (and, as pb.X, the messages) that hold a request or its answer, from the rule that fires to the view with
# the joiner; the second list is for commits with `Asked`. A class that a commit lacks does not count, and neither does
# a message that no module on the walk names: it is its class's encoding, made by `ipc/convert.py`.
# The files of the walk are the modules that name one of these, except for imports and `View`. The modules of `OUTSIDE`
# receive and store requests of people and schedulers: these enter the walk as `Asked`, and rules' requests never do.
WALK = """FiredRule RescaleRequest BarrierRequests Merged Situation Decision pb.PrepareRequest SizeWanted Starting Spawn
    pb.PeerStart PeerProgressed OfferJoiners Prepared pb.PreparedPeers pb.RescaleRequest pb.BarrierReply ViewEntry
    pb.Hello pb.Admission PeerState BarrierResult View"""
WALK_OF_ASKED = """Asked Resize BarrierInput JoinerOffer ArbitratedRequests pb.Asked pb.Resize pb.JoinerOffer
    pb.Decision pb.SizeWanted pb.Spawn pb.PeerProgressed Superseded"""
WALKED = ("kungfu/training/", "kungfu/compiler/", "kungfu/runtime/", "kungfu/rule_requests.py")
OUTSIDE = ("kungfu/runtime/job_api/", "kungfu/runtime/core/requests/")

# The modules that convert values to bytes or text; for protobuf, the generated modules; for NumPy, archives of arrays.
ENCODINGS = ("base64", "cattrs", "json", "marshal", "msgspec", "pickle", "protobuf", "savez", "struct", "yaml")

# The classes, each of which receives or creates the next, and the functions that a batch of arrays passes from
# ``model.fit`` after ``attach`` to the compiled step. The files of this walk are the modules that define them.
FIT = """_Attached FitData BatchPlan FitCall JobCallbacks JobConnection CombinedMetrics ModelMetrics FitMetrics JobLoop
    Run FitRun StepRunner StepCalls CompiledStep"""
FIT_BY = """Attached FitHandle fit_in_job Progress refuse_in_job refuse_job_step fit_data of_arrays of_source
    SerialSampler Arrays attach_built WholeBatchLosses job_step average_and_sum decide loop_batches batches"""

PLANNING = re.compile(r"kungfu/schedule/|kungfu/tune/|kungfu/cli/(simulate|plan_tuning)\.py|kungfu_planning/")
GENERATED = re.compile(r"_pb2(_grpc)?\.pyi?$|/vendor/|\.lock$|events\.schema\.json$|\.svg$")
KINDS = ("code", "docstring", "comment", "blank")
COMMENTS = {  # the beginnings of comment lines, by a file's suffix
    **dict.fromkeys((".cc", ".h", ".js", ".css", ".proto"), r"//|/\*|\* |\*/"),
    **dict.fromkeys((".sh", ".toml", ".yml", ".yaml", ".txt", ""), r"#(?!!)"),
}
_LAYOUT = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def python_lines(text: str) -> Counter[str]:
    """The lines of a module by kind; a string as a statement is a docstring, including its blank lines."""
    docstrings, code, comments = set[int](), set[int](), set[int]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings.update(range(node.lineno, (node.end_lineno or 0) + 1))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _LAYOUT:
            kind = comments if token.type == tokenize.COMMENT else code
            kind.update(range(token.start[0], token.end[0] + 1))
    code, comments = code - docstrings, comments - code - docstrings
    found = Counter(code=len(code), docstring=len(docstrings), comment=len(comments))
    return found + Counter(blank=len(text.splitlines()) - found.total())


def other_lines(text: str, suffix: str) -> Counter[str]:
    """The lines of a file of another language by kind."""
    comment = re.compile(COMMENTS.get(suffix, r"(?!)"))
    lines = map(str.strip, text.splitlines())
    return Counter("comment" if comment.match(line) else "code" if line else "blank" for line in lines)


def row_of(path: str) -> str:
    """The row of a file in the table: its package, and its language if not Python."""
    *folders, name = path.split("/")
    package = "/".join(folders[: 2 if folders[0].startswith("kungfu") else 1]) if folders else "(root)"
    kind = "generated" if GENERATED.search(path) else PurePosixPath(path).suffix or name
    return package if kind == ".py" else f"{package} {kind}"


def lines_by_row(sources: Mapping[str, str]) -> dict[str, Counter[str]]:
    """The lines and files of each row, and the sums of Python for planning, the rest of kungfu, and the tests."""
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    for path, text in sources.items():
        row, suffix = row_of(path), PurePosixPath(path).suffix
        found = python_lines(text) if suffix == ".py" else other_lines(text, suffix)
        rows[row] += found + Counter(files=1)
        if suffix == ".py" and re.match(r"kungfu(?!.* )|tests$", row):
            kungfu = "kungfu, planning" if PLANNING.match(path) else "kungfu without planning"
            rows[f"SUM {'tests' if row == 'tests' else kungfu}"] += found + Counter(files=1)
    return dict(sorted(rows.items()))


def name_of(node: ast.AST | None) -> str:
    """The last part of a name; for a message with its module, as in ``pb.X``."""
    if isinstance(node, ast.Attribute):
        return f"pb.{node.attr}" if isinstance(node.value, ast.Name) and node.value.id == "pb" else node.attr
    return node.id if isinstance(node, ast.Name) else ""


def classes_of(trees: Iterable[ast.Module]) -> dict[str, ast.ClassDef]:
    """The classes that modules define, by name."""
    return {one.name: one for tree in trees for one in ast.walk(tree) if isinstance(one, ast.ClassDef)}


def told_apart(tree: ast.Module) -> set[str]:
    """The classes that a module distinguishes: by ``case X()``, by ``isinstance``, in a table or in a tuple."""
    found = set[str]()
    for node in ast.walk(tree):
        match node:
            case ast.MatchClass(cls=one):
                found.add(name_of(one))
            case ast.Call(func=ast.Name(id="isinstance"), args=[_, classes]):
                found.update(map(name_of, ast.walk(classes)))
            case ast.Dict(keys=several) | ast.Tuple(elts=several) | ast.Compare(comparators=several):
                found.update(map(name_of, several))
    return found


def large_classes(trees: Iterable[ast.Module]) -> dict[str, int]:
    """The classes with more than seven fields (declared, inherited, or set in ``__init__``), with their number."""
    classes = classes_of(trees)

    def fields(name: str) -> set[str]:
        found = set[str]()
        for one in classes[name].body if name in classes else ():
            if isinstance(one, ast.AnnAssign) and "ClassVar" not in ast.unparse(one.annotation):
                found.add(name_of(one.target))
            elif isinstance(one, ast.FunctionDef) and one.name == "__init__":
                stored = (each for each in ast.walk(one) if isinstance(getattr(each, "ctx", None), ast.Store))
                found |= {each.attr for each in stored if isinstance(each, ast.Attribute)}
        return found.union(*(fields(name_of(base)) for base in (classes[name].bases if name in classes else ())))

    return {name: count for name in sorted(classes) if (count := len(fields(name))) > 7}


def encodings_of(tree: ast.Module) -> set[str]:
    """The names of ``ENCODINGS`` that a module uses: imported modules, and NumPy's archives."""
    found = set[str]()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found.update(one.name.partition(".")[0] for one in names)
            case ast.ImportFrom(module=str(module), names=names):
                found.add(module.partition(".")[0])
                found.update("protobuf" for one in (module, *(each.name for each in names)) if "_pb2" in one)
            case ast.Attribute(attr="savez"):
                found.add("savez")
    return found.intersection(ENCODINGS)


class _Chains(ast.NodeVisitor):
    """Collects chains of attributes; a local name is replaced by its last assignment, also in inner functions."""

    def __init__(self) -> None:
        self.found, self.aliases = list[str](), dict[str, str]()

    def _path(self, node: ast.AST | None) -> str:
        if isinstance(node, ast.Attribute):
            before = self._path(node.value)
            return before and f"{before}.{node.attr}"
        return self.aliases.get(name_of(node), "")

    def _assign(self, target: ast.AST, value: ast.AST | None = None) -> None:
        if isinstance(target, ast.Tuple):
            for one, of in zip(target.elts, getattr(value, "elts", None) or [None] * len(target.elts), strict=False):
                self._assign(one, of)
        elif isinstance(target, ast.Name):
            self.aliases[target.id] = self._path(value)

    def visit(self, node: ast.AST) -> None:
        match node:
            case ast.Attribute() if path := self._path(node):
                self.found += [path] * (path.count(".") >= 4)
                return
            case ast.FunctionDef(args=args) | ast.AsyncFunctionDef(args=args) | ast.Lambda(args=args):
                before, names = self.aliases, [one.arg for one in ast.walk(args) if isinstance(one, ast.arg)]
                self.aliases = before | {name: "self" if name == "self" else "" for name in names}
                self.generic_visit(node)
                self.aliases = before
                return
            case ast.For(target=target) | ast.withitem(optional_vars=ast.expr() as target):
                self._assign(target)
        self.generic_visit(node)
        match node:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._assign(target, value)
            case ast.AnnAssign(target=target, value=value) | ast.NamedExpr(target=target, value=value):
                self._assign(target, value)


def chains(tree: ast.Module) -> list[str]:
    """The chains of four or more attributes from ``self``, one entry per occurrence."""
    visitor = _Chains()
    visitor.visit(tree)
    return visitor.found


def walk(trees: Mapping[str, ast.Module], messages: Iterable[str]) -> dict[str, list[str]]:
    """The existing types of the walk, and the modules that name them; see ``WALK``."""
    on_it = {path: tree for path, tree in trees.items() if path.startswith(WALKED) and not path.startswith(OUTSIDE)}
    named = {
        path: {one.name if isinstance(one, ast.ClassDef) else name_of(one) for one in ast.walk(tree)}
        for path, tree in on_it.items()
    }
    classes, sent = classes_of(on_it.values()), {f"pb.{name}" for name in messages}
    known = classes.keys() | (sent & {one for names in named.values() for one in names})
    types = [name for name in f"{WALK} {WALK_OF_ASKED if 'Asked' in classes else ''}".split() if name in known]
    wanted = {*types} - {"View"}
    return {"types": types, "files": [path for path, names in named.items() if wanted & names]}


def fit_to_batch(trees: Mapping[str, ast.Module]) -> dict[str, list[str]]:
    """The existing classes on the walk from ``fit`` to a batch, and the modules of the walk; see ``FIT``."""
    own = {path: tree for path, tree in trees.items() if path.startswith(("kungfu/keras/", "kungfu/training/"))}
    defined = {path: {one.name for one in tree.body if hasattr(one, "name")} for path, tree in own.items()}
    known = set[str]().union(*defined.values())
    files = [path for path, names in defined.items() if names & {*FIT.split(), *FIT_BY.split()}]
    return {"types": [name for name in FIT.split() if name in known], "files": files}


def measure(sources: Mapping[str, str]) -> dict[str, Any]:
    """All measurements of the sources; for tests and similar folders only the lines."""
    own = {path: text for path, text in sources.items() if path.startswith("kungfu") and not GENERATED.search(path)}
    trees = {path: ast.parse(text) for path, text in own.items() if path.endswith(".py")}
    protos = "".join(text for path, text in own.items() if path.endswith(".proto"))
    events = {name for name in classes_of(trees.values()) if name.endswith("Event") and name != "LoggedEvent"}
    used = {path: encodings_of(tree) for path, tree in trees.items()}
    matched = Counter(name for tree in trees.values() for name in told_apart(tree) & events)
    return {
        "lines": lines_by_row(sources),
        "matches": dict(matched.most_common()),
        "large_classes": large_classes(trees.values()),
        "chains": {path: found for path, tree in trees.items() if (found := chains(tree))},
        "encodings": {name: [path for path in used if name in used[path]] for name in ENCODINGS},
        "walk": walk(trees, re.findall(r"^message (\w+)", protos, re.MULTILINE)),
        "fit to a batch": fit_to_batch(trees),
    }


def read_sources(at: str) -> dict[str, str]:
    """The text files of a commit, or of a checkout including uncommitted changes, by path; without pictures."""
    folder = Path(at) if Path(at).is_dir() else Path(__file__).parent.parent
    command = ["ls-files", "-co", "--exclude-standard"] if Path(at).is_dir() else ["archive", at]
    said = subprocess.run(["git", *command], cwd=folder, capture_output=True, check=False)
    if said.returncode:
        raise SystemExit(f"--at {at!r} is neither a commit nor a checkout of this repository: {said.stderr.decode()}")
    if Path(at).is_dir():
        found = [Path(at, path) for path in sorted(said.stdout.decode().splitlines())]
        contents = {str(path.relative_to(at)): path.read_bytes() for path in found if path.is_file()}
    else:
        with tarfile.open(fileobj=io.BytesIO(said.stdout)) as archive:
            files = ((one.name, archive.extractfile(one)) for one in archive if one.isfile())
            contents = {name: file.read() for name, file in files if file}
    return {path: content.decode() for path, content in contents.items() if b"\0" not in content}


def show(counted: Mapping[str, Any]) -> None:
    """Prints the measurements as tables, and only the first ten rows of long tables."""
    rows = [(row, *(lines[kind] for kind in (*KINDS, "files"))) for row, lines in counted["lines"].items()]
    _table(("package", *KINDS, "files"), rows)
    for name, found in counted.items():
        if name in ("matches", "large_classes", "chains", "encodings"):
            counts = Counter({one: len(of) if isinstance(of, list) else of for one, of in found.items()})
            total = len(counts) if name == "large_classes" else counts.total()
            _table((f"{name}: {total}", ""), counts.most_common(10))
    for of in ("walk", "fit to a batch"):
        for name, found in counted[of].items():
            _table((f"{name} of the {of}: {len(found)}",), [(one,) for one in found])


def _table(headers: Sequence[str], rows: Iterable[Sequence[str | int]]) -> None:
    table = Table(headers[0], *(Column(one, justify="right") for one in headers[1:]), show_edge=False)
    for row in rows:
        table.add_row(*(f"{one:,}" if isinstance(one, int) else one for one in row))
    Console().print(table, "")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Counts lines, classes, events, encodings and the walk of a request.")
    parser.add_argument("--at", default=".", metavar="COMMIT|FOLDER", help="without it the checkout in this folder")
    named = parser.parse_args().at
    result = measure(read_sources(named))
    show(result)
    print(json.dumps({"at": named, **result}))
