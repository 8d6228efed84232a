"""Loading of a policy from a command line's ``PATH.py:NAME(ARGS)`` or ``MODULE:NAME(ARGS)``."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import operator
import os
import shlex
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import ModuleType
from typing import Any

from kungfu.errors import KungfuError, PolicyError
from kungfu.policy_definition import Policy

_PREBUILT = "kungfu.policies"
_FORM = "write PATH.py:NAME(ARGS) or MODULE:NAME(ARGS), e.g. 'kungfu.policies:gns_batch(max_peers=8)'"


def load_policy(spec: str) -> Policy:
    """The policy that `spec` names.

    Args:
        spec: Before the last colon outside brackets, a module's name or a path that ends in ``.py``; after the colon,
            the name of a policy in that module, or of a function that makes a policy, with literal arguments in
            brackets. A call without a colon names a prebuilt policy.

    Raises:
        PolicyError: A part of `spec` does not resolve; the message names that part.

    >>> load_policy("kungfu.policies:schedule({100: 4})").name, load_policy("schedule({100: 4})").name
    ('schedule', 'schedule')
    """
    where, name, arguments = _parsed(spec)
    module = _module(where, spec=spec)
    try:
        named = operator.attrgetter(name)(module)
    except AttributeError as error:
        found = ", ".join(sorted(one for one in vars(module) if not one.startswith("_"))) or "nothing"
        raise PolicyError(f"{spec!r}: {where} has no {name!r}; it has {found}") from error
    policy = _made(named, arguments=arguments, spec=spec)
    return replace(policy, origin=spec) if where.startswith(_PREBUILT) else policy


def load_policies_of_job(specs: Iterable[str]) -> list[Policy]:
    """The policies named by ``kungfu-run --policy``; errors name this option as their origin.

    Args:
        specs: As for `load_policy`.

    Raises:
        PolicyError: A part of a spec does not resolve.
    """
    return [replace(load_policy(one), origin=f"kungfu-run --policy {shlex.quote(one)}") for one in specs]


def _parsed(spec: str) -> tuple[str, str, ast.Call | None]:
    """Splits `spec`: module or path, name of the policy or function, and the call (``None`` without arguments)."""
    # The last colon before the arguments: arguments may contain dictionaries, and a path may contain a drive letter.
    where, colon, expression = spec.partition("(")[0].rpartition(":")
    expression += spec[len(where) + len(colon) + len(expression) :]
    if not colon and "(" in expression:
        # A call without a module names a prebuilt policy.
        where = _PREBUILT
    if not where or not expression:
        raise PolicyError(f"{spec!r} names no policy; {_FORM}")
    try:
        tree = ast.parse(expression.strip(), mode="eval").body
    except SyntaxError as error:
        raise PolicyError(f"{spec!r}: {expression!r} is no Python expression ({error.msg}); {_FORM}") from error
    # A policy, or a function without arguments, or a call; a function's attribute is another way to make its policy.
    call = tree if isinstance(tree, ast.Call) else None
    named = tree if call is None else call.func
    if isinstance(named.value if isinstance(named, ast.Attribute) else named, ast.Name):
        return where, ast.unparse(named), call
    raise PolicyError(f"{spec!r}: {expression!r} is neither a name nor one call of a name; {_FORM}")


def _module(where: str, *, spec: str) -> ModuleType:
    try:
        return _from_file(where) if where.endswith(".py") else importlib.import_module(where)
    except KungfuError:
        raise
    except Exception as error:
        what = "no such file" if isinstance(error, FileNotFoundError) else f"{type(error).__name__}: {error}"
        # The current folder is not on the module search path.
        is_here = isinstance(error, ModuleNotFoundError) and os.path.exists(f"{where}.py")
        form = f"for the file {where}.py write {where}.py:NAME(ARGS)" if is_here else _FORM
        raise PolicyError(f"{spec!r}: cannot load {where} ({what}); {form}") from error


def _from_file(path: str) -> ModuleType:
    if not os.path.exists(path):
        raise FileNotFoundError(path)
    name = "kungfu_policy_" + os.path.splitext(os.path.basename(path))[0]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses in the file look up their module there
    spec.loader.exec_module(module)
    return module


def _made(found: Any, *, arguments: ast.Call | None, spec: str) -> Policy:
    """Returns `found` if it is a policy; else calls the function `found`, and returns the policy that it makes."""
    policy = found
    if arguments is not None or not isinstance(found, Policy):
        if not callable(found):
            raise PolicyError(f"{spec!r} is {found!r}, and neither a policy nor a function that makes one")
        policy = _called(found, arguments=arguments, spec=spec)
    if not isinstance(policy, Policy):
        raise PolicyError(f"{spec!r} gives {policy!r}, not a policy; decorate its function with @kf.policy")
    return policy


def _called(function: Callable[..., Any], *, arguments: ast.Call | None, spec: str) -> Any:
    values = [_literal(one, spec=spec) for one in arguments.args] if arguments else []
    settings = {str(one.arg): _literal(one.value, spec=spec) for one in arguments.keywords} if arguments else {}
    try:
        return function(*values, **settings)
    except TypeError as error:
        raise PolicyError(f"{spec!r} cannot be called so: {error}") from error


def _literal(node: ast.expr, *, spec: str) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        text = ast.unparse(node)
        raise PolicyError(
            f"{spec!r}: the argument {text} is not a literal; make that policy in a file and name it"
        ) from error
