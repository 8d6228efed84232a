"""Triggers: the steps in which a rule may fire, and the methods that make a rule of a trigger and an action."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from kungfu.control import rule as rules
from kungfu.control.action import Checkpoint, Keep, Restore, Stop, checkpoint_name, ramp, ramp_to
from kungfu.control.rate_limit import NO_COOLDOWN, Cooldown, rescale_cost
from kungfu.control.rule import Rule
from kungfu.errors import PolicyError
from kungfu.signal import Constant, Signal, Source, every_steps, fold, is_gate
from kungfu.signal.fold.fold import labelled
from kungfu.signal.operation import SignalType
from kungfu.signal.whole_number import is_whole_number

TriggerEvent = Literal["step", "rescale"]


@dataclass(frozen=True, eq=False)
class Trigger:
    """The steps in which a rule may fire.

    Attributes:
        gate: The steps in which the rule is evaluated: a function of step and size.
        predicate: The condition that must hold in these steps.
        pause: The cooldown after a firing.
        event: The event at which the rule is evaluated: a step, or a barrier that changes the size.
    """

    gate: Signal
    predicate: Signal
    pause: Cooldown = NO_COOLDOWN
    event: TriggerEvent = "step"

    # ---- when ------------------------------------------------------------------------------------------------------

    def when(self, predicate: Signal) -> Trigger:
        """This trigger, restricted to steps in which a bool signal, equal on all peers, is true.

        A predicate of step and size alone narrows the gate: in other steps nothing is computed for the rule. Any other
        predicate is evaluated in the steps of the gate.

        Args:
            predicate: The condition, a bool signal that is equal on all peers.

        Raises:
            PolicyError: The predicate is not a bool signal.
        """
        if is_gate(_checked(predicate, method="when")):
            return replace(self, gate=_both(self.gate, predicate))
        return replace(self, predicate=_both(self.predicate, predicate))

    def after(self, step: int) -> Trigger:
        """This trigger, restricted to the steps after `step`: from ``step + 1`` on.

        Args:
            step: The number of a step, at least 0.

        Raises:
            PolicyError: `step` is not a whole number of at least 0.

        >>> every(10).after(100).gate.placement
        'agreed'
        """
        if not is_whole_number(step, least=0):
            raise PolicyError(f".after({step!r}): takes the number of a step, a whole number of at least 0")
        return self.when(Source("step") > step)

    def until(self, predicate: Signal) -> Trigger:
        """This trigger until `predicate` is first true in one of its steps; from that step on, the trigger is off.

        `predicate`, a bool signal that is equal on all peers, is evaluated in the steps of this trigger's gate.

        Cost:
            One truth value of state, no message.

        On rescale:
            The state is kept.
        """
        _checked(predicate, method="until")
        has_held = labelled(fold(lambda seen, now: seen | now, False, predicate), label="has_held")
        return replace(self, predicate=_both(self.predicate, ~replace(has_held, gate=self.gate)))

    def cooldown(self, *, steps: int = 0, seconds: float = 0.0) -> Trigger:
        """This trigger, except within `steps` steps, or `seconds` seconds, of the last firing of its rule.

        Args:
            steps: The number of steps without a further firing, a whole number of at least 0.
            seconds: The time without a further firing, in seconds of the job's clock, at least 0.

        Raises:
            PolicyError: A number is negative.

        Cost:
            Two numbers of state; with `seconds`, a third number, and one float on the gradient all-reduce, which
            carries the time of rank 0.

        On rescale:
            The time since the last firing, in steps and seconds, is kept.
        """
        return replace(self, pause=Cooldown(steps, seconds))

    def payback(self, gain_s: Signal | float, *, horizon: Signal | float, at_first_s: float = 0.0) -> Trigger:
        """This trigger, restricted to steps in which ``gain_s * horizon`` exceeds the measured cost of a rescale.

        The cost is the time for which the last rescale stopped the peers, as a mean over the peers present before and
        after that rescale. A gain of NaN does not pay off.

        Args:
            gain_s: The predicted reduction of the time of a step, in seconds, equal on all peers.
            horizon: The number of steps in which the rescale has to pay off, equal on all peers.
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
        self,
        peers: Signal | float,
        *,
        keep: Keep = "local_batch_size",
        max_global_batch: int | None = None,
        batch: Signal | float | None = None,
        rate: Signal | float | None = None,
        over_steps: float | None = None,
        over_samples: float | None = None,
    ) -> Rule:
        """Requests a size of the cluster, and with it, as one decision, a global batch size and a learning rate.

        Fires for a size that is neither the present size nor the size that was refused last. While peers are joining,
        the rule fires for a size other than the pending size, and replaces the pending size; the present size cancels
        an earlier request of this rule. If the barrier of the step may change the cluster
        (`TrainingSignals.change_due`), the rule waits for the next step.

        `batch` and `rate` come into force in the barrier in which the job has the requested size: at once if no peer
        has to join, and otherwise together with the peers. If fewer peers come, or the job gets another size first,
        neither comes into force: the batch is then that of `keep`, the rate stays, and the record says so. With the
        requested size in place, the rule fires for another batch or rate, which no budget limits.

        Args:
            peers: The size, equal on all peers; rounded, and clipped to the job's limits; NaN requests nothing.
            keep: The batch size that is kept, unless `batch` comes into force.
            max_global_batch: With a fixed local batch, the largest global batch that a change of size may cause. At
                larger sizes, the global batch remains this number; with fewer peers, the local batch is restored. A
                larger batch, set by a rule or at the start, is kept and does not grow. The limit also applies to
                changes of size requested by a hook or from outside. ``None``: no limit.
            batch: The global batch size in samples, equal on all peers; rounded, at most an epoch, and at least one per
                peer. While it is NaN or not above 0, nothing is requested.
            rate: The learning rate, equal on all peers. While it is NaN or not above 0, nothing is requested.
            over_steps: Length of the ramp to `rate` in steps; see `kf.control.SetLearningRate`.
            over_samples: Length of the ramp to `rate` in samples over all peers.

        Raises:
            PolicyError: `max_global_batch` is not a number of samples, or the global batch is kept anyway; or a ramp
                is given without a rate, or with two lengths.

        Cost:
            No message, 13 bytes of state.

        >>> from kungfu.signal import TrainingSignals
        >>> training = TrainingSignals()
        >>> growth = every(50).when(training.step > 100).rescale(8, batch=512, rate=0.4, over_steps=100)
        >>> list(growth.inputs)[-2:]
        ['target_rate', 'target']
        """
        length, unit = ramp_to(rate, over_steps=over_steps, over_samples=over_samples, method="rescale")
        rule = rules.rescale_rule(
            peers, trigger=self, keep=keep, max_global_batch=max_global_batch,
            batch=batch, rate=rate, ramp_length=length, unit=unit,
        )  # fmt: skip
        if batch is None and rate is None:
            return rule
        return replace(rule, fires=rule.fires & rules.is_decided(rule.action))

    def set_global_batch_size(self, samples: Signal | float) -> Rule:
        """Requests a global batch of `samples` samples.

        Fires for a number other than the present number. If the barrier of the step may change the cluster, the rule
        waits for the next step.

        Args:
            samples: The number, equal on all peers; rounded, and at least one per peer. NaN, or a number not above 0,
                requests nothing.

        Cost:
            No message.
        """
        return rules.batch_rule(samples, trigger=self)

    def set_learning_rate(
        self, rate: Signal | float, *, over_steps: float | None = None, over_samples: float | None = None
    ) -> Rule:
        """Requests a learning rate that is reached at once, or at the end of a linear ramp.

        Fires for a rate that is neither the present rate nor the rate that this rule requested last. If the barrier of
        the step may change the cluster, the rule waits for the next step. A schedule of the optimizer continues, times
        a factor; see `kf.control.SetLearningRate` for the formula.

        Args:
            rate: The learning rate, equal on all peers; NaN, or a number not above 0, requests nothing.
            over_steps: Length of the ramp in steps.
            over_samples: Length of the ramp in samples over all peers.

        Raises:
            PolicyError: Both lengths are given, or a length is negative.

        Cost:
            No message.
        """
        length, unit = ramp(over_steps=over_steps, over_samples=over_samples)
        return rules.rate_rule(rate, trigger=self, ramp_length=length, unit=unit)

    def set(self, name: str, value: Signal | float) -> Rule:
        """Sets a number of the training state: the optimizer's momentum or weight decay, or a registered value.

        Fires for a number other than the one that this rule requested last. The decision of the barrier carries rank
        0's number, which is in force on all peers from the next step on, on joiners and after a resume too. The config
        of the optimizer, and of a model that Keras saves, still has the number that the program gave.

        Args:
            name: "momentum" or "weight_decay" of the one attached optimizer, which must have it as a number (a momentum
                above 0); or the name of a shared value that the program registers by ``training.register``: a number.
            value: The number, equal on all peers; rounded for a whole number; NaN, or an infinite number, requests
                nothing.

        Raises:
            PolicyError: `name` is not a name. At `attach`, or in the first step: there is no such number.

        Cost:
            No message, apart from those of a registered value at barriers; a float and a truth value of state.

        >>> from kungfu.signal import TrainingSignals
        >>> training = TrainingSignals()
        >>> every(100).set("momentum", 1 - 0.1 / (1 + training.step / 1000)).action.name
        'momentum'
        """
        return rules.variable_rule(value, variable=name, trigger=self)

    def synchronise(self, *, every: Signal | int) -> Rule:
        """Requests an average of models every `every` steps, in a run that averages models.

        The program attaches with ``sync=kf.control.average_models(every=...)``, which gives the first number. Fires for
        a number other than the one that this rule requested last. The new number counts from the average after which
        the request is decided. With `every` = 1 and an optimizer that is linear in the gradient, the average of models
        is the model that the mean of gradients gives, so a run may begin so and average less often later.

        Args:
            every: H, the number of steps from one average to the next, equal on all peers; rounded; NaN, or a number
                not above 0, requests nothing.

        Raises:
            PolicyError: `every` is a number that is not whole, or below 1; at `attach`, the run averages gradients.

        Cost:
            No message; a float and a truth value of state.

        Reference:
            Lin et al., 2020, *Don't Use Large Mini-Batches, Use Local SGD*, section 3 (post-local SGD).

        >>> every(1).after(1000).synchronise(every=16).name
        'synchronise'
        """
        return rules.synchronise_rule(every, trigger=self)

    def stop(self) -> Rule:
        """Ends the training on all peers; joining peers are dismissed. Cost: no message."""
        return rules.plain_rule(Stop(), trigger=self, name="stop")

    def checkpoint(self, name: str = "") -> Rule:
        """Writes a checkpoint of the state after the next barrier, numbered by its step.

        Args:
            name: A name for the checkpoint, such as "best": a folder beside the numbered ones. A new checkpoint of that
                name replaces the previous one at once, when it is complete. A named checkpoint is kept in addition to
                the newest N checkpoints of ``kungfu-run --keep N``.

        Raises:
            PolicyError: The name cannot be that of a folder, or belongs to kungfu.

        Cost:
            No message.
        """
        name = checkpoint_name(name, method="checkpoint") if name else ""
        return rules.plain_rule(Checkpoint(name), trigger=self, name="checkpoint")

    def restore(self, name: str) -> Rule:
        """Restores the model and the optimizers from the newest checkpoint of a name, after the next barrier.

        All peers then have the weights, the layers' statistics and the optimizers' slots of that checkpoint, bit for
        bit. Everything else continues: the position in the data, the numbers of steps (also those that optimizers
        count, and that schedules follow), batch, learning rate and ramp, the folds of policies, seeds, and registered
        values. With `stop` in the same step, the model is restored before training ends. If the checkpoint is missing,
        damaged or of another model, no peer changes anything; the record says so, and training continues. Once
        training is over, this is an error.

        Args:
            name: The name, as given to `checkpoint`.

        Raises:
            PolicyError: The name cannot be that of a checkpoint.

        Cost:
            In a step, no message. In each barrier a message of 1 KB, and when a checkpoint is restored, one with the
            weights and slots, which rank 0 reads and sends.
        """
        return rules.plain_rule(Restore(checkpoint_name(name, method="restore")), trigger=self, name="restore")

    def evict(self, mask: Signal) -> Rule:
        """Removes the peers for which `mask` is true: a bool vector by rank, equal on all peers. Fires if a peer is
        marked and at least the job's minimum of peers would remain; pending joiners still join."""
        return rules.mask_rule(mask, trigger=self, kind="evict")

    def replace(self, mask: Signal) -> Rule:
        """Replaces each marked peer when a new peer is ready.

        Fires only if no earlier replacement is pending, and at least one peer is marked and not all are. The rule may
        fire while the job grows: the new peers join together with the other joiners. If no peer came for the last
        replacement, for example because no slot was free, the rule does not fire again before the view changes or a
        host with free slots joins.

        Args:
            mask: A bool vector with one entry per peer, equal on all peers.

        Raises:
            PolicyError: `mask` is not of this type.
        """
        return rules.mask_rule(mask, trigger=self, kind="replace")

    def call(self, fn: Callable[..., Any], *signals: Signal | float) -> Rule:
        """Calls ``fn(control, *values)`` in Python on every peer, between two steps, with the values of `signals`.

        This is the escape hatch for decisions that the vocabulary cannot express. Through `control`, a
        `kungfu.control.hook.Control`, the function can make the same requests as rules: a size, a batch, a rate, peers
        to remove or replace, a checkpoint to write or to restore, the end of the training, or new content for a
        registered value. Only the requests of rank 0's call count. A request for the pending size changes nothing;
        another size replaces it. If the barrier of the step may change the cluster, the function is called in the next
        step instead.

        The barrier follows at the end of the step after the firing, and the rule does not fire again before the
        barrier: with ``always()``, the function is called in every second step. The same barrier handles rules that
        fire in the meantime: of two requested sizes the first wins, and the record shows the other.

        Args:
            fn: The function; its return value is ignored, and an error that it raises ends the job.
            *signals: Scalars that are equal on all peers. Whole numbers arrive as int, all others as float.

        Raises:
            PolicyError: The function does not accept these arguments, or a signal is local.

        Cost:
            No message.

        Reference:
            Listing 1 of Mai et al., *Adaptive Distributed Training of Deep Learning Models*; ``examples/listing_1.py``
            runs it.
        """
        return rules.call_rule(fn, signals, trigger=self)


@dataclass(frozen=True, eq=False)
class AtRescale:
    """The trigger that is on in every barrier that changes the size, if `predicate` is true."""

    predicate: Signal

    def when(self, predicate: Signal) -> AtRescale:
        """This trigger, restricted to barriers in which a bool signal is true."""
        return replace(self, predicate=_both(self.predicate, _checked(predicate, method="when")))

    def set_global_batch_size(self, samples: Signal | float) -> Rule:
        """Sets a global batch of `samples` samples, rounded, and at least one per peer; NaN or 0 changes nothing."""
        return rules.batch_rule(samples, trigger=self._trigger())

    def set_learning_rate(
        self, rate: Signal | float, *, over_steps: float | None = None, over_samples: float | None = None
    ) -> Rule:
        """Sets the learning rate to `rate`, at the end of the ramp if there is one; see `Trigger.set_learning_rate`."""
        length, unit = ramp(over_steps=over_steps, over_samples=over_samples)
        return rules.rate_rule(rate, trigger=self._trigger(), ramp_length=length, unit=unit)

    def _trigger(self) -> Trigger:
        return Trigger(Constant(True), self.predicate, event="rescale")


def on_rescale() -> AtRescale:
    """The trigger that is on in every barrier that changes the size of the cluster, before the next step.

    Conditions and targets of its rules may use only constants, numbers known to the barrier, and functions of these:
    `step`, `size` (the new size), `previous_size`, `min_size`, `max_size`, `global_batch_size`,
    `previous_global_batch_size`, `base_size`, `base_global_batch_size` and `learning_rate`. `global_batch_size` already
    reflects the rescale's `keep` and, in a rule for the learning rate, the batch set by other rules on this rescale.
    From `base_global_batch_size`, the batch that was set for `base_size` peers, a rule can compute a batch that depends
    on the size alone. During a ramp, `learning_rate` is the ramp's final rate.

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


def learning_rate(factor: Signal | float) -> Rule:
    """Multiplies the learning rate by `factor` in every step, in the graph and without a barrier.

    The update of a step uses the optimizer's rate times rank 0's last usable factor, which the message of the step
    carries, so all peers use the same number, bit for bit. A factor of numbers that are known before the message, such
    as `step`, `epoch` or `size`, is that of the same step; any other factor, such as one of the loss, that of the step
    before, and 1 in the first step. A factor that is not finite or not above 0 changes nothing: the last one stays,
    which is reported once.

    The factor multiplies the rate that is there otherwise: of the optimizer or its schedule, of a callback, or of
    `set_learning_rate` and its ramp. Outside the step, the optimizer's rate, and the signal `learning_rate`, are
    without the factor; the signal ``learning_rate_factor``, in the metrics of each step, is the factor in force.

    Args:
        factor: The factor, a number above 0, equal on all peers.

    Raises:
        PolicyError: `factor` is not one number. At `attach`: it may differ between peers, or two policies have a
            factor. In the first step: the optimizer does not use its rate.
        UsageError: At `attach`: several optimizers are attached.

    Cost:
        One float on the gradient all-reduce; 7 bytes of state, or 11 if the factor is known before the message.

    On rescale:
        The factor is kept: joiners receive it, checkpoints contain it, and a step that is done again has the same one.

    >>> import kungfu as kf
    >>> from kungfu.signal import TrainingSignals
    >>> training = TrainingSignals()
    >>> slower = kf.ops.maximum(1 - training.step / 1000, 0.01)
    >>> learning_rate(slower).name
    'learning_rate'
    """
    return rules.factor_rule(factor, trigger=always())


def always() -> Trigger:
    """The trigger that is on in every step."""
    return Trigger(Constant(True), Constant(True))


def every(steps: int) -> Trigger:
    """The trigger that is on in every `steps`-th step: ``step % steps == 0``.

    Raises:
        PolicyError: `steps` is not a whole number of at least 1.

    >>> every(50).gate.placement
    'agreed'
    """
    return Trigger(every_steps(steps), Constant(True))


def _both(one: Signal, other: Signal) -> Signal:
    """The conjunction of two signals; a constant True is dropped."""
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
