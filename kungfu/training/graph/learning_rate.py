"""The learning rate in the graph: moved by a ramp, step by step, where a rule has set one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.framework_internals import learning_rate_or_schedule
from kungfu.runtime.api import Ramp
from kungfu.training.graph.graph_state import ProgressVariables


class _Factored(keras.optimizers.schedules.LearningRateSchedule):
    """A user's schedule times a factor: Keras refuses to overwrite the rate of an optimizer that has a schedule."""

    def __init__(self, schedule: Any, factor: tf.Variable) -> None:
        self.schedule, self.factor = schedule, factor

    def __call__(self, step: Any) -> Any:
        return self.schedule(step) * tf.cast(self.factor.read_value(), tf.float32)

    def get_config(self) -> dict[str, Any]:
        """Serialised, a schedule is the user's own: the factor belongs to the run."""
        return dict(self.schedule.get_config())


def without_factor(schedule: Any) -> Any:
    """The user's own schedule under the factor of a run; anything else as it is."""
    return schedule.schedule if isinstance(schedule, _Factored) else schedule


class LearningRateControl:
    """The control of rules over an optimizer's learning rate; a schedule continues under them, as the rate's base.

    Args:
        optimizer: The optimizer.
        factored: Its schedule with the factor of this run; ``None`` if it has none.
        left: The factor that the run before has left on that schedule.
    """

    def __init__(self, optimizer: Any, factored: _Factored | None, *, left: float = 1.0) -> None:
        self._optimizer, self._factored, self._left = optimizer, factored, left
        self._moves = tf.Variable(False, trainable=False, name="kungfu/rate_moves")  # the rate is the ramp's
        # The ramp: start, target, since, over, and 1 if it counts samples. float64: steps and samples outgrow float32.
        self._ramp = tf.Variable(tf.zeros([5], tf.float64), trainable=False, name="kungfu/rate_ramp")

    def first_ramp(self, *, steps: int) -> Ramp | None:
        """The ramp that holds what the run before has left on a schedule, from this many steps on."""
        # A rate continues by itself, as a variable of the optimizer; a factor is no part of that, and peers that join
        # or resume later have it from the terms of the view alone.
        return None if self._left == 1.0 else Ramp(self._left, self._left, since=steps, over=0.0)

    def in_force(self) -> float:
        """The learning rate of the next update."""
        return float(tf.convert_to_tensor(self._optimizer.learning_rate))

    def destined(self) -> float:
        """The learning rate that the ramp under way leads to; the one in force where none is."""
        if not bool(self._moves.numpy()):  # no ramp is under way, and a callback may have set the rate
            return self.in_force()
        return float(self._ramp.numpy()[1]) * self._base()

    def ramp_start(self) -> float:
        """The start of a ramp that begins now: the rate in force, or the factor of the schedule."""
        return self.in_force() if self._factored is None else float(self._factored.factor.numpy())

    def on_scale(self, rate: float) -> float:
        """A learning rate on the ramp's scale: the rate itself, or its ratio to the schedule as it is now."""
        return rate / self._base()

    def _base(self) -> float:
        """The base of the ramp's numbers: 1, or the present value of the user's schedule."""
        if self._factored is None:
            return 1.0
        return float(self._factored.schedule(tf.convert_to_tensor(self._optimizer.iterations)))

    def put_in_force(self, ramp: Ramp | None, *, done: int) -> None:
        """Host: puts a ramp in force; one that is over moves nothing any more, unless it holds a schedule's factor."""
        if ramp is None:  # no rule has set the rate yet
            return
        if self._factored is not None:  # what reads the rate before the first step gets that of this step
            self._factored.factor.assign(ramp.at(done))
        # The factor of a schedule stays in force for good; a rate that has arrived stays by itself.
        self._moves.assign(self._factored is not None or done <= ramp.since + ramp.over)
        self._ramp.assign([ramp.start, ramp.target, ramp.since, ramp.over, ramp.unit == "samples"])

    def advance(self, progress: ProgressVariables) -> None:
        """Graph, before the user's step: the rate of this step. See `Ramp.at` for the rule."""
        start, target, since, over, by_samples = tf.unstack(self._ramp.read_value())
        done = tf.where(by_samples > 0, progress.trained.read_value(), progress.step.read_value())
        # How much of the ramp is done: 0 at its start, 1 at its end and after it; one of length 0 is done at once.
        part = (tf.cast(done, tf.float64) - since) / tf.maximum(over, 1e-9)
        part = tf.where(over > 0, tf.clip_by_value(part, 0.0, 1.0), tf.ones_like(part))
        value = start + part * (target - start)

        def move() -> Any:
            self._assign(value)
            # A rate that has arrived is the user's again: a callback may move it on.
            self._moves.assign(tf.logical_or(part < 1.0, self._factored is not None))
            return tf.constant(True)

        tf.cond(self._moves.read_value(), move, lambda: tf.constant(False))

    def _assign(self, value: Any) -> None:
        if self._factored is not None:  # the ramp moves the factor of the user's schedule
            self._factored.factor.assign(value)
        else:  # the ramp moves the rate itself
            rate = self._optimizer.learning_rate
            rate.assign(tf.cast(value, rate.dtype))


def make_learning_rate(optimizers: Sequence[Any]) -> LearningRateControl:
    """The rate of a run's optimizer, for policies that set it; ``UsageError`` if it is not clear whose."""
    if len(optimizers) > 1:
        raise UsageError(
            f"a policy sets the learning rate, but {len(optimizers)} optimizers are attached: it must be clear whose; "
            "attach one optimizer"
        )
    optimizer = getattr(optimizers[0], "inner_optimizer", optimizers[0])  # of a loss-scaling one
    factored, left = None, 1.0
    schedule = learning_rate_or_schedule(optimizer)
    if isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
        # One factor at a time: that of the run before continues in the terms of this one.
        left = float(schedule.factor.numpy()) if isinstance(schedule, _Factored) else 1.0
        schedule = without_factor(schedule)
        factored = _Factored(schedule, tf.Variable(1.0, dtype=tf.float64, trainable=False, name="kungfu/rate_factor"))
        optimizer.learning_rate = factored
    return LearningRateControl(optimizer, factored, left=left)
