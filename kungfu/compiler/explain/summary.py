"""The summary of a plan for people: the values that its policies watch, when each rule fires, its request, the costs.

Expressions are in the user's names, and end at named signals, variables and monitors. In place of a long expression,
the summary lists the values that the expression reads; `explain` shows all nodes.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence

from kungfu.compiler.compiled_policies import CompiledPolicies
from kungfu.compiler.explain.explanation import (
    MODES,
    bound_of,
    cost_lines,
    counted,
    leave_first,
    shared_parts,
    tops_of,
)
from kungfu.compiler.explain.expressions import Expressions, is_operation
from kungfu.compiler.explain.labels import is_number, labels_of, names_of, where
from kungfu.compiler.passes.synchronising import due_every
from kungfu.control import (
    Action,
    Call,
    Checkpoint,
    Evict,
    Replace,
    Rescale,
    Restore,
    Rule,
    ScaleLearningRate,
    SetGlobalBatchSize,
    SetLearningRate,
    SetVariable,
    Stop,
    Synchronise,
)
from kungfu.control.action import Setting, numbers_of, operands
from kungfu.control.rule import label_of
from kungfu.policy_definition import Policy
from kungfu.signal import Constant, Signal, topological
from kungfu.signal.gate import is_every_steps, period_of

_WIDTH = 100
_LONGEST_VALUE = 60
_NAMED = 8  # columns of the names of a rule's lines
# Inputs of rules that other lines of the summary describe.
_DESCRIBED = ("target", "target_batch", "target_rate", "marked", "rescales_left", "replacements_left")


def summarize(plan: CompiledPolicies, *, average_every: int = 0) -> str:
    """A plan in a few lines for each rule: what it watches, when it fires, what it asks for; and the costs.

    Each policy begins with the first sentence of its docstring and with its settings. For a combination such as
    `at_most`, the rules of its policies follow the rule that chooses among their requests.

    Args:
        average_every: H, if the job averages models every H steps; 0 if it averages gradients.

    Returns:
        Lines of at most 100 columns, each with its line ending.

    >>> from kungfu.compiler import compile_policies
    >>> from kungfu.policies import stop_on_nan
    >>> print(summarize(compile_policies([stop_on_nan()])).partition("costs")[0], end="")  # doctest: +ELLIPSIS
    policy stop_on_nan  [...]
      Ends training once the loss, or the gradient, has not been finite for `steps` steps in a row.
      with steps=3, watch='loss'
    rule stop_on_nan
      watches  steps_not_finite (from mean_loss)
      fires    in every step, if steps_not_finite >= 3
      asks for the end of training
    """
    # A rule in mode "held" is the twin of another rule.
    rules = [one for one in (*plan.rules, *plan.on_rescale) if one.mode != "held"]
    return "\n".join([*_policies(rules, plan, every=average_every), *_of_job(plan)]) + "\n"


def _policies(
    rules: Sequence[Rule], plan: CompiledPolicies, *, every: int, chosen_by: Rule | None = None
) -> Iterator[str]:
    """The lines of rules, under the policies that made them; `chosen_by` is the rule that merges these rules."""
    groups: dict[int, list[Rule]] = {}
    for rule in rules:
        groups.setdefault(id(rule.policy), []).append(rule)
    names = names_of(plan, topological(tuple(root for rule in rules for root in rule.roots)))
    expressions = Expressions({signal: name for name, signal in plan.watched_signals.items()}, names)
    for group in groups.values():
        if isinstance(policy := group[0].policy, Policy):  # a plan from a record does not know its policies
            yield from _policy(policy)
        for rule in group:
            yield from _rule(rule, expressions, every=every, chosen_by=chosen_by)
            if rule.merged:
                yield from _policies(rule.merged, plan, every=every, chosen_by=rule)


def _policy(policy: Policy) -> Iterator[str]:
    yield from _wrapped(f"policy {policy.name}{where(policy.location)}", other="  ")
    settings = (f"{name}={_short(repr(value), _LONGEST_VALUE)}" for name, value in policy.settings.items())
    for text in (policy.about, f"with {', '.join(settings)}" if policy.settings else ""):
        yield from _wrapped(text, indent="  ", other="  ")


def _rule(rule: Rule, expressions: Expressions, *, every: int, chosen_by: Rule | None) -> Iterator[str]:
    chosen = f", for {chosen_by.name} to choose from" if chosen_by else ""
    yield from _wrapped(f"rule {rule.name}{chosen}{MODES[rule.mode]}", other="  ")
    wanted = _wanted(rule.action)
    if not rule.merged:
        watched = expressions.watched((rule.when, *wanted))
        yield from _field("watches", ", ".join(watched) or "nothing that changes")
    # A request that is chosen from may be one that the merged rule does not make.
    news = () if chosen_by else _news(rule)
    yield from _field("fires", ", ".join([*_when(rule, expressions), *news]))
    if every and rule.trigger.event == "step":
        later = f"at most {counted(every - 1, 'step')} after it is due" if every > 1 else "that is, in every step"
        yield from _field("reacts", f"in the next step that averages models (H = {every}), {later}")
    yield from _field("calls" if isinstance(rule.action, Call) else "asks for", _request(rule, wanted, expressions))
    if not rule.merged and not isinstance(rule.action, Call):
        own = [name for name, one in rule.inputs.items() if label_of(one) != name and name not in _DESCRIBED]
        yield from _field("records", ", ".join(own)) if own else ()
    for owner, budget in rule.budgets.items() if rule.mode == "acting" and not chosen_by else ():
        yield from _field("limited", f"by the {bound_of(owner, budget)}")


def _of_job(plan: CompiledPolicies) -> Iterator[str]:
    labels = labels_of(plan)
    for rules, nodes in shared_parts(plan).items():
        if named := [labels[one] for one in tops_of(nodes) if not is_number(labels[one])]:
            yield from _wrapped(f"{' and '.join(rules)} share {', '.join(named)}", other="  ")
    for line in leave_first(plan):
        yield from _wrapped(line, other="  ")
    yield "costs"
    for line in cost_lines(plan):
        yield from _wrapped(line, indent="  ", other="    ")
    if names := plan.gradient_reductions:
        reductions = f"{counted(len(names), 'number')} of all gradients: {', '.join(names)}"
        yield from _wrapped(reductions, indent="  ", other="    ")


# ---- when a rule fires, and its request ------------------------------------------------------------------------------


def _when(rule: Rule, expressions: Expressions) -> list[str]:
    """The steps, the condition and the cooldown of a rule."""
    is_of_step = rule.trigger.event == "step"
    parts = _steps(rule.gate, expressions) if is_of_step else ["in every barrier in which the size changes"]
    if not isinstance(rule.when, Constant):
        parts.append(f"if {expressions.written(rule.when) or 'a condition on these values holds'}")
    pause = rule.trigger.pause
    limits = [f"{pause.steps:,} steps"] if pause.steps else []
    limits += [f"{pause.seconds:g} s"] if pause.seconds else []
    parts += [f"not within {' or '.join(limits)} of the last time"] if limits else []
    return parts


def _steps(gate: Signal, expressions: Expressions) -> list[str]:
    """The steps of a gate, condition by condition."""
    conditions = [gate]
    while any(is_operation(one, "and") for one in conditions):
        conditions = [part for one in conditions for part in (one.inputs if is_operation(one, "and") else (one,))]
    every, parts = "in every step", []
    for one in conditions:
        period = period_of(one) if is_every_steps(one) else due_every(one)
        if period and every == "in every step":
            every = f"every {period} steps"
        elif not isinstance(one, Constant):
            parts.append(f"where {expressions.written(one) or 'a condition on step and size holds'}")
    return [every, *parts]


def _news(rule: Rule) -> Iterator[str]:
    """The conditions that a rule adds to those of its trigger; see `kungfu.control.rule`."""
    match rule.action:
        case Rescale():
            also = list(numbers_of(rule.action))[1:]
            others = f", or with that size in place another {' or '.join(also)}" if also else ""
            yield f"for a size other than the present, the pending and the last refused one{others}"
        case SetGlobalBatchSize():
            yield "for another batch than the present one"
        case SetLearningRate():
            asked = "" if rule.trigger.event == "rescale" else " and the one it asked for last"
            yield f"for another rate than the present one{asked}"
        case ScaleLearningRate():
            yield "for another finite factor above 0 than the last one"
        case SetVariable() | Synchronise():
            yield "for another value than the one it asked for last"
        case Evict():
            yield "if a peer is marked, and at least --min peers remain"
        case Replace():
            yield "if a peer but not every peer is marked, while no exchange is under way or was just refused"


def _request(rule: Rule, wanted: Sequence[Signal], expressions: Expressions) -> str:
    action, texts = rule.action, [expressions.written(one) for one in wanted]
    number, *beside = map(_number, texts or [""])
    if rule.merged:
        names = " and ".join(rule.candidates)
        number = f"the number that {rule.policy.name if rule.policy else rule.name} chooses from those of {names}"
    match action:
        case Rescale():
            most = f" up to a global batch of {action.max_global_batch} samples" if action.max_global_batch else ""
            kept = action.keep.replace("_", " ")
            over = f", over {action.ramp_length:g} {action.unit}" if action.ramp_length else ""
            settings = list(numbers_of(action))[1:]
            along = "".join(f"; with it a {name}: {text}" for name, text in zip(settings, beside, strict=True)) + over
            return f"a size: {number}, rounded, from --min to --max peers; it keeps the {kept}{most}{along}"
        case SetGlobalBatchSize():
            return f"a global batch in samples: {number}, at least one per peer"
        case SetLearningRate():
            over = f", over {action.ramp_length:g} {action.unit}" if action.ramp_length else ""
            return f"a learning rate: {number}{over}"
        case ScaleLearningRate():
            return f"a factor on the learning rate of {action.step}: {number}; without a barrier"
        case Synchronise():
            return f"an average of models every H steps: H = {number}, rounded"
        case SetVariable(name=name):
            return f"another value of {name}: {number}"
        case Stop():
            return "the end of training"
        case Checkpoint(name):
            return "a checkpoint" + (f" named {name}" if name else "")
        case Restore(name):
            return f"the checkpoint {name} to be restored"
        case Call():
            given = ", ".join(text or "a computed number" for text in texts)
            return (
                f"{getattr(action.fn, '__name__', 'a function')}({given}), whose requests are known when it is called"
            )
    peers = f"peers with {texts[0]}" if texts[0] else "peers that these values mark"
    if isinstance(action, Evict):
        return f"the removal of the {peers}"
    return f"new peers in place of the {peers}; each leaves when its replacement is ready"


def _number(text: str) -> str:
    """The text of a requested number; without a text, the number is computed from the values that the rule watches."""
    text = text or "a number computed from these values"
    return f"{text} (nan: no request)" if re.search(r"\bnan\b", text) else text


def _wanted(action: Action) -> tuple[Signal, ...]:
    """The operands of an action without the rounding and the bounds that `kungfu.control.rule` adds to a number."""
    numbers = numbers_of(action)
    return tuple(_unbounded(setting, one, action) for setting, one in numbers.items()) or operands(action)


def _unbounded(setting: Setting, number: Signal, action: Action) -> Signal:
    if isinstance(action, Rescale) and is_operation(number, "where"):
        # A batch or a rate that comes with a size is NaN, and requests nothing, while it is not above 0.
        number = number.inputs[1]
    inner = number
    match setting:
        case "size" if is_operation(number, "minimum") and is_operation(number.inputs[0], "maximum"):
            inner = number.inputs[0].inputs[0]
        case "global batch size" | "averaging interval" if is_operation(number, "maximum"):
            inner = number.inputs[0].inputs[2] if is_operation(number.inputs[0], "where") else number.inputs[0]
        case _ if is_operation(number, "multiply") and isinstance(one := number.inputs[1], Constant):
            return number.inputs[0] if one.value == 1 else number
    return inner.inputs[0] if inner is not number and is_operation(inner, "round") else inner


# ---- lines -----------------------------------------------------------------------------------------------------------


def _field(name: str, text: str) -> Iterator[str]:
    yield from _wrapped(text, indent=f"  {name:<{_NAMED}} ", other=" " * (_NAMED + 3))


def _wrapped(text: str, *, indent: str = "", other: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=indent, subsequent_indent=other, break_long_words=False, break_on_hyphens=False
    )


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."
