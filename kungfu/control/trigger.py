"""Triggers: when a rule may look, and the actions that can hang on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from kungfu.control import rule as rules
from kungfu.control.action import Checkpoint, Keep, Stop, ramp
from kungfu.control.rate_limit import NO_COOLDOWN, Cooldown, rescale_cost
from kungfu.control.rule import Rule
from kungfu.errors import PolicyError
from kungfu.signal import Constant, Signal, Source, every_steps, fold, is_gate
from kungfu.signal.operation import SignalType
from kungfu.signal.whole_number import is_whole_number

TriggerEvent = Literal["step", "rescale"]


@dataclass(frozen=True, eq=False)
class Trigger:
    """The steps in which a rule may fire.

    Attributes:
        gate: The steps in which it is looked at: a function of step and size.
        predicate: The condition that must hold in them.
        pause: The cooldown after it fired.
        event: The event at which it is looked at: a step, or a barrier that changes the size.
    """

    gate: Signal
    predicate: Signal
    pause: Cooldown = NO_COOLDOWN
    event: TriggerEvent = "step"

    # ---- when ------------------------------------------------------------------------------------------------------

    def when(self, predicate: Signal) -> Trigger:
        """This trigger, and only where an agreed bool signal is true.

        A predicate of step and size alone narrows the gate, so that nothing is computed off its steps; any other one
        is looked at in the steps of the gate.

        Args:
            predicate: The condition, in an agreed bool signal.

        Raises:
            PolicyError: The predicate is no bool signal.
        """
        if is_gate(_checked(predicate, method="when")):
            return replace(self, gate=_both(self.gate, predicate))
        return replace(self, predicate=_both(self.predicate, predicate))

    def after(self, step: int) -> Trigger:
        """This trigger, and only in the steps after this one: the first has the number ``step + 1``.

        Args:
            step: The number of a step, at least 0.

        Raises:
            PolicyError: It is no such number.

        >>> every(10).after(100).gate.placement
        'agreed'
        """
        if not is_whole_number(step, least=0):
            raise PolicyError(f".after({step!r}): takes the number of a step, a whole number of at least 0")
        return self.when(Source("step") > step)

    def until(self, predicate: Signal) -> Trigger:
        """This trigger up to the first of its steps in which an agreed bool signal is true, and never again.

        The signal is looked at in the steps of the gate as written so far.

        Cost:
            One truth value of state, no message.

        On rescale:
            The state is kept.
        """
        _checked(predicate, method="until")
        has_held = fold(lambda seen, now: seen | now, False, predicate)
        return replace(self, predicate=_both(self.predicate, ~replace(has_held, gate=self.gate)))

    def cooldown(self, *, steps: int = 0, seconds: float = 0.0) -> Trigger:
        """This trigger, but not within this many steps, nor this many seconds, after its rule last fired.

        Args:
            steps: Steps, a whole number of at least 0.
            seconds: Seconds of the job's clock, at least 0.

        Raises:
            PolicyError: A number is negative.

        Cost:
            Two numbers of state; with `seconds` one number more, and one float on the gradient all-reduce, by which all
            peers take the time of rank 0.

        On rescale:
            The count is kept.
        """
        return replace(self, pause=Cooldown(steps, seconds))

    def payback(self, gain_s: Signal | float, *, horizon: Signal | float, at_first_s: float = 0.0) -> Trigger:
        """This trigger, but only if ``gain_s * horizon`` exceeds the measured cost of a rescale.

        The cost is how long the last rescale stopped the peers, on average over those that went through one. A gain
        that is NaN does not pay.

        Args:
            gain_s: Seconds that each step is predicted to become shorter, agreed.
            horizon: Steps over which that has to pay, agreed.
            at_first_s: The cost before the first rescale, seconds.

        Cost:
            Two floats on the gradient all-reduce.

        >>> from kungfu.signal import TrainingSignals
        >>> training = TrainingSignals()
        >>> str(every(50).payback(0.01, horizon=1000 - training.step).predicate.type)
        'bool'
        """
        cost_s = rescale_cost(at_first_s=at_first_s).named("rescale_cost_s")
        return replace(self, predicate=_both(self.predicate, gain_s * (horizon * 1.0) > cost_s))

    # ---- what ------------------------------------------------------------------------------------------------------

    def rescale(
        self, peers: Signal | float, *, keep: Keep = "local_batch_size", max_global_batch: int | None = None
    ) -> Rule:
        """Requests a size of the cluster.

        Fires for a size that is neither the present nor the last refused one. While peers are on their way, it fires
        for another size than the one that they come for, which it replaces; the present size takes back what this rule
        itself has wanted. It waits one step where the barrier may change the cluster (`TrainingSignals.change_due`).

        Args:
            peers: Peers, agreed; rounded, and held between the job's limits; NaN requests nothing.
            keep: The batch size that stays as it is.
            max_global_batch: With a fixed local batch, the most samples that a change of size makes of a step: with
                more peers than it allows, the global batch stays at this number, and with fewer the local one is what
                it was. A batch that is larger, since a rule set it or the job began with it, stays as well, and grows
                no more. Changes of size that a hook or somebody outside requests keep to it too. ``None``: no limit.

        Raises:
            PolicyError: `max_global_batch` is no number of samples, or the global batch is kept anyway.

        Cost:
            No message, 13 bytes of state.
        """
        return rules.rescale_rule(peers, trigger=self, keep=keep, max_global_batch=max_global_batch)

    def set_global_batch_size(self, samples: Signal | float) -> Rule:
        """Requests steps of `samples` samples over all peers.

        Fires for another number than the present one; where the barrier may change the cluster, a step later.

        Args:
            samples: Agreed; rounded; at least one per peer. NaN, and a number that is not above 0, request nothing.

        Cost:
            No message.
        """
        return rules.batch_rule(samples, trigger=self)

    def set_learning_rate(
        self, rate: Signal | float, *, over_steps: float | None = None, over_samples: float | None = None
    ) -> Rule:
        """Requests a learning rate, at once or at the end of a straight line.

        Fires for another rate than the present one and than the one that this rule requested last; where the barrier
        may change the cluster, a step later. An optimizer's own schedule stays in force, multiplied; see
        `kf.control.SetLearningRate` for the formula.

        Args:
            rate: The learning rate, agreed; NaN, and a number that is not above 0, request nothing.
            over_steps: Length of the ramp in steps.
            over_samples: Length of the ramp in samples over all peers.

        Raises:
            PolicyError: Both lengths are given, or one is negative.

        Cost:
            No message.
        """
        length, unit = ramp(over_steps=over_steps, over_samples=over_samples)
        return rules.rate_rule(rate, trigger=self, ramp_length=length, unit=unit)

    def stop(self) -> Rule:
        """Ends the training on all peers; joining peers are dismissed. Cost: no message."""
        return rules.plain_rule(Stop(), trigger=self, name="stop")

    def checkpoint(self) -> Rule:
        """Writes a checkpoint of the shared state after the next barrier. Cost: no message."""
        return rules.plain_rule(Checkpoint(), trigger=self, name="checkpoint")

    def evict(self, mask: Signal) -> Rule:
        """Removes the peers for which `mask` (agreed, bool, one entry a peer) holds. Fires where a peer is marked and
        the job's fewest peers would remain; peers on their way come nevertheless."""
        return rules.mask_rule(mask, trigger=self, kind="evict")

    def replace(self, mask: Signal) -> Rule:
        """Replaces each marked peer when a new one is ready.

        Fires only while no peer is under exchange, and where at least one peer is marked and not all are; it may fire
        while the job grows: the same wave of joiners serves both. Where no peer came for the last exchange, as for want
        of a free slot, it is not requested again before the view changes or a host with free slots comes.

        Args:
            mask: Agreed, bool, one entry a peer.

        Raises:
            PolicyError: It is no such vector.
        """
        return rules.mask_rule(mask, trigger=self, kind="replace")

    def call(self, fn: Callable[..., Any], *signals: Signal | float) -> Rule:
        """Calls ``fn(control, *values)`` in Python on every peer, between two steps, with the values of agreed scalars.

        This is the escape hatch for decisions that the vocabulary cannot express. By `control`, a
        `kungfu.control.hook.Control`, the function requests what rules request: a size, a batch, a rate, peers to let
        go, a checkpoint, the end, and another value of what the program has registered. Only the requests of rank 0's
        call count. A size that peers are on their way for already changes nothing, and another one takes its place.
        Where the barrier may change the cluster, it is called a step later.

        The barrier comes at the end of the step after the one in which the rule fired, and the rule does not fire again
        before: ``always()`` calls in every second step. Rules that fire meanwhile are answered by the same barrier: of
        two sizes the one that was requested first wins, and the record shows the other one.

        Args:
            fn: The function; what it returns is not looked at, and an error that it raises ends the job.
            *signals: Agreed scalars. Whole numbers arrive as int, all others as float.

        Raises:
            PolicyError: The function cannot be called so, or a signal is local.

        Cost:
            No message.

        Reference:
            Listing 1 of Mai et al., *Adaptive Distributed Training of Deep Learning Models*; ``examples/listing_1.py``
            runs it.
        """
        return rules.call_rule(fn, signals, trigger=self)


@dataclass(frozen=True, eq=False)
class AtRescale:
    """The trigger that is on in every barrier in which the size changes, where `predicate` holds."""

    predicate: Signal

    def when(self, predicate: Signal) -> AtRescale:
        """This trigger, and only where a bool signal is true."""
        return replace(self, predicate=_both(self.predicate, _checked(predicate, method="when")))

    def set_global_batch_size(self, samples: Signal | float) -> Rule:
        """Sets steps of `samples` samples over all peers (rounded; at least one per peer; NaN, 0: as it is)."""
        return rules.batch_rule(samples, trigger=self._trigger())

    def set_learning_rate(
        self, rate: Signal | float, *, over_steps: float | None = None, over_samples: float | None = None
    ) -> Rule:
        """Continues with the learning rate `rate`, at once or at the end of a ramp; as `Trigger.set_learning_rate`."""
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


def always() -> Trigger:
    """The trigger that is on in every step."""
    return Trigger(Constant(True), Constant(True))


def every(steps: int) -> Trigger:
    """The trigger that is on in every n-th step: ``step % steps == 0``.

    Raises:
        PolicyError: `steps` is no whole number of at least 1.

    >>> every(50).gate.placement
    'agreed'
    """
    return Trigger(every_steps(steps), Constant(True))


def _both(one: Signal, other: Signal) -> Signal:
    """The conjunction of both; a constant truth is dropped."""
    return other if isinstance(one, Constant) and one.value is True else one & other


def _checked(predicate: object, *, method: str) -> Signal:
    if isinstance(predicate, bool):
        raise PolicyError(
            f".{method}({predicate!r}): takes a bool signal; compare first, as in .{method}(noise > 100); Python "
            f"compared numbers that it knew already, so this would be {predicate!r} in every step"
        )
    if not isinstance(predicate, Signal) or predicate.type != SignalType("bool"):
        raise PolicyError(f".{method}({predicate!r}): takes a bool signal; compare first, as in .{method}(noise > 100)")
    return predicate
