"""The check: finds violations of the rules for policies before any step runs, and names a remedy for each."""

from __future__ import annotations

from collections.abc import Sequence

from kungfu.compiler.passes.can_fire import check_can_fire, unbounded_side
from kungfu.control import Call, Rescale, Rule
from kungfu.control.action import mask_of, numbers_of, operands
from kungfu.errors import PolicyError
from kungfu.signal import NEST, Collective, Fold, Signal, Source, is_gate, topological
from kungfu.signal.operation import SCALAR, SignalType
from kungfu.signal.source_location import is_prebuilt, variable_at
from kungfu.signal.sources import GATE_SOURCES, ONLY_AT_RESCALE, RESCALE_SOURCES, SourceKind


def check(built: Sequence[tuple[str, tuple[Rule, ...]]], *, job: object) -> None:
    """Refuses policies with rules that violate an invariant (below), or that use signals of a job other than `job`.

    After this pass, every target, mask, trigger and watched size is equal on all peers, and a scalar or vector of its
    type; every gate is computed from whole numbers, alike on all peers; sizes are bounded; and in a step or a rescale,
    at most one acting rule changes a setting. All later passes rely on these properties.

    Raises:
        PolicyError: A rule is refused; the error names the policy and the user's line that made the rule.
    """
    for name, rules in built:
        for rule in rules:
            try:
                _check_owner(rule, policy=name, job=job)
                _check_rule(rule, policy=name)
                check_can_fire(rule, policy=name)
            except PolicyError as error:
                origin = _line_to_mend(rule)
                where = f"{origin}: " if origin else ""
                raise PolicyError(f"{where}{error}", policy=name, origin=origin) from error
    _check_declared(built)
    _check_conflicts(built)


def _line_to_mend(rule: Rule) -> str:
    """The user's line to fix; for a prebuilt policy, the line that created it."""
    return rule.policy.location if rule.policy and is_prebuilt(rule.origin) else rule.origin


def _check_rule(rule: Rule, *, policy: str) -> None:
    # Gates, including the gates of folds, must be exact, so that all peers run the same collectives.
    _check_gate(rule.gate, of=f"the trigger of policy {policy!r}")
    for node in topological((rule.fires, *operands(rule.action), *rule.inputs.values())):
        if isinstance(node, Fold):
            _check_gate(node.gate, of=f"{node!r} in policy {policy!r}")
    _check_agreed(rule.when, use=f"the .when(...) of policy {policy!r}", type=SignalType("bool"))
    _check_sources(rule, policy=policy)
    # The request of the action must be equal on all peers.
    mask = mask_of(rule.action)
    for setting, number in numbers_of(rule.action).items():
        _check_agreed(number, use=f"the {setting} that policy {policy!r} asks for", type=SignalType("float32"))
    if isinstance(rule.action, Rescale):
        _check_bounded(rule.action.target, use=f"the size that policy {policy!r} asks for")
    if mask is not None:
        _check_placement(mask, use=f"the choice of peers in policy {policy!r}")
    if isinstance(rule.action, Call):
        for position, signal in enumerate(rule.action.signals, start=1):
            _check_agreed(signal, use=f"argument {position} of the call in policy {policy!r}", type=None)
    _check_agreed(rule.fires, use=f"the decision of policy {policy!r}", type=SignalType("bool"))


def _check_owner(rule: Rule, *, policy: str, job: object) -> None:
    for node in topological(rule.roots):
        if isinstance(node, Source) and node.owner is not None and node.owner is not job:
            raise PolicyError(
                f"policy {policy!r} uses {node.written} ({node.origin}) of another attach: each has signals of "
                "its own, so take them from the `training` that the policy is called with, and keep none in a global"
            )


def _check_gate(gate: Signal, *, of: str) -> None:
    """Refuses a gate that peers could evaluate differently: some peers would wait for a message that others skip."""
    if not is_gate(gate):
        local = f", which is made of {_local_names(gate)}," if gate.placement == "local" else ""
        remedy = (
            f"first make it agreed: {_remedy_of(gate)}"
            if local
            else "use kf.control.every(n), and put the condition into .when(condition), or write "
            "kf.ops.synchronized(condition)"
        )
        raise PolicyError(
            f"{of} runs where {_name_and_type(gate)}{local} holds, but a gate decides whether peers take part in a "
            f"message, so it must be a function, in whole numbers, of {', '.join(sorted(GATE_SOURCES))} and constants; "
            f"{remedy}"
        )


def _check_sources(rule: Rule, *, policy: str) -> None:
    """Refuses sources that are unknown at the rule's event: barriers and steps offer different sources."""
    for node in topological((rule.fires, *operands(rule.action))):
        # A barrier is outside of steps: no fold is updated there, and no message is sent.
        at_rescale = rule.trigger.event == "rescale"
        source = node.source if isinstance(node, Source) else ""
        if at_rescale and (isinstance(node, (Fold, Collective)) or (source and source not in RESCALE_SOURCES)):
            what = node.written if isinstance(node, Source) else f"{node!r}"
            raise PolicyError(
                f"policy {policy!r} uses {what} ({node.origin}) in a rule on a rescale, which is settled inside the "
                f"barrier from {', '.join(sorted(RESCALE_SOURCES))} and constants only; use those"
            )
        # A step does not know the values before a rescale.
        if not at_rescale and source in ONLY_AT_RESCALE:
            raise PolicyError(
                f"policy {policy!r} uses training.{source} ({node.origin}), which only a barrier that changes the size "
                "knows; use it in a rule of kf.control.on_rescale(), or training.size.previous()"
            )


def _check_agreed(signal: Signal, *, use: str, type: SignalType | None) -> None:
    _check_placement(signal, use=use)
    if signal.type.shape != SCALAR:
        raise PolicyError(
            f"{use} is {signal!r}, not one number; reduce it, as in kf.ops.mean(x) or kf.ops.norm_squared(x)"
        )
    if type and signal.type != type:
        raise PolicyError(f"{use} is {signal!r}; it must be {type}")


def _check_placement(signal: Signal, *, use: str) -> None:
    if signal.placement == "local":
        raise PolicyError(
            f"{use}{_name_clause(signal)} is made of {_local_names(signal)}: each peer has its own value, so peers "
            f"would decide differently; {_remedy_of(signal)}"
        )


def _check_bounded(target: Signal, *, use: str) -> None:
    """Refuses a rule whose requested size has no bounds: one bad measurement could start any number of peers."""
    if side := unbounded_side(target):
        raise PolicyError(
            f"{use}{_name_clause(target)} has no {side} bound: a measurement that is off could ask for any number "
            "of peers; write kf.ops.clip(peers, training.min_size, training.max_size), or use .rescale(peers), "
            "which does"
        )


def _check_declared(built: Sequence[tuple[str, tuple[Rule, ...]]]) -> None:
    """Refuses policies that declare one signal of the program (fed or published) in different ways."""
    seen: dict[str, tuple[str, Source]] = {}
    for name, rules in built:
        roots = (node for rule in rules for node in (rule.gate, rule.fires, *operands(rule.action)))
        for node in topological(roots):
            if not isinstance(node, Source) or node.declared is None:
                continue
            other, first = seen.setdefault(node.source, (name, node))
            if (differs := _difference(first.kind, node.kind)) is not None:
                raise PolicyError(
                    f"policy {name!r} declares {node.written} ({node.origin}) {differs[1]}, and policy {other!r} "
                    f"declares {first.written} ({first.origin}) {differs[0]}: one name is one signal, so declare it "
                    "alike, or give one of them another name",
                    policy=name,
                    origin=node.origin,
                )


def _difference(one: SourceKind, other: SourceKind) -> tuple[str, str] | None:
    """The difference between two declarations of a name, as one text for each; ``None`` if at most meanings differ."""
    if one.given_by != other.given_by:
        return f"as what the program gives by training.{one.given_by}", f"by training.{other.given_by}"
    if one.type != other.type:
        return f"as {one.type}", f"as {other.type}"
    return (f"in {one.unit!r}", f"in {other.unit!r}") if one.unit != other.unit else None


def _check_conflicts(built: Sequence[tuple[str, tuple[Rule, ...]]]) -> None:
    """Refuses several acting rules for one setting, such as the size, at the same event: a step, or a rescale."""
    setters: dict[tuple[str, str], list[Rule]] = {}
    for _, rules in built:
        for rule in rules:
            # Shadows, and rules that a budget holds back, change no setting.
            settings = numbers_of(rule.action) if rule.mode == "acting" else {}
            for place, setting in enumerate(settings):
                setters.setdefault((setting, rule.trigger.event), []).append(rule)
                if place:
                    # The batch and the rate that come with a size are set in the barrier that changes the size.
                    setters.setdefault((setting, "rescale"), []).append(rule)
    for (contested, _), rules_of in setters.items():
        if len(rules_of) > 1:
            last = rules_of[-1]
            raise PolicyError(_conflict(contested, rules_of), policy=last.name, origin=_line_to_mend(last))


def _conflict(setting: str, rules_of: Sequence[Rule]) -> str:
    does = "rescale the cluster" if setting == "size" else f"set the {setting}"
    where = "; ".join(map(_line_to_mend, rules_of))
    names = [one.name for one in rules_of]
    if any(next(iter(numbers_of(one.action))) != setting for one in rules_of):
        decisions = ", ".join(repr(one.name) for one in rules_of if isinstance(one.action, Rescale))
        return (
            f"policies {', '.join(map(repr, names))} all {does}, and {decisions} as one decision "
            f"with the size; leave it out of that decision, or leave out the other rule ({where})"
        )
    # Combinations such as `kf.first` choose between policies, not between the rules of one policy.
    if len({id(one.policy) for one in rules_of}) < len(rules_of):
        different = ", ".join(map(repr, dict.fromkeys(names)))
        whose = f"policy {different} has" if len(set(names)) == 1 else f"policies {different} have"
        return (
            f"{whose} {len(rules_of)} rules that all {does} and "
            "nothing says which one wins; of one policy's rules make one, whose target is chosen by kf.ops.minimum, "
            "kf.ops.maximum or kf.ops.where, or a policy of each, which kf.at_most, kf.at_least or kf.first combine "
            f"({where})"
        )
    together = ", ".join(names)
    return (
        f"policies {', '.join(map(repr, names))} all {does} and nothing says which one wins; write "
        f"kf.at_most({together}) for the smallest request, kf.at_least({together}) for the largest, or "
        f"kf.first({together}) for the first one that has any ({where})"
    )


# ---- locality, in the user's names: the local variable, its line, and the collective that makes it agreed -----------


def _name_clause(signal: Signal) -> str:
    """A part of a message, such as ``, `peers` (policy.py:7),``; empty if the user gave the signal no name."""
    name = _name(signal)
    return f", `{name}` ({signal.origin})," if name else ""


def _name_and_type(signal: Signal) -> str:
    name = _name(signal)
    return f"`{name}` ({signal!r})" if name else repr(signal)


def _local_names(signal: Signal) -> str:
    """The sources that make this signal local, each with the user's line that reads it."""
    leaves = [one for one in _local_part(signal) if isinstance(one, Source)]
    return "the local " + " and ".join(f"signal {one.source!r} ({one.origin})" for one in leaves)


def _remedy_of(signal: Signal) -> str:
    """The remedy as text: a collective around the number that the user named, or, without a name, around the source."""
    part = _local_part(signal)
    leaf = next(one for one in part if isinstance(one, Source))
    counterpart = leaf.kind.agreed_counterpart
    label = _first_named_number(part)
    # Only numbers can be reduced, not nests of gradients.
    if leaf.type.shape == NEST and not label:
        return f"use training.{counterpart}, or reduce kf.ops.norm_squared({leaf.written}) with kf.ops.all_reduce"
    label = label or leaf.written
    return f'write kf.ops.all_reduce({label}, "mean")' + (f", or use training.{counterpart}" if counterpart else "")


def _local_part(signal: Signal) -> list[Signal]:
    """The local nodes from this signal down to the nearest collectives, which make values equal on all peers."""
    found: dict[Signal, None] = {}
    stack = [signal]
    while stack:
        node = stack.pop()
        # The walk ends at agreed nodes, since a collective has made the nodes below agreed.
        if node not in found and node.placement == "local":
            found[node] = None
            stack.extend(reversed(node.inputs))
    return list(found)


def _first_named_number(part: list[Signal]) -> str:
    """The name of the first number in ``part`` that has a name; a variable names the first node of its line."""
    lines: set[str] = set()
    for node in part:
        name = node.name or ("" if node.origin in lines else variable_at(node.origin))
        lines.add(node.origin)
        if name and node.type.shape == SCALAR and node.type.dtype != "bool":
            return name
    return ""


def _name(signal: Signal) -> str:
    return signal.name or variable_at(signal.origin)
