"""The page of all error messages in the sources, by part of kungfu."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

__all__ = ["page", "templates"]

# A module's messages are in the section of its path's longest prefix here.
SITUATIONS = {
    "Starting a job": (
        "cli/run", "cli/doctor", "native", "runtime/agent", "runtime/settings", "training/attach",
        "training/job_connection",
    ),
    "Policies": (
        "compiler", "control", "monitor", "ops", "policies", "policy_definition", "signal", "worth",
    ),
    "Keras' fit": ("keras",),
    "Loops of your own": ("training",),
    "Samples in files": ("data",),
    "Hosts, ports and secrets": ("cli/hosting", "runtime/hosts", "runtime/attachment", "runtime/ipc"),
    "Among peers": ("runtime",),
    "Checkpoints and resume": ("runtime/checkpoints", "training/checkpoint"),
    "Commands and records": ("cli", "event_log", "page", "runtime/core/requests", "runtime/job_api"),
    "Models of clusters, schedulers and searches": ("kungfu_planning", "testing"),
}  # fmt: skip
PACKAGES = ("kungfu", "kungfu_planning")
ERRORS = {"DeadlineExceeded", "JobOver", "PeerFailure", "PolicyError", "UsageError"}
FIXED = 20  # the least number of constant letters in a listed message
HEAD = """# All messages

This page lists the error messages of kungfu, generated from the sources when this site is built; `…` stands for names
and numbers. `UsageError` is about the program or the command line, `PolicyError` about a policy, before the first
step; `PeerFailure` and `DeadlineExceeded` are about other peers. [Troubleshooting](troubleshooting.md) explains the
most frequent ones.
"""


def page(repository: Path) -> str:
    """The page in Markdown, from the sources of a repository."""
    found: dict[str, set[tuple[str, str]]] = {title: set() for title in SITUATIONS}
    for path, tree in _modules(repository):
        found[_situation(path)] |= {(text, error) for error, text in _raised(tree) if _is_told(text)}
    parts = [HEAD]
    for title, messages in found.items():
        lines = [f"- {_code(text)} ({error})" for text, error in sorted(messages, key=lambda one: one[0].lower())]
        parts.append(f"## {title}\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def templates(repository: Path) -> set[str]:
    """All texts in the sources, with ``…`` in place of values."""
    texts = (_template(node) for _, tree in _modules(repository) for node in ast.walk(tree))
    return {text for text in texts if text is not None}


def _modules(repository: Path) -> Iterator[tuple[str, ast.Module]]:
    """Each module's path, relative to ``kungfu`` if inside, with its syntax tree."""
    folders = [*(repository / package for package in PACKAGES), repository / "kungfu" / "policies"]  # a link
    for path in (path for folder in folders for path in sorted(folder.rglob("*.py"))):
        name = str(path.relative_to(repository).with_suffix("")).removeprefix("kungfu/")
        yield name, ast.parse(path.read_text())


def _situation(path: str) -> str:
    fitting = [(len(one), title) for title, prefixes in SITUATIONS.items() for one in prefixes if path.startswith(one)]
    return max(fitting, default=(0, "Among peers"))[1]


def _raised(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The class name and the message of each error that a module creates."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ERRORS and node.args:
            text = _template(node.args[0])
            if text is not None:
                yield node.func.id, text


def _template(node: ast.AST) -> str | None:
    """The text of a string literal, with ``…`` in place of values.

    >>> _template(ast.parse("f'{name} takes at most {n} ' 'peers'", mode="eval").body)
    '… takes at most … peers'
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    return None


def _is_told(text: str) -> bool:
    return len(text.replace("…", "").strip()) >= FIXED


def _code(text: str) -> str:
    words = " ".join(text.split())
    return f"`` {words} ``" if "`" in words else f"`{words}`"
