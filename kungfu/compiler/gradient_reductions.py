"""Gradient reductions: a plan sees the gradients only as these numbers, so the record of a run needs no gradients.

The rest of the plan can be computed from the values of the maps that reduce a nest of tensors to a number. In a step
the program computes each reduction once and passes it on like a source; a replay uses the recorded number instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kungfu.signal import NEST, Map, Placement, Signal, Source

if TYPE_CHECKING:
    from kungfu.compiler.compiled_policies import Segment

# An attachment computes these two while it copies.
LOCAL_NORM, MEAN_NORM = "norm_squared(grads)", "norm_squared(mean_grads)"


@dataclass(frozen=True, eq=False)
class GradientReduction:
    """A number that a plan computes from a nest of gradients.

    Attributes:
        name: Its name among the sources and in records, as in ``norm_squared(grads)``.
        node: The map that computes it.
        gates: The reduction is known in the steps of any of these gates; without gates, in every step.
    """

    name: str
    node: Map
    gates: tuple[Signal, ...]

    @property
    def sources(self) -> tuple[str, ...]:
        """The nests that the reduction reads."""
        return tuple(one.source for one in self.node.operands if isinstance(one, Source) and one.type.shape == NEST)

    @property
    def placement(self) -> Placement:
        """The placement: local if each peer has a separate value, agreed if all have the same."""
        return self.node.placement


def reduction_name(node: Signal) -> str:
    """The name of a reduction of a nest of gradients; empty for every other node.

    >>> import kungfu as kf
    >>> from kungfu.signal import TrainingSignals
    >>> reduction_name(kf.ops.norm_squared(TrainingSignals().mean_grads))
    'norm_squared(mean_grads)'
    """
    if not isinstance(node, Map):
        return ""
    nests = [one for one in node.operands if one.type.shape == NEST]
    if not nests or node.type.shape == NEST or not all(isinstance(one, Source) for one in node.operands):
        return ""
    return f"{node.operation.name}({', '.join(one.source for one in node.operands if isinstance(one, Source))})"


def gradient_reductions_of(segments: Iterable[Segment]) -> Mapping[str, GradientReduction]:
    """The gradient reductions in these segments, by name."""
    found: dict[str, GradientReduction] = {}
    always: set[str] = set()
    for segment in segments:
        for node in segment.nodes:
            name = reduction_name(node)
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
    """True if no node before the message computes with a number, so that only its position in the message must be
    known: it is sent unchanged, or a `where` chooses it."""
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
