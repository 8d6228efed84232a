"""Fits policies to a run that averages models: its rules are evaluated in synchronising steps, after which it averages.

The steps between two averages send no message, so nothing is evaluated in them. A condition on the number of the step,
``step % n == r`` or ``step == n``, may hold in such a step. It then holds in the next synchronising step: the condition
is true if it was true in any of the last `STEPS_SINCE_AVERAGE` steps, the running step included.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from kungfu.compiler.passes.simplify import with_shared_inputs
from kungfu.control import Rule, Synchronise
from kungfu.errors import PolicyError
from kungfu.signal import Constant, Map, Signal, SignalType, Source, topological
from kungfu.signal.source_location import is_prebuilt
from kungfu.signal.sources import SourceKind

STEPS_SINCE_AVERAGE = Source(
    "steps_since_average",
    origin="",
    declared=SourceKind(SignalType("int64"), "steps since the models were last averaged", "steps", given_by="average"),
)


def refuse_mean_gradients(built: Iterable[tuple[str, tuple[Rule, ...]]]) -> None:
    """Raises `PolicyError` for a policy that needs the mean of the peers' gradients, which is not computed."""
    for name, rules in built:
        for rule in rules:
            for node in topological(rule.roots):
                if isinstance(node, Source) and node.source == "mean_grads":
                    where = rule.policy.location if rule.policy else rule.origin
                    raise PolicyError(
                        f"{f'{where}: ' if where else ''}policy {name!r} uses training.mean_grads, but this run is "
                        "attached with sync=kf.control.average_models(...), in which every peer applies its own "
                        'gradients and no mean of them is computed: attach with sync="gradients", or leave the policy '
                        "out",
                        policy=name,
                        origin=where,
                    )


def refuse_intervals(built: Iterable[tuple[str, tuple[Rule, ...]]]) -> None:
    """Raises `PolicyError` for a policy with a rule for the interval of averages, since the run averages gradients."""
    for name, rules in built:
        for rule in rules:
            if isinstance(rule.action, Synchronise):
                where = rule.policy.location if rule.policy and is_prebuilt(rule.origin) else rule.origin
                raise PolicyError(
                    f"{f'{where}: ' if where else ''}policy {name!r} asks for an average of models every few steps "
                    '(.synchronise), but this run is attached with sync="gradients": attach with '
                    "sync=kf.control.average_models(every=1), which the policy then changes, or leave the policy out",
                    policy=name,
                    origin=where,
                )


def due_in_synchronising_steps(roots: Iterable[Signal]) -> Mapping[Signal, Signal]:
    """The node that replaces each node under the roots, with conditions on the step that no window passes over."""
    fitted: dict[Signal, Signal] = {}
    for node in topological(roots):
        fitted[node] = _fitted(with_shared_inputs(node, shared=fitted))
    return fitted


def _fitted(node: Signal) -> Signal:
    if not isinstance(node, Map) or node.operation.name != "equal":
        return node
    left, right = node.operands
    if isinstance(left, Constant):
        left, right = right, left
    if not isinstance(right, Constant):
        return node
    # ``step % n == r`` held i steps ago exactly if ``(step - r) % n == i``.
    if isinstance(left, Map) and left.operation.name == "modulo" and _is_step(left.operands[0]):
        since = (left.operands[0] - right.value) % left.operands[1]
        return replace(since < STEPS_SINCE_AVERAGE, origin=node.origin, name=node.name)
    # ``step == n`` held ``step - n`` steps ago.
    if _is_step(left):
        since = left - right.value
        return replace((since >= 0) & (since < STEPS_SINCE_AVERAGE), origin=node.origin, name=node.name)
    return node


def due_every(condition: Signal) -> int:
    """N, if a condition is that of ``every(N)`` as `due_in_synchronising_steps` fits it; else 0.

    >>> due_every(Source("step") % 50 < STEPS_SINCE_AVERAGE), due_every(Source("step") > 50)
    (50, 0)
    """
    match condition:
        case Map(operands=(Map(operands=(Source("step"), Constant(period))) as left, right)):
            is_fitted = (condition.operation.name, left.operation.name) == ("less", "modulo")
            return int(period) if is_fitted and _is_window(right) else 0
    return 0


def _is_window(node: Signal) -> bool:
    return isinstance(node, Source) and node.source == STEPS_SINCE_AVERAGE.source


def _is_step(node: Signal) -> bool:
    """True for the number of the step, and for a sum of it and a constant: these grow by 1 with each step."""
    if isinstance(node, Map) and node.operation.name in ("add", "subtract"):
        first, second = node.operands
        if node.operation.name == "add" and isinstance(first, Constant):
            first, second = second, first
        return isinstance(second, Constant) and node.type.dtype == "int64" and _is_step(first)
    return isinstance(node, Source) and node.source == "step"
