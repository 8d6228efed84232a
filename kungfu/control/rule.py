"""A rule: when it may look, when it fires, what it asks for, and which values it saw."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from kungfu.errors import PolicyError
from kungfu.ops import clip, is_finite, round
from kungfu.signal import Fold, Signal, Source, as_signal

__all__ = [
    "Action",
    "Call",
    "Keep",
    "Rescale",
    "Rule",
    "call_rule",
    "distinct_name",
    "label_of",
    "rescale_rule",
    "seen_under",
]

Keep = Literal["local_batch_size", "global_batch_size"]


@dataclass(frozen=True, eq=False)
class Rescale:
    """Ask for a cluster of `target` peers (float32, agreed, whole, within the job's limits, NaN: nothing).

    `keep` says which batch size stays: the share of each peer, or the whole of a step.
    """

    target: Signal
    keep: Keep


@dataclass(frozen=True, eq=False)
class Call:
    """Call a Python function with the values of these signals: they are what the rule saw, in this order."""

    fn: Callable[..., Any]
    signals: tuple[Signal, ...]


Action = Rescale | Call


@dataclass(frozen=True, eq=False)
class Rule:
    """Trigger and action. In the steps of `gate`, the rule `fires` where its `when` holds and nothing is pending."""

    name: str
    gate: Signal
    when: Signal
    fires: Signal
    action: Action
    saw: Mapping[str, Signal]


def rescale_rule(peers: object, *, gate: Signal, when: Signal, keep: Keep, name: str = "rescale") -> Rule:
    """The rule that asks for `peers` peers, rounded and held within the job's limits.

    It does not fire while a change is pending, for a target that is not finite, for the size that is, or for the size
    that was refused last: all of this is ordinary dataflow, so that every interpreter of the plan decides alike.
    """
    if keep not in get_args(Keep):
        raise PolicyError(f"rescale(keep={keep!r}): one batch size must stay; write one of {', '.join(get_args(Keep))}")
    wanted = as_signal(peers)
    size, refused = Source("size"), Source("refused_size")
    target = clip(round(wanted), Source("min_size"), Source("max_size"))
    news = is_finite(wanted) & (target != size) & (target != refused)
    fires = gate & when & ~Source("pending") & news
    saw = {**seen_under(wanted), "size": size, "target": target}
    return Rule(name, gate, when, fires, Rescale(target, keep), saw)


def call_rule(fn: Callable[..., Any], signals: tuple[object, ...], *, gate: Signal, when: Signal) -> Rule:
    """The rule that calls a Python function with the values of the signals."""
    if not callable(fn):
        raise PolicyError(f"call({fn!r}): the first argument must be a function of the signals that follow it")
    values = tuple(as_signal(one) for one in signals)
    saw: dict[str, Signal] = {}
    for value, parameter in zip(values, _parameters(fn, count=len(values)), strict=True):
        saw[distinct_name(label_of(value) or parameter, taken=saw)] = value
    name = getattr(fn, "__name__", type(fn).__name__)
    return Rule(name, gate, when, gate & when & ~Source("pending"), Call(fn, values), saw)


def _parameters(fn: Callable[..., Any], *, count: int) -> list[str]:
    """What the function itself calls its arguments after `control`; numbers where it takes any."""
    numbered = [f"argument_{position}" for position in range(1, count + 1)]
    try:
        signature = inspect.signature(fn)
    except (ValueError, TypeError):  # a function written in C may not tell
        return numbered
    try:
        named = list(signature.bind(None, *numbered).arguments.items())[1:]
    except TypeError as error:
        raise PolicyError(
            f"call: {fn!r} takes {signature}, and it would be called as fn({', '.join(['control', *numbered])}): "
            "its first argument is the control over the cluster, the others are the values of the signals"
        ) from error
    by_number = {given: name for name, given in named if isinstance(given, str)}
    return [by_number.get(number, number) for number in numbered]


def seen_under(signal: Signal) -> dict[str, Signal]:
    """What a log should show beside a value: the named signals it is made of, and the sources not under one of them."""
    seen: dict[str, Signal] = {}
    visited: set[tuple[Signal, bool]] = set()
    stack = [(signal, False)]
    while stack:
        node, inside = stack.pop()
        if (node, inside) in visited:
            continue
        visited.add((node, inside))
        if label_of(node) and node.placement == "agreed" and not (inside and isinstance(node, Source)):
            seen.setdefault(label_of(node), node)
        below = node.observed if isinstance(node, Fold) else node.inputs
        stack.extend((one, inside or bool(node.name)) for one in reversed(below))
    return seen


def label_of(signal: Signal) -> str:
    """The name that the user gave, else the name of the source, else nothing."""
    return signal.name or (signal.source if isinstance(signal, Source) else "")


def distinct_name(name: str, *, taken: Container[str]) -> str:
    """This name, or with the first number from 2 on under which it is not taken."""
    count, free = 1, name
    while free in taken:
        count += 1
        free = f"{name}_{count}"
    return free
