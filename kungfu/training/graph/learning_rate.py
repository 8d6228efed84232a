"""Updates the learning rate in the graph: along a ramp that a rule has set, and by a factor in every step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from kungfu.compiler import CompiledPolicies
from kungfu.control import ScaleLearningRate
from kungfu.errors import PolicyError, UsageError
from kungfu.framework_internals import learning_rate_or_schedule, learning_rate_scaled
from kungfu.runtime.api import Ramp
from kungfu.training.graph.graph_state import ProgressVariables
from kungfu.training.graph.variable_io import run_where


class _Factored(keras.optimizers.schedules.LearningRateSchedule):
    """A user's schedule times a factor, since Keras does not allow setting the rate of an optimizer with a schedule."""

    def __init__(self, schedule: Any, factor: tf.Variable) -> None:
        self.schedule, self.factor = schedule, factor

    def __call__(self, step: Any) -> Any:
        return self.schedule(step) * tf.cast(self.factor.read_value(), tf.float32)

    def get_config(self) -> dict[str, Any]:
        """The config of the user's schedule alone, without the factor, which belongs to the run."""
        return dict(self.schedule.get_config())


def without_factor(schedule: Any) -> Any:
    """The user's schedule without the factor of a run; any other value unchanged."""
    return schedule.schedule if isinstance(schedule, _Factored) else schedule


class LearningRateControl:
    """Lets rules control an optimizer's learning rate; a schedule remains active as the base of that rate.

    Args:
        factored: The optimizer's schedule with the factor of this run; ``None`` without a schedule.
        left: The factor that the previous run left on that schedule.
    """

    def __init__(self, optimizer: Any, factored: _Factored | None, *, left: float = 1.0) -> None:
        self._optimizer, self._factored, self._left = optimizer, factored, left
        self._moves = tf.Variable(False, trainable=False, name="kungfu/rate_moves")  # True while the ramp sets the rate
        # The ramp: start, target, since, over, and 1 if it counts samples; float64, as float32 is too short for counts.
        self._ramp = tf.Variable(tf.zeros([5], tf.float64), trainable=False, name="kungfu/rate_ramp")

    def first_ramp(self, *, steps: int) -> Ramp | None:
        """A ramp from step ``steps`` on that keeps the factor left by the previous run; ``None`` if the factor is 1."""
        # A rate persists by itself, as a variable of the optimizer. A factor does not: peers that join or resume later
        # receive the factor only with the terms of the view.
        return None if self._left == 1.0 else Ramp(self._left, self._left, since=steps, over=0.0)

    def in_force(self) -> float:
        """The learning rate of the next update."""
        return float(tf.convert_to_tensor(self._optimizer.learning_rate))

    def destined(self) -> float:
        """The final learning rate of the ramp under way; without a ramp, the rate in force."""
        if not bool(self._moves.numpy()):  # no ramp is under way, so a callback may have set the rate
            return self.in_force()
        return float(self._ramp.numpy()[1]) * self.schedule()

    def ramp_start(self) -> float:
        """The first value of a ramp that begins now: the learning rate; with a schedule, the factor on the schedule."""
        return self.in_force() if self._factored is None else float(self._factored.factor.numpy())

    def schedule(self) -> float:
        """The unit of the ramp's numbers: 1, or the current value of the user's schedule."""
        if self._factored is None:
            return 1.0
        return float(self._factored.schedule(tf.convert_to_tensor(self._optimizer.iterations)))

    def put_in_force(self, ramp: Ramp | None, *, done: int) -> None:
        """Host: puts a ramp in force; a finished ramp has no effect, unless it sets the factor of a schedule."""
        if ramp is None:  # no rule has set the rate yet
            return
        if self._factored is not None:  # so that code before the first step already reads that step's rate
            self._factored.factor.assign(ramp.at(done))
        # The factor of a schedule stays in force permanently; a rate persists after the end of its ramp.
        self._moves.assign(self._factored is not None or done <= ramp.since + ramp.over)
        self._ramp.assign([ramp.start, ramp.target, ramp.since, ramp.over, ramp.unit == "samples"])

    def advance(self, progress: ProgressVariables) -> None:
        """Graph, before the user's step: sets the rate of this step. See `Ramp.at` for the formula."""
        start, target, since, over, by_samples = tf.unstack(self._ramp.read_value())
        done = tf.where(by_samples > 0, progress.trained.read_value(), progress.step.read_value())
        # The fraction of the ramp that is done: 0 at its start, 1 from its end on; a ramp of length 0 is done at once.
        part = (tf.cast(done, tf.float64) - since) / tf.maximum(over, 1e-9)
        part = tf.where(over > 0, tf.clip_by_value(part, 0.0, 1.0), tf.ones_like(part))
        value = start + part * (target - start)

        def move() -> None:
            # The ramp updates the factor of the user's schedule, or the rate itself.
            moved = self._optimizer.learning_rate if self._factored is None else self._factored.factor
            moved.assign(tf.cast(value, moved.dtype))
            # After the ramp the rate belongs to the user again: a callback may change it.
            self._moves.assign(tf.logical_or(part < 1.0, self._factored is not None))

        run_where(self._moves.read_value(), move)


class LearningRateFactor:
    """The factor by which a policy multiplies the learning rate of an optimizer in the step.

    The factor is a part of the shared state. Outside the step, the optimizer has its plain rate.

    Args:
        index: The place of rank 0's factor among the policies' floats on the gradients' message.
    """

    def __init__(self, optimizer: Any, *, index: int) -> None:
        self._optimizer, self._index, self._is_read = optimizer, index, False
        self.variable = tf.Variable(1.0, trainable=False, name="kungfu/learning_rate_factor")
        self._plain: Callable[[], Any] = lambda: optimizer.learning_rate

    @contextmanager
    def around_function(self) -> Iterator[None]:
        """Graph: surrounds the user's function, in which the optimizer updates with its rate times the factor."""
        with learning_rate_scaled(self._optimizer, self._scaled) as self._plain:
            yield

    def plain_rate(self) -> Any:
        """Graph: the learning rate without the factor."""
        return tf.convert_to_tensor(self._plain())

    def receive(self, floats: Any) -> None:
        """Graph: stores the factor from the policies' floats, summed over the peers; the step's update reads it."""
        self.variable.assign(floats[self._index])

    def refuse_unread(self, plan: CompiledPolicies) -> None:
        """Raises ``PolicyError`` if the traced step does not read the learning rate, so that nothing would change."""
        if not self._is_read:
            rule = next(one for one in plan.rules if isinstance(one.action, ScaleLearningRate) and one.mode == "acting")
            text = (
                f"{rule.origin}: policy {rule.name!r} multiplies the learning rate: the step that was traced does not "
                "read the rate of the attached optimizer, so that nothing would change"
            )
            raise PolicyError(text, policy=rule.name, origin=rule.origin)

    @tf.autograph.experimental.do_not_convert
    def _scaled(self, rate: Any) -> Any:
        self._is_read = True
        rate = tf.convert_to_tensor(rate)
        return rate * tf.cast(self.variable.read_value(), rate.dtype)


def make_factor(plan: CompiledPolicies, optimizers: Sequence[Any]) -> LearningRateFactor | None:
    """The factor on the rate of a run's optimizer, if a policy has one; ``UsageError`` for several optimizers."""
    index = plan.rate_factor_index
    return None if index is None else LearningRateFactor(_only_optimizer(optimizers), index=index)


def _only_optimizer(optimizers: Sequence[Any]) -> Any:
    if len(optimizers) > 1:
        raise UsageError(
            f"a policy sets the learning rate, but {len(optimizers)} optimizers are attached: it must be clear whose; "
            "attach one optimizer"
        )
    return getattr(optimizers[0], "inner_optimizer", optimizers[0])  # inside a loss-scaling optimizer


def make_learning_rate(optimizers: Sequence[Any]) -> LearningRateControl:
    """The rate control of a run's optimizer, for policies; ``UsageError`` if the run has several optimizers."""
    optimizer = _only_optimizer(optimizers)
    factored, left = None, 1.0
    schedule = learning_rate_or_schedule(optimizer)
    if isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
        # Only one factor applies at a time: the factor of the previous run continues in the terms of this run.
        left = float(schedule.factor.numpy()) if isinstance(schedule, _Factored) else 1.0
        schedule = without_factor(schedule)
        factored = _Factored(schedule, tf.Variable(1.0, dtype=tf.float64, trainable=False, name="kungfu/rate_factor"))
        optimizer.learning_rate = factored
    return LearningRateControl(optimizer, factored, left=left)
