"""A rule: when it may look, when it fires, what it asks for, and which values it saw."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from kungfu.errors import PolicyError
from kungfu.ops import clip, is_finite, round
from kungfu.signal import Fold, Signal, Source, as_signal

__all__ = ["Action", "Call", "Keep", "Rescale", "Rule", "call_rule", "rescale_rule", "seen_under"]

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
    """Call a Python function with the values of these signals; they are the first entries of the rule's `saw`."""

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
    for position, value in enumerate(values, start=1):
        name = label_of(value) or f"argument_{position}"
        saw[f"{name}_{position}" if name in saw else name] = value
    name = getattr(fn, "__name__", type(fn).__name__)
    return Rule(name, gate, when, gate & when & ~Source("pending"), Call(fn, values), saw)


def seen_under(signal: Signal) -> dict[str, Signal]:
    """What a log should show beside a value: the named signals it is made of, and the sources not under one of them."""
    seen: dict[str, Signal] = {}
    visited: set[Signal] = set()
    stack = [(signal, False)]
    while stack:
        node, inside = stack.pop()
        if node in visited:
            continue
        visited.add(node)
        if label_of(node) and node.placement == "agreed" and not (inside and isinstance(node, Source)):
            seen.setdefault(label_of(node), node)
        below = node.observed if isinstance(node, Fold) else node.inputs
        stack.extend((one, inside or bool(node.name)) for one in reversed(below))
    return seen


def label_of(signal: Signal) -> str:
    """The name that the user gave, else the name of the source, else nothing."""
    return signal.name or (signal.source if isinstance(signal, Source) else "")
