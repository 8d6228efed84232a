"""Policies: pure functions from the signals of a step to rules."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, overload

from kungfu.control import Budget, Call, Rule
from kungfu.errors import KungfuError, PolicyError
from kungfu.signal import TrainingSignals
from kungfu.signal.source_location import is_prebuilt, location_in_traceback, location_of_caller, location_of_function

RuleOrRules = Rule | tuple[Rule, ...]


@dataclass(frozen=True)
class Policy:
    """A named, pure function from the signals of a step to rules.

    Attributes:
        name: The name of the policy, used in errors and events.
        body: The function, called at `attach`.
        origin: The user's ``file:line`` that defines the policy; for a prebuilt policy, the line that calls it.
        budget: The limit on how often the policy may change the cluster, if the job has no budget.
        about: The first paragraph of the docstring of its function; empty without one.
        settings: The arguments of its function, with their defaults, by name.
    """

    name: str
    body: Callable[[TrainingSignals], RuleOrRules]
    origin: str = ""
    budget: Budget | None = None
    about: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def build(self, training: TrainingSignals) -> tuple[Rule, ...]:
        """The rules of this policy, each under the policy's name.

        Args:
            training: The signals of the job.

        Raises:
            PolicyError: The policy's function raised an error; the message names the policy and the user's line.
        """
        try:
            given = self.body(training)
        except PolicyError as error:
            if error.policy:  # of a policy inside this one
                raise
            raise self._located(str(error), error) from error
        except KungfuError:
            raise
        # Python's built-in errors too: the user has to fix a line of the policy.
        except Exception as error:
            what = f"{type(error).__name__}: {error}; a policy computes with signals, Python numbers and kf.ops"
            raise self._located(what, error) from error
        rules = given if isinstance(given, tuple) else (given,)
        for rule in rules:
            if not isinstance(rule, Rule):
                raise PolicyError(
                    f"policy {self.name!r} gave {rule!r}; it must return a rule or a tuple of rules, "
                    f"as in `return kf.control.every(50).rescale(peers)`{in_brackets(self.location)}",
                    policy=self.name,
                    origin=self.location,
                )
        rules = tuple(self._with_located_hook(rule) for rule in rules)
        rules = tuple(rule if rule.policy else replace(rule, policy=self) for rule in rules)
        if self.budget is None:
            return rules
        return tuple(replace(rule, budgets={self.name: self.budget}) for rule in rules)

    @property
    def location(self) -> str:
        """The file and line of the policy, if known."""
        return self.origin or location_of_function(self.body)

    def _with_located_hook(self, rule: Rule) -> Rule:
        """The rule, changed so that errors in a prebuilt hook name the line of the policy; other rules unchanged."""
        action = rule.action
        if not isinstance(action, Call) or not is_prebuilt(rule.origin):
            return rule

        @functools.wraps(action.fn)
        def hook(*given: Any) -> None:
            try:
                action.fn(*given)
            except PolicyError as error:
                if error.policy:  # of a policy inside this one
                    raise
                raise self._located(str(error), error) from error

        return replace(rule, action=Call(hook, action.signals))

    def _located(self, what: str, error: Exception) -> PolicyError:
        origin = location_in_traceback(error.__traceback__) or self.location
        return PolicyError(f"policy {self.name!r}{in_brackets(origin)}: {what}", policy=self.name, origin=origin)


def checked_policies(policies: Iterable[Policy]) -> tuple[Policy, ...]:
    """The policies that a user has listed, as a tuple.

    Args:
        policies: An iterable of policies, in an order that is the same on every peer: not a set.

    Raises:
        PolicyError: `policies` is no such iterable, or an entry is not a policy; the message contains the user's line.

    >>> checked_policies([]), checked_policies(one for one in [])
    ((), ())
    """
    if isinstance(policies, Policy):
        raise _no_policies(
            f"the policy {policies.name!r}", f"put it into a list, as in policies=[{policies.name}(...)]"
        )
    # The order of a set differs from peer to peer.
    if isinstance(policies, (str, Rule, Mapping, Set)) or not isinstance(policies, Iterable):
        raise _no_policy(policies)
    listed = tuple(policies)
    for one in listed:
        if not isinstance(one, Policy):
            raise _no_policy(one)
    return listed


def _no_policy(given: object) -> PolicyError:
    """The error for an object that is not a policy, with the line to write instead."""
    if isinstance(given, str):
        way_out = "a policy is made by a call, as in policies=[kf.policies.gns_batch(max_peers=8)]"
        return _no_policies(f"the text {given!r}", f"{way_out}; texts name policies for kungfu-run --policy only")
    if isinstance(given, Rule):
        way_out = "a policy returns it, so decorate the function that does with @kf.policy, and call that"
        return _no_policies(f"the rule {given.name!r} ({given.origin})", way_out)
    if not callable(given) or isinstance(given, type):
        return _no_policies(repr(given), "a list of policies is needed, as in policies=[gns_batch(max_peers=8)]")
    name = getattr(given, "__name__", type(given).__name__)
    if getattr(given, "makes_policy", False):
        needed = [one for one in _settings_of(given) if one.default is one.empty and one.kind not in _ANY_NUMBER]
        call = f"{name}({', '.join(f'{one.name}=...' for one in needed)})"
        return _no_policies(f"the function {name!r}, which makes a policy,", f"call it, as in policies=[{call}]")
    return _no_policies(
        f"the function {name!r}", f"decorate it with @kf.policy, and call it, as in policies=[{name}()]"
    )


def _no_policies(what: str, way_out: str) -> PolicyError:
    origin = location_of_caller()
    return PolicyError(f"policies must be a list, and {what} was given{in_brackets(origin)}: {way_out}", origin=origin)


def in_brackets(origin: str) -> str:
    """The text `` (file:line)`` for errors; empty if `origin` is empty."""
    return f" ({origin})" if origin else ""


_Function = Callable[..., RuleOrRules]


@overload
def policy(function: _Function) -> Callable[..., Policy]: ...


@overload
def policy(*, budget: Budget | None = None) -> Callable[[_Function], Callable[..., Policy]]: ...


def policy(function: _Function | None = None, *, budget: Budget | None = None) -> Any:
    """Turns a function of a job's signals into a factory, which takes the other arguments and returns a `Policy`.

    The arguments are checked at once; the function runs at `attach`.

    Args:
        function: Its first parameter, usually called `training`, receives the signals of a step; it returns a rule or
            a tuple of rules.
        budget: The limit on how often the policy may change the cluster if the job has no budget, as in
            ``@kf.policy(budget=kf.Budget(rescales=4, per_steps=1000))``; without it, there is no limit.

    Raises:
        PolicyError: The budget is not a `Budget`, or there is no parameter for the signals; later, if the arguments do
            not fit the function.

    >>> import kungfu as kf
    >>> @policy
    ... def two_peers(training, *, every):
    ...     return kf.control.every(every).rescale(2)
    >>> two_peers(every=10).name
    'two_peers'
    """
    if budget is not None and not isinstance(budget, Budget):
        raise PolicyError(f"@policy(budget={budget!r}): takes a kf.Budget, e.g. kf.Budget(rescales=4, per_steps=1000)")
    return functools.partial(_maker, budget=budget) if function is None else _maker(function, budget=budget)


def _maker(function: _Function, *, budget: Budget | None) -> Callable[..., Policy]:
    """The factory of a policy: takes the function's arguments except the first, the signals, and returns a policy."""
    signature = inspect.signature(function)
    name = function.__name__
    about = (inspect.getdoc(function) or "").partition("\n\n")[0].replace("\n", " ").replace("``", "`")
    first = next(iter(signature.parameters.values()), None)
    if first is None or first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
        raise PolicyError(
            f"@policy {name}{signature}: the first parameter receives the signals of a step, as in def {name}(training)"
        )

    @functools.wraps(function)
    def configured(*args: Any, **kwargs: Any) -> Policy:
        _check_arguments(function, args, kwargs)

        written = location_of_function(function)
        origin = location_of_caller() if is_prebuilt(written) else written

        def body(training: TrainingSignals) -> RuleOrRules:
            given = function(training, *args, **kwargs)
            rules = given if isinstance(given, tuple) else (given,)
            return tuple(replace(one, name=name) if isinstance(one, Rule) else one for one in rules)

        given = signature.bind(None, *args, **kwargs)
        given.apply_defaults()
        settings = {key: value for key, value in given.arguments.items() if key != first.name}
        return Policy(name, body, origin, budget, about=about, settings=settings)

    configured.makes_policy = True  # type: ignore[attr-defined]  # for the error if the factory is passed as a policy
    return configured


_ANY_NUMBER = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _settings_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a policy's function, except the first, which receives the signals."""
    return list(inspect.signature(function).parameters.values())[1:]


def _check_arguments(function: _Function, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raises `PolicyError` if a policy's function does not accept these arguments."""
    name, accepted = function.__name__, _settings_of(function)
    names, origin = [one.name for one in accepted if one.kind not in _ANY_NUMBER], location_of_caller()
    unknown = [one for one in kwargs if one not in names]
    shown = f"it takes ({', '.join(map(str, accepted))}){in_brackets(origin)}"
    # An unknown argument is reported before a missing one: usually it is the missing one, misspelt.
    if unknown and not any(one.kind is one.VAR_KEYWORD for one in accepted):
        close = get_close_matches(unknown[0], names, n=1, cutoff=0.7)
        meant = f"; {close[0]!r} may be meant" if close else ""
        if unknown[0] in list(inspect.signature(function).parameters)[:1]:
            meant = "; the first parameter receives the signals of a step, so put another before it"
        raise PolicyError(f"{name}: there is no argument {unknown[0]!r}{meant}; {shown}", policy=name, origin=origin)
    try:
        inspect.signature(function).bind(None, *args, **kwargs)
    except TypeError as error:
        raise PolicyError(f"{name}: {error}; {shown}", policy=name, origin=origin) from error
