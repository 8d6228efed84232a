"""The places in the user's program at which signals were made, for messages."""

from __future__ import annotations

import ast
import linecache
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from types import CodeType, FrameType, TracebackType

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_RULES = {"call", "checkpoint", "evict", "replace", "rescale", "set_global_batch_size", "set_learning_rate", "stop"}
_GIVEN: ContextVar[str | None] = ContextVar("attributed_to", default=None)
_STANDARD = os.path.dirname(os.__file__) + os.sep
_INSTALLED = f"{os.sep}site-packages{os.sep}"
_POLICIES = os.path.join(_PACKAGE, "policies") + os.sep  # prebuilt policies are written like a user's


def location_of_caller() -> str:
    """``file:line`` of the innermost frame outside this package, or within `attributed_to` its line; empty if none."""
    if (given := _GIVEN.get()) is not None:
        return given
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _is_users(frame.f_code):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


@contextmanager
def attributed_to(origin: str) -> Iterator[None]:
    """Nodes that are made in here belong to this line of the user's: a compiler adds to rules after the policy ran."""
    token = _GIVEN.set(origin)
    try:
        yield
    finally:
        _GIVEN.reset(token)


def location_in_traceback(traceback: TracebackType | None) -> str:
    """``file:line`` of the innermost frame of the user's that an error went through; empty if there is none. A library
    that a policy calls, and a prebuilt policy, are not the place to mend."""
    found = ""
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if _is_users(code) and not _is_librarys(code) and not is_prebuilt(code.co_filename):
            found = f"{code.co_filename}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return found


def location_in_frames(frames: Iterable[tuple[str, int]]) -> str:
    """``file:line`` of the innermost of these frames that is the user's, given outermost first; empty without one."""
    own = [
        f"{path}:{line}"
        for path, line in frames
        if not path.startswith((_PACKAGE, "<", _STANDARD)) and _INSTALLED not in path
    ]
    return own[-1] if own else ""


def location_of_function(function: object) -> str:
    """``file:line`` of a function's definition; empty if it has none."""
    code = getattr(function, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if isinstance(code, CodeType) and _is_users(code) else ""


def is_prebuilt(path: str) -> bool:
    """True if a file holds policies that come with this package."""
    return path.startswith(_POLICIES)


def _is_users(code: CodeType) -> bool:
    path = code.co_filename
    # "<string>" is the code that dataclasses write for themselves.
    return path != "<string>" and (not path.startswith(_PACKAGE) or is_prebuilt(path))


def _is_librarys(code: CodeType) -> bool:
    path = code.co_filename
    return path.startswith(("<frozen", _STANDARD)) or _INSTALLED in path


def variable_at(origin: str) -> str:
    """The variable that the user's statement at ``file:line`` assigns its value to; empty if it is none, if it makes a
    rule and no signal, or if the source cannot be read, as in a shell."""
    path, _, line = origin.rpartition(":")
    return _assignments("".join(linecache.getlines(path))).get(int(line), "") if path else ""


@lru_cache(maxsize=16)
def _assignments(source: str) -> dict[int, str]:
    """The variables assigned by the innermost statement on each line."""
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
