"""Triggers: when a rule may look, and the actions that can hang on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from kungfu.control.rule import Keep, Rule, call_rule, rescale_rule
from kungfu.errors import PolicyError
from kungfu.signal import Constant, Signal, every_steps, is_gate
from kungfu.signal.operation import SignalType

__all__ = ["Trigger", "always", "every"]


@dataclass(frozen=True, eq=False)
class Trigger:
    """When a rule may fire: in the steps of `gate` (a function of step and size), where `predicate` holds."""

    gate: Signal
    predicate: Signal

    def when(self, predicate: Signal) -> Trigger:
        """This trigger, and only where an agreed bool signal is true.

        A predicate of step and size alone narrows the gate, so that nothing is computed off its steps; any other one
        is looked at in the steps of the gate.
        """
        if not isinstance(predicate, Signal) or predicate.type != SignalType("bool"):
            raise PolicyError(f".when({predicate!r}): takes a bool signal; compare first, as in .when(noise > 100)")
        if is_gate(predicate):
            return replace(self, gate=_both(self.gate, predicate))
        return replace(self, predicate=_both(self.predicate, predicate))

    def rescale(self, peers: Signal | float, *, keep: Keep = "local_batch_size") -> Rule:
        """Ask for `peers` peers (agreed; rounded; held between the job's limits; NaN asks for nothing).

        `keep` says which batch size stays as it is. Fires only while no change is pending and for a size that is
        neither the present nor the last refused one. Cost: no message. Raises `PolicyError` for another `keep`, and at
        `attach` for a local `peers`.

        >>> every(50).rescale(4).action.keep
        'local_batch_size'
        """
        return rescale_rule(peers, gate=self.gate, when=self.predicate, keep=keep)

    def call(self, fn: Callable[..., Any], *signals: Signal | float) -> Rule:
        """Call ``fn(control, *values)`` in Python on every peer, between two steps, with the values of agreed scalars.

        The escape hatch for what the vocabulary cannot say: listing 1 of Mai et al., *Adaptive Distributed Training
        of Deep Learning Models*. The values are floats; `control` is a `kungfu.control.hook.Control`, by which the
        function may ask for another size. Fires only while no change is pending. Cost: no message. Raises
        `PolicyError` for what cannot be called so, and at `attach` for a local signal or a vector.

        >>> list(every(50).call(lambda control, step: control.rescale(step), 3).saw)
        ['step']
        """
        return call_rule(fn, signals, gate=self.gate, when=self.predicate)


def always() -> Trigger:
    """The trigger that is on in every step."""
    return Trigger(Constant(True), Constant(True))


def every(steps: int) -> Trigger:
    """The trigger that is on in every so many steps: ``step % steps == 0``.

    >>> every(50).gate.placement
    'agreed'
    """
    return Trigger(every_steps(steps), Constant(True))


def _both(one: Signal, other: Signal) -> Signal:
    return other if isinstance(one, Constant) and one.value is True else one & other
