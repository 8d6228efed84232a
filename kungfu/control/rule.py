"""Rules: a trigger, an action, and the condition under which the request differs from the present state.

The condition is ordinary dataflow, so all interpreters of the plan decide identically, and a rule that would request
the present state does not fire.
"""

from __future__ import annotations

import functools
import inspect
import math
import operator
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from kungfu.control import action as actions
from kungfu.control.budget import Budget
from kungfu.control.rate_limit import with_cooldown
from kungfu.errors import PolicyError
from kungfu.ops import clip, is_finite, maximum, minimum, round, sum, where
from kungfu.signal import VECTOR, Collective, Constant, Fold, Signal, Source, as_signal, fold
from kungfu.signal.fold.fold import labelled
from kungfu.signal.gate import period_of
from kungfu.signal.operation import SCALAR, SignalType
from kungfu.signal.source_location import attributed_to, location_of_caller
from kungfu.signal.whole_number import is_whole_number

if TYPE_CHECKING:
    from kungfu.control.trigger import Trigger

RuleMode = Literal["acting", "shadow", "held"]
JOB = "the job"  # in place of a policy's name, for the budget of the job

# The request of a rule, and the present value: shown with every decision.
_OUTCOME = ("size", "global_batch_size", "learning_rate", "marked", "target", "target_batch", "target_rate")
# Limits of a decision, as opposed to reasons for a decision.
_UNRECORDED = frozenset({"min_size", "max_size", "refused_size", "epoch_samples"})


@dataclass(frozen=True, eq=False)
class Rule:
    """A trigger and an action: the rule requests the action in the steps of its `gate` in which `fires` holds.

    In a plan, `fires` is the whole condition; in the rule of a policy, the trigger's cooldown applies in addition.

    Attributes:
        name: The name of the rule in the record and the log.
        trigger: When the rule may fire.
        fires: A bool signal, equal on all peers: the trigger's condition holds, and there is a new request to make.
        action: The request of the rule.
        inputs: The values that the record shows with a decision, by name.
        mode: "acting"; "shadow" for a rule that is evaluated and recorded but never carried out; "held" for a rule that
            records the steps in which a budget held another rule back.
        candidates: The keys of `inputs` for the targets of the merged rules; empty if none were merged.
        budget: The key of `inputs` for the number of changes that the budget still allows a hook, if there is a budget.
        replacement_budget: The key of `inputs` for the number of peers that the rule or a hook may replace, if budgets
            count replacements separately.
        budgets: The budgets that hold the rule back, by the name of their policy; `JOB` for the job's budget.
        origin: The user's ``file:line`` that made the rule.
        policy: The policy that made the rule, the innermost of several; ``None`` for a rule without a policy. A
            serialized plan omits this field.
        merged: The rules that this rule merges, as their policies made them; omitted from a serialized plan too.
    """

    name: str
    trigger: Trigger
    fires: Signal
    action: actions.Action
    inputs: Mapping[str, Signal]
    mode: RuleMode = "acting"
    candidates: tuple[str, ...] = ()
    budget: str = ""
    replacement_budget: str = ""
    budgets: Mapping[str, Budget] = field(default_factory=dict)
    origin: str = field(default_factory=location_of_caller)
    policy: Any = field(default=None, metadata={"in_plan": False})
    merged: tuple[Rule, ...] = field(default=(), metadata={"in_plan": False})

    @property
    def gate(self) -> Signal:
        """The steps in which the rule is evaluated: a function of step and size."""
        return self.trigger.gate

    @property
    def when(self) -> Signal:
        """The condition that must hold in the steps of the gate."""
        return self.trigger.predicate

    @property
    def posts(self) -> bool:
        """True if the rule requests a barrier when it fires."""
        return self.mode == "acting" and not isinstance(self.action, actions.ScaleLearningRate)

    @property
    def is_reported(self) -> bool:
        """True if a firing of the rule has no effect other than an event."""
        # The factors of a shadow may change in every step: they are in the metrics, like those of an acting rule.
        return self.mode == "held" or (self.mode == "shadow" and not isinstance(self.action, actions.ScaleLearningRate))

    @property
    def roots(self) -> tuple[Signal, ...]:
        """The signals that the rule refers to directly."""
        return (self.gate, self.when, self.fires, *actions.operands(self.action), *self.inputs.values())

    def showing(self, **values: Signal | float) -> Rule:
        """The same rule, but its decisions are recorded with these values instead of the inputs of the rule's target.

        Args:
            **values: Scalars that are equal on all peers, by the names that ``kungfu why`` shows.

        Raises:
            PolicyError: A value is not a scalar, or may differ between peers.

        Cost:
            One number in the step's record for each value.

        >>> import kungfu as kf
        >>> from kungfu.signal import TrainingSignals
        >>> size, loss = TrainingSignals().size, TrainingSignals().mean_loss
        >>> list(kf.control.every(50).rescale(size + kf.ops.where(loss < 1, 1, 0)).showing(loss_now=loss).inputs)
        ['loss_now', 'size', 'target']
        """
        shown = {name: as_signal(value) for name, value in values.items()}
        for name, one in shown.items():
            if one.placement != "agreed" or one.type.shape != SCALAR:
                raise PolicyError(
                    f"showing({name}=...): takes one number that all peers agree on, and this is {one!r}; reduce it, "
                    "as in kf.ops.all_reduce(x, 'mean') or kf.ops.mean(x)"
                )
        # The inputs of a call are its arguments.
        if isinstance(self.action, actions.Call):
            return replace(self, inputs={**self.inputs, **shown})
        return replace(self, inputs={**shown, **{name: self.inputs[name] for name in _OUTCOME if name in self.inputs}})


def rate_limited(rule: Rule) -> Rule:
    """The rule, with its cooldown moved from the trigger into the condition `fires`."""
    trigger, action = rule.trigger, rule.action
    if trigger.event == "rescale" or isinstance(action, actions.ScaleLearningRate):
        return rule
    numbers = tuple(actions.numbers_of(action).values())
    gate, pause, once = trigger.gate, trigger.pause, _could_fire_before_its_barrier(rule)
    # A shadow's request is never carried out, a rate changes slowly, and no signal is a variable or the steps from one
    # average to the next: the state does not show the request.
    with attributed_to(rule.origin):
        asked = (
            numbers
            if isinstance(action, (actions.SetLearningRate, actions.SetVariable, actions.Synchronise))
            or rule.mode == "shadow"
            else ()
        )
        fires = with_cooldown(rule.fires, gate=gate, cooldown=pause, once_per_barrier=once, targets=asked)
    return replace(rule, fires=fires)


def _could_fire_before_its_barrier(rule: Rule) -> bool:
    """True if the rule could fire again in the step between its request and the barrier, and make the same request
    twice. A rule for a size could not, since it does not fire in a step whose barrier may change the cluster."""
    return rule.mode == "acting" and period_of(rule.gate) < 2 and not isinstance(rule.action, actions.Rescale)


def verdict(rule: Rule, inputs: Mapping[str, float]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The candidates, by name, of a merged rule that requested the target (they won), and those that requested another
    number (they lost), by the values of the rule's inputs; a candidate without a request (NaN) is in neither group."""
    requests = {name: inputs[name] for name in rule.candidates if not math.isnan(inputs[name])}
    won = tuple(name for name, request in requests.items() if request == inputs["target"])
    return won, tuple(name for name in requests if name not in won)


def inputs_under(signal: Signal) -> dict[str, Signal]:
    """The values that explain a signal in the log: its named signals, and the sources not covered by these."""
    seen: dict[str, Signal] = {}
    visited: set[tuple[Signal, bool]] = set()
    stack = [(signal, False)]
    while stack:
        node, inside = stack.pop()
        if (node, inside) in visited:
            continue
        visited.add((node, inside))
        plain = isinstance(node, Source) and (inside or node.source in _UNRECORDED)
        if label_of(node) and node.placement == "agreed" and not plain:
            seen.setdefault(label_of(node), node)
        below = node.observed if isinstance(node, Fold) else node.inputs
        stack.extend((one, inside or bool(node.name)) for one in reversed(below))
    return seen


def label_of(signal: Signal) -> str:
    """The name that the user gave a signal; without such a name, a source's own name; else an empty text."""
    return signal.name or (signal.source if isinstance(signal, Source) else "")


def distinct_name(name: str, *, used: Container[str]) -> str:
    """The name, followed by the first number from 2 on that makes it unique if it is already used."""
    count, free = 1, name
    while free in used:
        count += 1
        free = f"{name}_{count}"
    return free


# ---- from an action to its rule ------------------------------------------------------------------------------------


def rescale_rule(
    peers: object,
    *,
    trigger: Trigger,
    keep: actions.Keep,
    name: str = "rescale",
    max_global_batch: int | None = None,
    batch: object | None = None,
    rate: object | None = None,
    ramp_length: float = 0.0,
    unit: actions.Unit = "steps",
) -> Rule:
    """The rule that requests a size of the cluster, rounded and clipped to the job's limits.

    While peers are joining, a request for another size replaces the pending size. A request for the present size
    cancels the pending size, but only if this rule requested the pending size last: requests from elsewhere are not
    undone. The rule does not fire for a target that is not finite, for the pending size (without a pending size, for
    the present size), or for the size that was refused last. It also does not fire in a step whose barrier may change
    the cluster. With the present size, the rule fires for another `batch` or `rate` while no other size is pending.

    See `Trigger.rescale` for the arguments and the errors.
    """
    if keep not in (kinds := get_args(actions.Keep)):
        raise PolicyError(f"rescale(keep={keep!r}): one batch size must stay; write one of {', '.join(kinds)}")
    most = max_global_batch
    if most is not None and not is_whole_number(most, least=1):
        raise PolicyError(f"rescale(max_global_batch={most!r}): takes a whole number of samples, at least 1, or None")
    if most is not None and keep == "global_batch_size":
        raise PolicyError(f"rescale(keep={keep!r}, max_global_batch={most!r}): the global batch stays; leave one out")
    wanted = as_signal(peers)
    size, refused = Source("size"), Source("refused_size")
    target = clip(round(wanted), Source("min_size"), Source("max_size"))
    under_way, wants = Source("target_size"), _looks(trigger) & is_finite(wanted)
    # The compiler's check refuses a target that is not a scalar, and names the target.
    is_number = target.type.shape == SCALAR
    withdraws = _wanted_last(target, gate=trigger.gate, asked=wants & (target != size)) if is_number else False
    inputs, differs = _numbers_with_size(batch, rate, peers=target)
    at_size = withdraws
    if differs is not None:
        # A request for the present size would cancel a pending size; an exchange of peers keeps the size.
        at_size = (differs & ((under_way == 0) | (under_way == size))) | withdraws
    news = where(target == size, at_size, (target != under_way) & (target != refused))
    given = (as_signal(one) for one in (batch, rate) if one is not None)
    inputs = {**_seen(trigger, wanted, *given), "size": size, **inputs, "target": target}
    action = actions.Rescale(
        target, keep, most or 0, inputs.get("target_batch"), inputs.get("target_rate"), ramp_length, unit
    )
    return Rule(name, trigger, _ready(trigger) & is_finite(wanted) & news, action, inputs)


def _numbers_with_size(
    batch: object | None, rate: object | None, *, peers: Signal
) -> tuple[dict[str, Signal], Signal | None]:
    """The inputs of a rule for the batch and the rate that come with `peers` peers, and a condition: one of them is not
    the present one; ``None`` if neither is given."""
    inputs: dict[str, Signal] = {}
    differs = list[Signal]()
    if batch is not None:
        samples, now = as_signal(batch), Source("global_batch_size")
        target = where(is_finite(samples) & (samples > 0), _within_epoch(samples, least=peers), math.nan)
        inputs |= {"global_batch_size": now, "target_batch": target}
        differs.append(is_finite(target) & (target != now))
    if rate is not None:
        wanted, now = as_signal(rate), Source("learning_rate")
        target = where(is_finite(wanted) & (wanted > 0), wanted * 1.0, math.nan)
        inputs |= {"learning_rate": now, "target_rate": target}
        # On a ramp, and under a schedule of the optimizer, the present rate is not the rate that was requested.
        differs.append(is_finite(target) & (target != now) & (target != Source("requested_rate")))
    return inputs, functools.reduce(operator.or_, differs) if differs else None


def is_decided(action: actions.Action) -> Signal:
    """True if the batch and the rate that come with a size, as far as the action has them, are numbers above 0."""
    given = (is_finite(one) for one in tuple(actions.numbers_of(action).values())[1:])
    return functools.reduce(operator.and_, given, as_signal(True))


def _wanted_last(target: Signal, *, gate: Signal, asked: Signal) -> Signal:
    """True if the pending size is the size that this rule requested last, in this view: bool."""

    # The state: this truth value, the last requested size, and the view of that request.
    def update(
        state: tuple[Signal, ...], asks: Signal, size: Signal, view: Signal, under_way: Signal
    ) -> tuple[Signal, ...]:
        comes = (under_way > 0) & (under_way == state[1]) & (view == state[2])
        return comes, where(asks, size, state[1]), where(asks, view, state[2])

    sources = Source("view"), Source("target_size")
    made = fold(update, (False, 0.0, -1), asked, target * 1.0, *sources, output=lambda state: state[0])
    return replace(made, gate=gate)


def batch_rule(samples: object, *, trigger: Trigger, name: str = "set_global_batch_size") -> Rule:
    """The rule that requests a global batch of `samples` samples; it does not fire for the present number."""
    wanted = as_signal(samples)
    target = _within_epoch(wanted, least=Source("size"))
    now = Source("global_batch_size")
    fires = _ready(trigger) & is_finite(wanted) & (wanted > 0) & (target != now)
    inputs = {**_seen(trigger, wanted), "global_batch_size": now, "target": target}
    return Rule(name, trigger, fires, actions.SetGlobalBatchSize(target), inputs)


def _within_epoch(samples: Signal, *, least: Signal) -> Signal:
    """A global batch size: rounded, at most an epoch, and at least `least`, one sample per peer."""
    most = Source("epoch_samples")
    return maximum(where(most > 0, minimum(round(samples), most), round(samples)), least)


def rate_rule(
    rate: object, *, trigger: Trigger, ramp_length: float, unit: actions.Unit, name: str = "set_learning_rate"
) -> Rule:
    """The rule that requests a learning rate above 0; it does not fire for the present rate."""
    wanted = as_signal(rate) * 1.0
    now = Source("learning_rate")
    fires = _ready(trigger) & is_finite(wanted) & (wanted > 0) & (wanted != now)
    inputs = {**_seen(trigger, wanted), "learning_rate": now, "target": wanted}
    return Rule(name, trigger, fires, actions.SetLearningRate(wanted, ramp_length, unit), inputs)


def factor_rule(factor: object, *, trigger: Trigger, name: str = "learning_rate") -> Rule:
    """The rule that multiplies the learning rate by a factor; it fires for another usable factor than the last one."""
    wanted = as_signal(factor) * 1.0
    if wanted.type.shape != SCALAR:
        raise PolicyError(f"learning_rate({wanted!r}): takes one number; reduce it, as in kf.ops.mean(x)")
    usable = where(_is_usable(wanted), wanted, math.nan)
    held = labelled(fold(lambda _, newest: newest * 1.0, 1.0, usable), label="last usable")
    before = held.before_step()
    # A factor that is known before the message travels on the message of its own step, any other on the next one.
    carried = Collective("sum", where(Source("rank") == 0, held if wanted.known == "before" else before, 0.0))
    action = actions.ScaleLearningRate(wanted, carried.named("learning_rate_factor"))
    fires = _looks(trigger) & _is_usable(wanted) & (wanted != before)
    return Rule(name, trigger, fires, action, {**_seen(trigger, wanted), "target": wanted})


def reports_unusable(rule: Rule, action: actions.ScaleLearningRate) -> Rule:
    """The twin of a rule for a factor, which reports once that the factor is not usable. A NaN before the first usable
    factor is not reported, since most signals begin as NaN."""

    # The state: True once reported, once a usable factor was seen, and if this step reports.
    def update(state: tuple[Signal, ...], usable: Signal, is_number: Signal) -> tuple[Signal, ...]:
        reports = ~state[0] & ~usable & (state[1] | is_number)
        return state[0] | reports, state[1] | usable, reports

    wanted = action.target
    with attributed_to(rule.origin):
        is_number = (wanted > 0) | (wanted <= 0)
        reports = fold(update, (False,) * 3, _is_usable(wanted), is_number, output=operator.itemgetter(2))
    return replace(rule, fires=labelled(reports, label="reports"), mode="held", name=f"held({rule.name})")


def _is_usable(factor: Signal) -> Signal:
    return is_finite(factor) & (factor > 0)


def variable_rule(value: object, *, variable: str, trigger: Trigger, name: str = "set") -> Rule:
    """The rule that sets a registered value, or a hyperparameter of the optimizer, to a finite number."""
    if not isinstance(variable, str) or not variable:
        raise PolicyError(f"set({variable!r}, ...): the first argument is a name, as in set('momentum', 0.95)")
    wanted = as_signal(value) * 1.0
    fires = _looks(trigger) & is_finite(wanted)
    return Rule(
        name, trigger, fires, actions.SetVariable(variable, wanted), {**_seen(trigger, wanted), "target": wanted}
    )


def synchronise_rule(every: object, *, trigger: Trigger, name: str = "synchronise") -> Rule:
    """The rule that requests the number of steps from one average of models to the next."""
    if not isinstance(every, Signal) and not is_whole_number(every, least=1):
        raise PolicyError(f"synchronise(every={every!r}): takes a whole number of steps, at least 1, such as 16")
    wanted = as_signal(every)
    target = maximum(round(wanted), 1.0)
    fires = _looks(trigger) & is_finite(wanted) & (wanted > 0)
    return Rule(name, trigger, fires, actions.Synchronise(target), {**_seen(trigger, wanted), "target": target})


def plain_rule(action: actions.Stop | actions.Checkpoint | actions.Restore, *, trigger: Trigger, name: str) -> Rule:
    """The rule for a request without a number: the end of the training, or a checkpoint to write or to restore."""
    return Rule(name, trigger, _looks(trigger), action, _seen(trigger, trigger.gate))


def mask_rule(mask: Signal, *, trigger: Trigger, kind: Literal["evict", "replace"]) -> Rule:
    """The rule that removes the marked peers, for good ("evict") or when new peers replace them ("replace").

    See the methods of `Trigger`; for "replace", one peer must remain unmarked."""
    if not isinstance(mask, Signal) or mask.type != SignalType("bool", VECTOR):
        raise PolicyError(
            f"{kind}({mask!r}): takes a truth value for each peer, as in {kind}(kf.ops.all_gather(speed) < 0.5)"
        )
    size, marked = Source("size"), sum(where(mask, 1.0, 0.0))
    fewest = Source("min_size") if kind == "evict" else Constant(1)
    can_replace = ~Source("replacing") & ~Source("replacement_refused")
    looks = _looks(trigger) if kind == "evict" else _looks(trigger) & can_replace
    fires = looks & (marked > 0) & (size - marked >= fewest)
    action = actions.Evict(mask) if kind == "evict" else actions.Replace(mask)
    return Rule(kind, trigger, fires, action, {**_seen(trigger, mask), "size": size, "marked": marked})


def call_rule(fn: Callable[..., Any], signals: tuple[object, ...], *, trigger: Trigger) -> Rule:
    """The rule that calls a Python function with the values of the signals."""
    if not callable(fn):
        raise PolicyError(f"call({fn!r}): the first argument must be a function of the signals that follow it")
    values = tuple(as_signal(one) for one in signals)
    inputs: dict[str, Signal] = {}
    for value, parameter in zip(values, _parameters(fn, count=len(values)), strict=True):
        inputs[distinct_name(label_of(value) or parameter, used=inputs)] = value
    inputs = {**inputs, **{label: one for label, one in _seen(trigger).items() if label not in inputs}}
    name = getattr(fn, "__name__", type(fn).__name__)
    return Rule(name, trigger, _ready(trigger), actions.Call(fn, values), inputs)


def _looks(trigger: Trigger) -> Signal:
    """True in the steps in which a trigger allows a rule to act."""
    return trigger.predicate if trigger.event == "rescale" else trigger.gate & trigger.predicate


def _ready(trigger: Trigger) -> Signal:
    """True in the trigger's steps, except before a barrier that may change the size on which the decision depends."""
    return _looks(trigger) if trigger.event == "rescale" else _looks(trigger) & ~Source("change_due")


def _seen(trigger: Trigger, *signals: Signal) -> dict[str, Signal]:
    """The values that the log shows with a decision: the inputs of its target and of its condition."""
    seen: dict[str, Signal] = {}
    for one in (*signals, trigger.predicate):
        seen |= {label: node for label, node in inputs_under(one).items() if label not in seen}
    return seen


def _parameters(fn: Callable[..., Any], *, count: int) -> list[str]:
    """The names of a hook's parameters after `control`; numbered names if the hook accepts any number of arguments."""
    numbered = [f"argument_{position}" for position in range(1, count + 1)]
    try:
        signature = inspect.signature(fn)
    except (ValueError, TypeError):  # a function written in C may have no signature
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
