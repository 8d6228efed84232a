"""Policies: pure functions from the signals of a step to rules."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from kungfu.control import Rule
from kungfu.errors import PolicyError
from kungfu.signal import TrainingSignals

__all__ = ["Policy", "Rules", "policy"]

Rules = Rule | tuple[Rule, ...]


@dataclass(frozen=True)
class Policy:
    """A named, pure function from the signals of a step to rules."""

    name: str
    body: Callable[[TrainingSignals], Rules]

    def build(self, training: TrainingSignals) -> tuple[Rule, ...]:
        """The rules of this policy, each under the policy's name."""
        given = self.body(training)
        rules = given if isinstance(given, tuple) else (given,)
        for rule in rules:
            if not isinstance(rule, Rule):
                raise PolicyError(
                    f"policy {self.name!r} gave {rule!r}; it must return a rule or a tuple of rules, "
                    "as in `return control.every(50).rescale(peers)`"
                )
        return rules


def policy(function: Callable[..., Rules]) -> Callable[..., Policy]:
    """Makes a policy out of a function of `training`: calling it with its other arguments gives a `Policy`.

    The arguments are checked at once, the function runs at `attach`.

    >>> from kungfu import control
    >>> @policy
    ... def two_peers(training, *, every):
    ...     return control.every(every).rescale(2)
    >>> two_peers(every=10).name
    'two_peers'
    """
    signature = inspect.signature(function)
    name = function.__name__
    if "training" not in list(signature.parameters)[:1]:
        raise PolicyError(f"@policy {name}{signature}: the first parameter must be `training`, the signals of a step")

    @functools.wraps(function)
    def configured(*args: Any, **kwargs: Any) -> Policy:
        try:
            signature.bind(None, *args, **kwargs)
        except TypeError as error:
            shown = ", ".join(str(one) for one in list(signature.parameters.values())[1:])
            raise PolicyError(f"{name}: {error}; it takes ({shown})") from error

        def body(training: TrainingSignals) -> Rules:
            given = function(training, *args, **kwargs)
            rules = given if isinstance(given, tuple) else (given,)
            return tuple(replace(one, name=name) if isinstance(one, Rule) else one for one in rules)

        return Policy(name, body)

    return configured
