"""The check: what a policy must not do, found before any step runs, with what to write instead."""

from __future__ import annotations

from collections.abc import Sequence

from kungfu.control import Call, Rescale, Rule
from kungfu.errors import PolicyError
from kungfu.signal import NEST, Fold, Signal, Source, is_gate, topological
from kungfu.signal.operation import SCALAR, SignalType
from kungfu.signal.sources import GATE_SOURCES, SOURCES

__all__ = ["check"]


def check(built: Sequence[tuple[str, tuple[Rule, ...]]]) -> None:
    """Raises `PolicyError` for the first thing that is wrong with these policies, given as name and rules."""
    for name, rules in built:
        for rule in rules:
            _check_rule(rule, policy=name)
    _check_conflicts(built)


def _check_rule(rule: Rule, *, policy: str) -> None:
    _check_gate(rule.gate, of=f"the trigger of policy {policy!r}")
    _check_agreed(rule.when, use=f"the .when(...) of policy {policy!r}", type=SignalType("bool"))
    if isinstance(rule.action, Rescale):
        _check_agreed(rule.action.target, use=f"the size that policy {policy!r} asks for", type=SignalType("float32"))
    if isinstance(rule.action, Call):
        for position, signal in enumerate(rule.action.signals, start=1):
            _check_agreed(signal, use=f"argument {position} of the call in policy {policy!r}", type=None)
    _check_agreed(rule.fires, use=f"the decision of policy {policy!r}", type=SignalType("bool"))
    for node in topological((rule.fires, *rule.saw.values())):
        if isinstance(node, Fold):
            _check_gate(node.gate, of=f"{node!r} in policy {policy!r}")


def _check_gate(gate: Signal, *, of: str) -> None:
    if not is_gate(gate):
        raise PolicyError(
            f"{of} runs where {gate!r} holds, but a gate decides whether peers take part in a message, so it must be a "
            f"function, in whole numbers, of {', '.join(sorted(GATE_SOURCES))} and constants; use control.every(n), "
            "and put the condition into .when(condition)"
        )


def _check_agreed(signal: Signal, *, use: str, type: SignalType | None) -> None:
    if signal.placement == "local":
        raise PolicyError(
            f"{use} is made of {_local_names(signal)}: each peer has its own value, so peers would decide differently; "
            f"{_remedy(signal)}"
        )
    if signal.type.shape != SCALAR:
        raise PolicyError(f"{use} is {signal!r}, not one number; reduce it, as in ops.mean(x) or ops.norm_squared(x)")
    if type and signal.type != type:
        raise PolicyError(f"{use} is {signal!r}; it must be {type}")


def _local_part(signal: Signal) -> list[Signal]:
    """What makes this signal local, from itself down: everything local that no collective stands above."""
    found: dict[Signal, None] = {}
    stack = [signal]
    while stack:
        node = stack.pop()
        if node not in found and node.placement == "local":
            found[node] = None
            stack.extend(reversed(node.inputs))
    return list(found)


def _local_names(signal: Signal) -> str:
    leaves = [one for one in _local_part(signal) if isinstance(one, Source)]
    return "the local " + " and ".join(f"signal {one.source!r} ({one.origin})" for one in leaves)


def _remedy(signal: Signal) -> str:
    """The collective to insert, around what the user gave a name to, else around the source."""
    part = _local_part(signal)
    leaf = next(one for one in part if isinstance(one, Source))
    twin = SOURCES[leaf.source].agreed_twin
    if leaf.type.shape == NEST:
        return f"use training.{twin}, or reduce ops.norm_squared(training.{leaf.source}) with ops.all_reduce"
    label = next((one.name for one in part if one.name), f"training.{leaf.source}")
    return f'write ops.all_reduce({label}, "mean")' + (f", or use training.{twin}" if twin else "")


def _check_conflicts(built: Sequence[tuple[str, tuple[Rule, ...]]]) -> None:
    rescaling = [name for name, rules in built for rule in rules if isinstance(rule.action, Rescale)]
    if len(rescaling) > 1:
        names = ", ".join(repr(name) for name in rescaling)
        raise PolicyError(
            f"policies {names} all rescale the cluster and nothing says which one wins; write "
            f"kf.at_most({', '.join(rescaling)}) for the smallest wish, or kf.first(...) for the first one that has any"
        )
