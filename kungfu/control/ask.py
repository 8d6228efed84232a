"""From an action to its rule: when there is news worth asking for, all of it ordinary dataflow.

So every interpreter of the plan decides alike, and a rule that would ask for what is already so does not fire.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from kungfu.control.action import (
    Call,
    Checkpoint,
    Evict,
    Keep,
    Replace,
    Rescale,
    SetGlobalBatchSize,
    SetLearningRate,
    Stop,
    Unit,
)
from kungfu.control.rule import Rule, distinct_name, label_of, seen_under
from kungfu.errors import PolicyError
from kungfu.ops import clip, is_finite, maximum, minimum, round, sum, where
from kungfu.signal import VECTOR, Constant, Signal, Source, as_signal, fold
from kungfu.signal.operation import SignalType

if TYPE_CHECKING:
    from kungfu.control.trigger import Trigger

__all__ = ["batch_rule", "call_rule", "checkpoint_rule", "mask_rule", "rate_rule", "rescale_rule", "stop_rule"]


def rescale_rule(peers: object, *, trigger: Trigger, keep: Keep, name: str = "rescale") -> Rule:
    """The rule that asks for `peers` peers, rounded and held within the job's limits.

    It does not fire while a change is pending, for a target that is not finite, for the size that is, or for the size
    that was refused last.
    """
    if keep not in get_args(Keep):
        raise PolicyError(f"rescale(keep={keep!r}): one batch size must stay; write one of {', '.join(get_args(Keep))}")
    wanted = as_signal(peers)
    size, refused = Source("size"), Source("refused_size")
    target = clip(round(wanted), Source("min_size"), Source("max_size"))
    news = is_finite(wanted) & (target != size) & (target != refused)
    saw = {**_seen(trigger, wanted), "size": size, "target": target}
    return Rule(name, trigger, _ready(trigger) & news, Rescale(target, keep), saw)


def batch_rule(samples: object, *, trigger: Trigger, name: str = "set_global_batch_size") -> Rule:
    """The rule that asks for steps of `samples` samples, rounded, at least one a peer; not for the number that is.

    Where an epoch has fewer samples, it asks for all of them: a step ends with its epoch.
    """
    wanted, most = as_signal(samples), Source("epoch_samples")
    target = maximum(where(most > 0, minimum(round(wanted), most), round(wanted)), Source("size"))
    now = Source("global_batch_size")
    fires = _ready(trigger) & is_finite(wanted) & (target != now)
    saw = {**_seen(trigger, wanted), "global_batch_size": now, "target": target}
    return Rule(name, trigger, fires, SetGlobalBatchSize(target), saw)


def rate_rule(rate: object, *, trigger: Trigger, over: float, unit: Unit, name: str = "set_learning_rate") -> Rule:
    """The rule that asks for a learning rate above 0; not for the rate that is, nor for the one it asked for last."""
    wanted = as_signal(rate) * 1.0
    now = Source("learning_rate")
    fires = _ready(trigger) & is_finite(wanted) & (wanted > 0) & (wanted != now)
    saw = {**_seen(trigger, wanted), "learning_rate": now, "target": wanted}
    return Rule(name, trigger, fires, SetLearningRate(wanted, over, unit), saw)


def stop_rule(*, trigger: Trigger) -> Rule:
    """The rule that ends the training."""
    return Rule("stop", trigger, _ready(trigger), Stop(), _seen(trigger, trigger.gate))


def checkpoint_rule(*, trigger: Trigger) -> Rule:
    """The rule that asks for a checkpoint; where a change is pending, as soon as it no longer is."""

    def update(state: tuple[Signal, ...], asked: Signal, pending: Signal) -> tuple[Signal, ...]:
        due = state[0] | asked
        return due & pending, due & ~pending

    asked = trigger.gate & trigger.predicate
    fires = fold(update, (False, False), asked, Source("pending"), output=lambda state: state[1])
    always = replace(trigger, gate=Constant(True))
    return Rule("checkpoint", always, fires, Checkpoint(), _seen(trigger, trigger.gate))


def mask_rule(mask: Signal, *, trigger: Trigger, kind: Literal["evict", "replace"]) -> Rule:
    """The rule that lets the marked peers go: for good (never below the job's fewest), or when another takes over.

    It fires only where at least one peer is marked and not all are.
    """
    if not isinstance(mask, Signal) or mask.type != SignalType("bool", VECTOR):
        raise PolicyError(
            f"{kind}({mask!r}): takes a truth value for each peer, as in {kind}(kf.ops.all_gather(speed) < 0.5)"
        )
    size, marked = Source("size"), sum(where(mask, 1.0, 0.0))
    fewest = Source("min_size") if kind == "evict" else Constant(1)
    fires = _ready(trigger) & (marked > 0) & (size - marked >= fewest)
    action = Evict(mask) if kind == "evict" else Replace(mask)
    return Rule(kind, trigger, fires, action, {**_seen(trigger, mask), "size": size, "marked": marked})


def call_rule(fn: Callable[..., Any], signals: tuple[object, ...], *, trigger: Trigger) -> Rule:
    """The rule that calls a Python function with the values of the signals."""
    if not callable(fn):
        raise PolicyError(f"call({fn!r}): the first argument must be a function of the signals that follow it")
    values = tuple(as_signal(one) for one in signals)
    saw: dict[str, Signal] = {}
    for value, parameter in zip(values, _parameters(fn, count=len(values)), strict=True):
        saw[distinct_name(label_of(value) or parameter, taken=saw)] = value
    saw = {**saw, **{label: one for label, one in _seen(trigger).items() if label not in saw}}
    name = getattr(fn, "__name__", type(fn).__name__)
    return Rule(name, trigger, _ready(trigger), Call(fn, values), saw)


def _ready(trigger: Trigger) -> Signal:
    """Where a trigger lets a rule act: a change under way has to end first."""
    if trigger.occasion == "rescale":
        return trigger.predicate
    return trigger.gate & trigger.predicate & ~Source("pending")


def _seen(trigger: Trigger, *signals: Signal) -> dict[str, Signal]:
    """What a log should show beside a decision: of what it asks for, and of the condition that held."""
    seen: dict[str, Signal] = {}
    for one in (*signals, trigger.predicate):
        seen |= {label: node for label, node in seen_under(one).items() if label not in seen}
    return seen


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
