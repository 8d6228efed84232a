"""Rules on a rescale: batch size and learning rate chosen from the new size, inside the barrier that changes it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kungfu.control import rule as rules
from kungfu.control.action import ramp
from kungfu.control.rule import Rule
from kungfu.control.trigger import Trigger, both
from kungfu.errors import PolicyError
from kungfu.signal import Constant, Signal
from kungfu.signal.operation import SignalType


@dataclass(frozen=True, eq=False)
class AtRescale:
    """The trigger that is on in every barrier in which the size changes, where `predicate` holds."""

    predicate: Signal

    def when(self, predicate: Signal) -> AtRescale:
        """This trigger, and only where a bool signal is true."""
        if not isinstance(predicate, Signal) or predicate.type != SignalType("bool"):
            raise PolicyError(f".when({predicate!r}): takes a bool signal; compare first, as in .when(size > 4)")
        return replace(self, predicate=both(self.predicate, predicate))

    def set_global_batch_size(self, samples: Signal | float) -> Rule:
        """Go on with steps of `samples` samples over all peers (rounded; one per peer at least; NaN, 0: as it is)."""
        return rules.batch_rule(samples, trigger=self._trigger())

    def set_learning_rate(
        self, rate: Signal | float, *, over_steps: float | None = None, over_samples: float | None = None
    ) -> Rule:
        """Go on with the learning rate `rate`, at once or at the end of a ramp; as `Trigger.set_learning_rate`."""
        length, unit = ramp(over_steps=over_steps, over_samples=over_samples)
        return rules.rate_rule(rate, trigger=self._trigger(), ramp_length=length, unit=unit)

    def _trigger(self) -> Trigger:
        return Trigger(Constant(True), self.predicate, event="rescale")


def on_rescale() -> AtRescale:
    """The trigger that is on when the size of the cluster changes, in the barrier, before the next step.

    Conditions and targets of its rules are made of numbers that the barrier has: `size` (the new one), `previous_size`,
    `step`, `global_batch_size` (with the rescale's `keep` applied; for a learning rate, with the batch that these rules
    set as well), `previous_global_batch_size`, `base_size` and `base_global_batch_size` (from which a batch can be
    chosen that depends on the size alone), `learning_rate` (where a ramp is under way: the rate it leads to),
    `min_size`, `max_size`, constants, and maps of them.

    Raises:
        PolicyError: At `attach`, for any other signal.

    Cost:
        Nothing in any step.

    >>> from kungfu.signal import TrainingSignals
    >>> training = TrainingSignals()
    >>> factor = training.global_batch_size / training.previous_global_batch_size
    >>> on_rescale().set_learning_rate(training.learning_rate * factor, over_steps=100).name
    'set_learning_rate'
    """
    return AtRescale(Constant(True))
