"""Schedule: assigns each node a stage and the steps in which it is computed.

The input is an immutable graph in static single assignment form: each node is one value, and its inputs dominate it in
every topological order. The output is a plan: segments in an order in which each node comes after its inputs.

- *Demand* is a backward data-flow analysis. A rule is evaluated in the steps of its *gate*, and the nodes that it needs
  are demanded in these steps; if a watched value, or a fold that runs in every step, needs a node, the node is demanded
  in every step. Demand only grows from a node to its inputs, so whenever a node runs, its inputs have run.
- Nodes of equal demand are grouped into segments; a gated segment is a branch, and costs nothing in other steps.
- A collective whose operand is known before the gradient all-reduce is piggybacked on it. Every other collective is
  placed at a *level*, the largest number of messages on a path to the collective, and all collectives of one level and
  one demand share a message.

Invariants of the result: a gate is computed in every step, before the nodes that it guards; all peers run the same
segments in the same order, since gates are exact; each fold is updated in exactly one segment of ``after``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from kungfu.compiler.compiled_policies import CompiledPolicies, MessageLayout, Segment
from kungfu.control import Rule
from kungfu.control.action import operands
from kungfu.signal import NEST, Collective, Constant, Fold, Signal, Source, topological

Gates = tuple[Signal, ...]  # empty: in every step


def schedule(
    rules: tuple[Rule, ...], *, watched: Mapping[str, Signal], straggler_fractions: Signal | None = None
) -> CompiledPolicies:
    """The plan for these rules; equal nodes become one node of its graph.

    Watched signals and the straggler fractions are computed in every step if that is cheap."""
    shown = (*watched.values(), *(() if straggler_fractions is None else (straggler_fractions,)))
    results = (*(one for rule in rules for one in (rule.gate, *_wanted(rule))), *shown)
    order = topological(results)
    demand = _demand(order, rules=rules, shown=shown)
    piggybacked = tuple(one for one in order if isinstance(one, Collective) and is_piggybacked(one))
    folds = tuple(one for one in order if isinstance(one, Fold))
    # Gates are computed before the nodes that they guard.
    gates = tuple(dict.fromkeys(gate for one in order for gate in demand[one]))
    before = _before(gates, piggybacked, demand=demand)
    # After the gradient all-reduce, the nodes below piggybacked collectives are no longer needed.
    after_order = topological((*gates, *folds, *results), leaves=frozenset(piggybacked))
    after = _segments(tuple(one for one in after_order if one not in set(piggybacked)), demand=demand)
    return CompiledPolicies(
        rules,
        watched,
        _with_outputs(before, needed=(one.operand for one in piggybacked)),
        MessageLayout.of(piggybacked),
        _with_outputs(after, needed=results),
        straggler_fractions=straggler_fractions,
    )


def _wanted(rule: Rule) -> tuple[Signal, ...]:
    """The signals that a rule needs in the steps of its gate."""
    return (rule.fires, *operands(rule.action), *rule.inputs.values())


def is_piggybacked(collective: Collective) -> bool:
    """True if a collective's input is known early enough for the gradient all-reduce."""
    return collective.operand.known == "before"


def _before(
    gates: Iterable[Signal], piggybacked: Iterable[Collective], *, demand: Mapping[Signal, Gates]
) -> tuple[Segment, ...]:
    """The segments before the gradient all-reduce; nodes with a gate that is known only later run in every step."""
    known = [one for one in gates if one.known == "before"]
    roots = (*known, *(one.operand for one in piggybacked))
    # A fold that returns its value before the step is a leaf here, since it is updated after the message.
    held = frozenset(one for one in topological(roots) if isinstance(one, Fold) and one.recurrence.reads == "old")
    order = tuple(one for one in topological(roots, leaves=held) if one not in held)
    # Speculation: nodes whose gate is known too late are computed in every step.
    early = {one: () if any(gate.known == "after" for gate in demand[one]) else demand[one] for one in order}
    return _segments(order, demand=early)


def _demand(order: tuple[Signal, ...], *, rules: Iterable[Rule], shown: Iterable[Signal]) -> dict[Signal, Gates]:
    """For each node, the gates in whose steps the node is needed; an empty tuple means every step."""
    always = Constant(True)
    wanted: dict[Signal, dict[Signal, None]] = {node: {} for node in order}
    for rule in rules:
        # Every step evaluates the gates.
        wanted[rule.gate][always] = None
        for node in _wanted(rule):
            wanted[node][rule.gate] = None
    for node in shown:
        if _is_cheap(node):
            wanted[node][always] = None
    # In reverse topological order, so that the demand of all readers is known before it is passed on to the inputs.
    for node in reversed(order):
        if isinstance(node, Fold):
            # A fold runs in the steps of its gate: its state must not depend on its readers.
            wanted[node] = {node.gate: None}
            wanted[node.gate][always] = None
        elif isinstance(node, (Source, Constant)):
            # A leaf costs nothing, and may be read from any segment.
            wanted[node] = {always: None}
        for one in node.observed if isinstance(node, Fold) else node.inputs:
            wanted[one].update(wanted[node])
    index_of = {node: index for index, node in enumerate(order)}
    return {node: _gates(gates, index_of=index_of) for node, gates in wanted.items()}


def _is_cheap(node: Signal) -> bool:
    """True if a watched value can be computed in every step without a message or a pass over the gradients. Others are
    NaN in steps in which no rule or fold needs them, so that giving a signal a name costs nothing."""
    order = topological((node,))
    # The values of folds and of piggybacked collectives are known at no further cost.
    known = frozenset(
        one for one in order if isinstance(one, Fold) or (isinstance(one, Collective) and is_piggybacked(one))
    )
    return not any(
        isinstance(one, Collective) or (isinstance(one, Source) and one.type.shape == NEST)
        for one in topological((node,), leaves=known)
        if one not in known
    )


def _gates(wanted: Iterable[Signal], *, index_of: Mapping[Signal, int]) -> Gates:
    gates = tuple(wanted)
    # A demand in every step includes all others.
    if any(isinstance(one, Constant) and one.value is True for one in gates):
        return ()
    return tuple(sorted(gates, key=lambda one: index_of[one]))


def _levels(order: tuple[Signal, ...]) -> dict[Signal, int]:
    """The number of extra messages that must be exchanged before each node is known."""
    levels: dict[Signal, int] = {}
    for node in order:
        below = max((levels.get(one, 0) for one in node.inputs), default=0)
        levels[node] = below + 1 if isinstance(node, Collective) else below
    return levels


def _segments(order: tuple[Signal, ...], *, demand: Mapping[Signal, Gates]) -> tuple[Segment, ...]:
    """The segments of these nodes, level by level: first a level's messages, then the nodes computed from these."""
    levels = _levels(order)
    segments: list[Segment] = []
    for level in range(max(levels.values(), default=0) + 1):
        here = [one for one in order if levels[one] == level]
        messages = [one for one in here if isinstance(one, Collective)]
        segments.extend(_messages(messages, demand=demand))
        segments.extend(_grouped([one for one in here if not isinstance(one, Collective)], demand=demand))
    return tuple(segments)


def _messages(collectives: Iterable[Collective], *, demand: Mapping[Signal, Gates]) -> Iterator[Segment]:
    """Yields, for each set of gates, one message with all collectives that are needed in the steps of these gates."""
    together: dict[Gates, list[Collective]] = {}
    for one in collectives:
        together.setdefault(demand[one], []).append(one)
    for gates, ready in together.items():
        yield Segment(gates, (), MessageLayout.of(ready), tuple(ready))


def _grouped(nodes: list[Signal], *, demand: Mapping[Signal, Gates]) -> Iterator[Segment]:
    """Yields the nodes in few segments: each takes all waiting nodes that can run along with the first waiting node."""
    waiting = nodes
    while waiting:
        gates = demand[waiting[0]]
        left: dict[Signal, None] = {}
        members: list[Signal] = []
        for node in waiting:
            if _same(demand[node], gates) and not any(one in left for one in node.inputs):
                members.append(node)
            else:
                # The node has another demand, or an input that waits: it belongs to a later segment.
                left[node] = None
        yield Segment(gates, tuple(members), None, ())
        waiting = list(left)


def _same(some: Gates, others: Gates) -> bool:
    """True if two lists contain the same gates, compared by identity, since == on signals would create a signal."""
    return len(some) == len(others) and all(one is other for one, other in zip(some, others, strict=True))


def _with_outputs(segments: tuple[Segment, ...], *, needed: Iterable[Signal]) -> tuple[Segment, ...]:
    """The segments, each with its `outputs` set: the nodes in it that are needed outside of it."""
    wanted = set(needed)
    finished: list[Segment] = []
    # Liveness, backwards: later segments, gates and results read the outputs.
    for segment in reversed(segments):
        nodes = segment.message.collectives if segment.message else segment.nodes
        finished.append(replace(segment, outputs=tuple(one for one in nodes if one in wanted)))
        wanted.update(one for node in nodes for one in node.inputs)
        wanted.update(segment.gates)
    return tuple(reversed(finished))
