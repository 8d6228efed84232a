"""Where in the user's program a signal was made, for messages that point there."""

from __future__ import annotations

import ast
import linecache
import os
import sys
from functools import lru_cache
from types import FrameType

__all__ = ["origin_of_caller", "variable_at"]

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_RULES = {"call", "checkpoint", "evict", "replace", "rescale", "set_global_batch_size", "set_learning_rate", "stop"}
_POLICIES = os.path.join(_PACKAGE, "policies") + os.sep  # prebuilt policies are written like a user's


def origin_of_caller() -> str:
    """``file:line`` of the innermost frame outside this package, or an empty string where there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        # "<string>" is the code that dataclasses write for themselves.
        if path != "<string>" and (not path.startswith(_PACKAGE) or path.startswith(_POLICIES)):
            return f"{path}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def variable_at(origin: str) -> str:
    """The variable that the user's statement at ``file:line`` assigns its value to; empty where it is none.

    Empty too where the statement makes a rule, not a signal, and where the source cannot be read, as in a shell.
    """
    path, _, line = origin.rpartition(":")
    return _assignments("".join(linecache.getlines(path))).get(int(line), "") if path else ""


@lru_cache(maxsize=16)
def _assignments(source: str) -> dict[int, str]:
    """By line, the variable that the innermost statement on it assigns to."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return {}
    found: dict[int, str] = {}
    for node in ast.walk(tree):  # outer statements first
        if isinstance(node, ast.stmt) and node.end_lineno is not None:
            for line in range(node.lineno, node.end_lineno + 1):
                found[line] = _assigned(node)
    return found


def _assigned(node: ast.stmt) -> str:
    if (
        not isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign))
        or node.value is None
        or _makes_rule(node.value)
    ):
        return ""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else ""


def _makes_rule(value: ast.expr) -> bool:
    return any(isinstance(node, ast.Attribute) and node.attr in _RULES for node in ast.walk(value))
