"""The plan: the computations that each step performs for the policies, in order, stage by stage; pure data.

A plan sees the gradients only as *gradient reductions*, the maps that reduce a nest of tensors to a number; everything
else can be computed from these reductions, so the record of a run needs no gradients. In a step the program computes
each reduction once and passes it on like a source; a replay uses the recorded number instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from kungfu.control import Rule, ScaleLearningRate
from kungfu.control.action import Rescale, operands
from kungfu.signal import NEST, SCALAR, Collective, Fold, Map, Placement, Signal, Source, topological
from kungfu.signal.sources import GivenBy, SourceKind

# An attachment may compute these two norms while it copies the gradients.
LOCAL_NORM, MEAN_NORM = "norm_squared(grads)", "norm_squared(mean_grads)"


@dataclass(frozen=True)
class MessageLayout:
    """The collectives that share one message, in the order of their floats; the message is summed over the peers.

    Attributes:
        scalars: The first collectives, with one float each.
        vectors: The following collectives, with `size` floats each.
    """

    scalars: tuple[Collective, ...] = ()
    vectors: tuple[Collective, ...] = ()

    @classmethod
    def of(cls, collectives: Sequence[Collective]) -> MessageLayout:
        """The layout of one message for collectives whose operands are known at the same time.

        A mean is sent as a sum, and a gather as a vector of zeros except for this peer's entry: all are then sums."""
        scalars = tuple(one for one in collectives if one.type.shape == SCALAR)
        return cls(scalars, tuple(one for one in collectives if one.type.shape != SCALAR))

    def floats(self, size: int) -> int:
        """The number of float32 values in this message for a cluster of `size` peers."""
        return len(self.scalars) + size * len(self.vectors)

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """All collectives, in the order of the message."""
        return (*self.scalars, *self.vectors)


@dataclass(frozen=True)
class Segment:
    """A part of a plan that runs in the steps chosen by its gates: nodes without branches, or one message.

    Attributes:
        gates: The conditions, one of which must hold in a step; empty for a segment that runs in every step.
        nodes: The nodes, each after its inputs; empty for a message.
        message: The message, if the segment consists of one.
        outputs: The nodes that later segments, gates or results read.
    """

    gates: tuple[Signal, ...]
    nodes: tuple[Signal, ...]
    message: MessageLayout | None
    outputs: tuple[Signal, ...]

    @property
    def folds(self) -> tuple[Fold, ...]:
        """The folds that run in this segment."""
        return tuple(one for one in self.nodes if isinstance(one, Fold))


@dataclass(frozen=True, eq=False)
class CompiledPolicies:
    """The computations that each step performs for the policies, in order.

    Attributes:
        rules: The rules that each step evaluates, over the nodes of the plan.
        watched_signals: The signals that a status line can show, by name; a signal that costs more than arithmetic is
            NaN in steps in which its gate is off.
        before: The segments before the gradient all-reduce; they compute the operands of `piggybacked`.
        piggybacked: The collectives that are added to the gradient all-reduce.
        after: The segments after the gradient all-reduce.
        on_rescale: The rules that a barrier evaluates instead of a step; see `kungfu.compiler.fired`.
        straggler_fractions: The speed of each peer as a fraction of the median speed, in rank order, if a policy
            measures it (`kungfu.monitor.straggler_fractions`). This speed decides which peers leave first when the job
            shrinks.
    """

    rules: tuple[Rule, ...]
    watched_signals: Mapping[str, Signal]
    before: tuple[Segment, ...]
    piggybacked: MessageLayout
    after: tuple[Segment, ...]
    on_rescale: tuple[Rule, ...] = ()
    straggler_fractions: Signal | None = None

    @property
    def nodes(self) -> tuple[Signal, ...]:
        """Every node of the plan, after its inputs."""
        return topological(self._roots())

    @property
    def folds(self) -> tuple[Fold, ...]:
        """The folds, in an order that is the same on every peer."""
        return tuple(one for one in self.nodes if isinstance(one, Fold))

    @property
    def state_names(self) -> Mapping[Fold, tuple[str, ...]]:
        """The names of the fields of each fold's state, the same on every peer and in every interpreter."""
        names: dict[Fold, tuple[str, ...]] = {}
        for index, fold in enumerate(self.folds):
            label = f"fold_{index}" + (f"_{fold.name}" if fold.name else "")
            names[fold] = tuple(f"kungfu/{label}/{field}" for field in range(len(fold.recurrence.init)))
        return names

    @cached_property
    def source_kinds(self) -> Mapping[str, SourceKind]:
        """The kind of each source that a step must offer, by name, including sources of the user's program."""
        kinds = {one.source: one.kind for one in self.nodes if isinstance(one, Source)}
        return {name: kinds[name] for name in sorted(kinds)}

    def given_by(self, giver: GivenBy) -> Mapping[str, Source]:
        """The sources whose values the program passes by calling `giver` (for example ``publish``), by name."""
        found = {one.source: one for one in self.nodes if isinstance(one, Source) and one.kind.given_by == giver}
        return {name: found[name] for name in sorted(found)}

    def rules_reading(self, source: str) -> tuple[str, ...]:
        """The names of the rules that depend on a source."""
        return tuple(one.name for one in self.rules if source in _sources_under(one))

    @cached_property
    def gradient_reductions(self) -> Mapping[str, GradientReduction]:
        """The gradient reductions of the plan, by name; a replay that has their values needs no gradients."""
        return gradient_reductions_of((*self.before, *self.after))

    @cached_property
    def only_sends_local_norm(self) -> bool:
        """True if the plan only sends the norm of this peer's gradients, so the norm may be computed while sending."""
        one = self.gradient_reductions.get(LOCAL_NORM)
        return one is None or is_only_sent(one.node, self.before)

    @property
    def max_global_batch(self) -> int:
        """The largest global batch that a change of size may cause, by the rules that act; 0 if there is no limit."""
        acting = (one.action for one in self.rules if one.mode == "acting" and isinstance(one.action, Rescale))
        return min((one.max_global_batch for one in acting if one.max_global_batch), default=0)

    @property
    def rate_factor_index(self) -> int | None:
        """The place, among `piggybacked`, of the factor on the learning rate; ``None`` if no acting rule has one."""
        acting = (one.action for one in self.rules if one.mode == "acting")
        carried = next((one.in_force for one in acting if isinstance(one, ScaleLearningRate)), None)
        return next((index for index, one in enumerate(self.piggybacked.scalars) if one is carried), None)

    @property
    def messages_per_step(self) -> int:
        """The number of messages that every step sends in addition to the gradient all-reduce."""
        return sum(1 for one in self.after if one.message and not one.gates)

    @property
    def exchanges(self) -> bool:
        """True if some step sends messages of the plan after the gradient all-reduce."""
        return any(one.message is not None for one in self.after)

    def _roots(self) -> Iterator[Signal]:
        for segment in (*self.before, *self.after):
            yield from segment.nodes
            yield from segment.message.collectives if segment.message else ()
        yield from self.piggybacked.collectives


def _sources_under(rule: Rule) -> set[str]:
    roots = (rule.gate, rule.fires, *operands(rule.action), *rule.inputs.values())
    return {one.source for one in topological(roots) if isinstance(one, Source)}


class Outcome(NamedTuple):
    """The decisions of a step's rules; TensorFlow tensors or NumPy arrays.

    Attributes:
        fired: bool, one per rule.
        targets: float32, one per rule; NaN if the rule did not fire or requests no number.
        masks: bool, one row for each rule that selects peers, in the order of the rules, with one entry per peer; false
            if the rule did not fire.
        inputs: float32, the inputs of the rules, rule by rule; NaN in steps outside the rule's gate.
        watched: float32, the values of `CompiledPolicies.watched_signals`.
        inputs_whole: int64, the whole numbers in `inputs` again, since float32 is exact only up to 2 ** 24; see
            `inputs_of_rules`.
        watched_whole: int64, the whole numbers in `watched` again.
        fractions: float32, `CompiledPolicies.straggler_fractions` as a row, one entry per peer; no row if not measured.
    """

    fired: Any
    targets: Any
    masks: Any
    inputs: Any
    watched: Any
    inputs_whole: Any
    watched_whole: Any
    fractions: Any


def inputs_of_rules(
    plan: CompiledPolicies, inputs: Iterable[Any], inputs_whole: Iterable[Any]
) -> Iterator[dict[str, float]]:
    """The inputs of each rule by name, from the vectors of an outcome; whole numbers become Python ints. The values are
    meaningless in steps outside the rule's gate."""
    numbers, wholes = iter(inputs), iter(inputs_whole)
    for rule in plan.rules:
        yield {name: _number_of(one, numbers, wholes) for name, one in rule.inputs.items()}


def _number_of(signal: Signal, numbers: Iterator[Any], wholes: Iterator[Any]) -> float:
    number = next(numbers)
    return int(next(wholes)) if is_whole(signal) else float(number)


def is_whole(signal: Signal) -> bool:
    """True if a signal is a whole number, which the outcome stores with every digit."""
    return signal.type.dtype == "int64"


# ---- gradient reductions ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class GradientReduction:
    """A number that a plan computes from a nest of gradients.

    Attributes:
        name: The name of the number among the sources and in records, as in ``norm_squared(grads)``.
        node: The map that computes the number.
        gates: The reduction is known in the steps of any of these gates; without gates, in every step.
    """

    name: str
    node: Map
    gates: tuple[Signal, ...]

    @staticmethod
    def name_of(node: Signal) -> str:
        """The name of a reduction of a nest of gradients; empty for every other node.

        >>> import kungfu as kf
        >>> from kungfu.signal import TrainingSignals
        >>> GradientReduction.name_of(kf.ops.norm_squared(TrainingSignals().mean_grads))
        'norm_squared(mean_grads)'
        """
        if not isinstance(node, Map):
            return ""
        nests = [one for one in node.operands if one.type.shape == NEST]
        if not nests or node.type.shape == NEST or not all(isinstance(one, Source) for one in node.operands):
            return ""
        return f"{node.operation.name}({', '.join(one.source for one in node.operands if isinstance(one, Source))})"

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of the sources that the reduction reads: nests of gradients."""
        return tuple(one.source for one in self.node.operands if isinstance(one, Source) and one.type.shape == NEST)

    @property
    def placement(self) -> Placement:
        """The placement: "local" if each peer has a separate value, "agreed" if the value is equal on all peers."""
        return self.node.placement


def gradient_reductions_of(segments: Iterable[Segment]) -> Mapping[str, GradientReduction]:
    """The gradient reductions in these segments, by name."""
    found: dict[str, GradientReduction] = {}
    always: set[str] = set()
    for segment in segments:
        for node in segment.nodes:
            name = GradientReduction.name_of(node)
            if not name or not isinstance(node, Map):
                continue
            # A gate that depends on a message is not known when the reductions are computed.
            if not segment.gates or any(one.known == "after" for one in segment.gates):
                always.add(name)
            known = found[name].gates if name in found else ()
            gates = dict.fromkeys((*known, *segment.gates))
            found[name] = GradientReduction(name, node, () if name in always else tuple(gates))
    return found


def is_only_sent(node: Signal, before: Iterable[Segment]) -> bool:
    """True if the nodes before the gradient all-reduce never compute with this number, but pass it on unchanged, at
    most through a `where`. Then only the number's position in that message must be known, and not its value."""
    chosen = {node}
    for segment in before:
        for one in segment.nodes:
            used = [index for index, operand in enumerate(one.inputs) if operand in chosen]
            # The condition of a `where`, its first operand, must be known.
            if used and isinstance(one, Map) and one.operation.name == "where" and 0 not in used:
                chosen.add(one)
            elif used:
                return False
    return True
