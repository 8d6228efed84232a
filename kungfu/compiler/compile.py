"""The compilation of policies to a plan: build, check, simplify, schedule, fuse.

Policies are built into rules over a graph of signals. The graph is checked as the user wrote it, so that messages can
refer to the user's lines. Then the rate limits and budgets of the rules are added as further signals, and the whole
graph is simplified and scheduled. No pass changes a node: each pass creates new nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from kungfu.compiler.compiled_policies import CompiledPolicies
from kungfu.compiler.passes import check, schedule, simplify
from kungfu.compiler.passes.synchronising import (
    STEPS_SINCE_AVERAGE,
    due_in_synchronising_steps,
    refuse_intervals,
    refuse_mean_gradients,
)
from kungfu.control import Budget, Call, Evict, Replace, Rescale, Rule, ScaleLearningRate
from kungfu.control.action import changes_membership, numbers_of, rewired
from kungfu.control.budget import Allowance, Spent, news_of_held
from kungfu.control.rule import JOB, distinct_name, rate_limited, reports_unusable
from kungfu.control.synchronisation import AverageModels, Synchronisation
from kungfu.monitor import straggler_fractions
from kungfu.ops import count
from kungfu.policy_definition import Policy, checked_policies
from kungfu.signal import Signal, Source, TrainingSignals, topological
from kungfu.signal.operation import SCALAR
from kungfu.signal.source_location import attributed_to


def compile_policies(
    policies: Sequence[Policy], *, budget: Budget | None = None, sync: Synchronisation | None = "gradients"
) -> CompiledPolicies:
    """Compiles several policies to one plan: checks them, shares equal nodes, assigns stages and fuses collectives.

    A pure function, with the same result on every peer.

    Args:
        policies: The policies of one job, in the order of their rules.
        budget: The limit on changes of the cluster by all policies together; ``None``: each policy's own limit applies.
        sync: How the peers keep their models alike; with averages of models, rules are evaluated in the steps after
            which models are averaged. ``None``: unknown, so no policy is refused because of it.

    Raises:
        PolicyError: `policies` is not a list of policies, or a policy is wrong: an action or trigger on a local signal,
            a collective under a gate that could differ between peers, two policies that set the same value without a
            combination such as `first`, and similar faults; or it needs the mean of gradients that ``sync`` does not
            average, or sets the interval of averages that ``sync`` does not make.

    >>> from kungfu.policies import gns_batch
    >>> compile_policies([gns_batch(max_peers=8)]).messages_per_step
    0
    """
    job = object()
    training = TrainingSignals(job=job)
    built = [(policy.name, policy.build(training)) for policy in checked_policies(policies)]
    check(built, job=job)
    averages = isinstance(sync, AverageModels)
    if averages:
        refuse_mean_gradients(built)
    elif sync is not None:
        refuse_intervals(built)
    every = _distinct(rate_limited(rule) for _, group in built for rule in group)
    rules = _distinct(_budgeted((one for one in every if one.trigger.event == "step"), budget=budget))
    on_rescale = tuple(one for one in every if one.trigger.event == "rescale")
    if averages:  # `kungfu why` shows how long a rule that was due may have waited
        rules = tuple(_showing_window(rule) for rule in rules)
    signals = tuple(signal for rule in rules for signal in rule.roots)
    roots = (*signals, *(signal for rule in on_rescale for signal in rule.roots))
    if averages:
        fitted = due_in_synchronising_steps(roots)
        simple = simplify(fitted.values())
        shared: Mapping[Signal, Signal] = {node: simple[one] for node, one in fitted.items()}
    else:
        shared = simplify(roots)
    planned = tuple(_rewired(rule, shared=shared) for rule in rules)
    watched = _watched(signals, shared=shared)
    plan = schedule(planned, watched=watched, straggler_fractions=_straggler_fractions(signals, shared=shared))
    return replace(plan, on_rescale=tuple(_rewired(rule, shared=shared) for rule in on_rescale))


def _showing_window(rule: Rule) -> Rule:
    name = distinct_name(STEPS_SINCE_AVERAGE.source, used=rule.inputs)
    return replace(rule, inputs={**rule.inputs, name: STEPS_SINCE_AVERAGE})


def _budgeted(rules: Iterable[Rule], *, budget: Budget | None) -> Iterator[Rule]:
    """Yields the rules, limited by their budgets if they change the cluster, and then the twins of limited rules.
    A twin records the steps in which the budgets hold the rule back, or in which a factor is not usable.

    The job's budget replaces the policies' budgets. If several rules fire in one step, the budget must allow one
    change for the first rule, two for the second, and so on, whichever policies these rules belong to.
    """
    spent, twins = Spent.nothing(), list[Rule]()
    for rule in rules:
        if rule.mode == "acting" and isinstance(rule.action, ScaleLearningRate):
            twins.append(replace(reports_unusable(rule, rule.action), budgets={}))
        # Shadows, settings, stops and checkpoints do not change the cluster.
        if rule.mode != "acting" or not (changes_membership(rule.action) or isinstance(rule.action, Call)):
            yield replace(rule, budgets={})
            continue
        one = replace(rule, budgets=rule.budgets if budget is None else {JOB: budget})
        with attributed_to(one.origin):
            allowance = Allowance.of(one.budgets.values())
            # A hook's requests are unknown before its call: the hook receives the number of remaining changes.
            if one.budgets and isinstance(one.action, Call):
                one = _with_rest(one, allowance, spent=spent)
            # A rule that changes the cluster fires while its budgets allow it; its twin records the other steps.
            elif one.budgets:
                one, twin = _held_back(one, allowance, spent=spent)
                twins.append(twin)
            spent = _and_by(one, spent)
        yield one
    yield from twins


def _and_by(rule: Rule, spent: Spent) -> Spent:
    if isinstance(rule.action, Call):
        return spent
    if isinstance(rule.action, Replace):
        return spent.and_exchange(rule.fires, count(rule.action.mask))
    return spent.and_rescale(rule.fires)


def _with_rest(rule: Rule, allowance: Allowance, *, spent: Spent) -> Rule:
    """The rule of a hook, with the number of remaining changes added to its inputs."""
    name = distinct_name("rescales_left", used=rule.inputs)
    rule = replace(rule, inputs={**rule.inputs, name: allowance.whole_rescales_left(spent)}, budget=name)
    return _with_replacements_left(rule, allowance, spent=spent) if allowance.counts_replacements else rule


def _with_replacements_left(rule: Rule, allowance: Allowance, *, spent: Spent) -> Rule:
    """The rule, with the number of remaining replacements as an input that limits its request."""
    name = distinct_name("replacements_left", used=rule.inputs)
    return replace(rule, inputs={**rule.inputs, name: allowance.replacements_left(spent)}, replacement_budget=name)


def _held_back(rule: Rule, allowance: Allowance, *, spent: Spent) -> tuple[Rule, Rule]:
    """The rule, limited to steps in which the budgets allow it, and a twin that records the other steps."""
    replaces = isinstance(rule.action, Replace)
    if isinstance(rule.action, Evict):
        # Joiners on their way change the cluster too, and are charged once they have joined.
        spent = spent.and_rescale(Source("target_size") > 0)
    allowed = allowance.allows(spent, replacing=replaces)
    if isinstance(rule.action, Rescale) and len(numbers_of(rule.action)) > 1:
        # With the size in place, the rule changes settings only, which cost nothing.
        allowed = allowed | (rule.action.target == Source("size"))
    if replaces and allowance.counts_replacements:
        rule = _with_replacements_left(rule, allowance, spent=spent)
    else:
        rule = replace(rule, inputs={**rule.inputs, "rescales_left": allowance.rescales_left(spent)})
    news = news_of_held(rule.fires & ~allowed, allowed=allowed, gate=rule.gate)
    twin = replace(rule, fires=news, mode="held", name=f"held({rule.name})")
    return replace(rule, fires=rule.fires & allowed), twin


def _distinct(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """The rules, with a number added to each name that another rule has already."""
    named: dict[str, Rule] = {}
    for rule in rules:
        name = distinct_name(rule.name, used=named)
        named[name] = replace(rule, name=name)
    return tuple(named.values())


def _rewired(rule: Rule, *, shared: Mapping[Signal, Signal]) -> Rule:
    """The rule, with each node replaced by the shared node that represents it."""
    return replace(
        rule,
        trigger=replace(rule.trigger, gate=shared[rule.gate], predicate=shared[rule.when]),
        fires=shared[rule.fires],
        action=rewired(rule.action, shared=shared),
        inputs={name: shared[one] for name, one in rule.inputs.items() if _is_loggable(one)},
    )


def _watched(signals: Iterable[Signal], *, shared: Mapping[Signal, Signal]) -> dict[str, Signal]:
    """The signals that have names, by name, each once; a number distinguishes signals with the same name."""
    watched: dict[str, Signal] = {}
    for node in topological(signals):
        if node.name and not isinstance(node, Source) and _is_loggable(node):
            canonical = shared[node]
            if not any(canonical is one for one in watched.values()):
                watched[distinct_name(node.name, used=watched)] = canonical
    return watched


def _straggler_fractions(signals: Iterable[Signal], *, shared: Mapping[Signal, Signal]) -> Signal | None:
    """The speed of each peer as a fraction of the median speed, from the first policy that measures it, if any."""
    made = (one for one in topological(signals) if one.monitor == straggler_fractions.__name__)
    return next((shared[one] for one in made), None)


def _is_loggable(signal: Signal) -> bool:
    return signal.placement == "agreed" and signal.type.shape == SCALAR
