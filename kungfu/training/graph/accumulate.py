"""Micro-batches: the gradients of a peer's share of a step, summed until the last micro-batch of the share.

Only the last micro-batch averages over the peers and updates variables (Wu et al., *EDL*, section 5.4). The user's
function is traced once for all micro-batches. The work of the last micro-batch is inside a ``tf.cond`` on a variable
that is set from the micro-batch's index. This work includes the optimizer's update, which the user's function calls:
during the trace, ``apply`` of the attached optimizers is replaced by a version with this condition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.framework_internals import replaced_method
from kungfu.runtime.api import norm_squared
from kungfu.training.graph.graph_state import StepMetrics
from kungfu.training.graph.variable_io import run_where

ACCUMULATED = 3  # the outcome of a call of the step with a micro-batch that is not the last

Exchange = Callable[[Sequence[Any], Any], list[Any]]


class Accumulation:
    """Sums of gradients over samples, kept from one micro-batch to the next.

    Args:
        measures_variance: True if a policy reads the variance of the gradients over the micro-batches of a share.
    """

    def __init__(self, metrics: StepMetrics, optimizers: Sequence[Any], *, measures_variance: bool = False) -> None:
        for optimizer in optimizers:
            _refuse_own_accumulation(optimizer)
        self._micro, self._samples, self._optimizers = metrics.micro, metrics.samples, optimizers
        self._sums: list[tf.Variable] = []
        self._measures_variance, self._measured = measures_variance, 0

    @contextmanager
    def around_function(self, which: Any) -> Iterator[None]:
        """Graph: surrounds the user's function for micro-batch ``which[0]`` of ``which[1]`` (int64). Inside this
        context, ``apply`` of the optimizers updates only on the last micro-batch."""
        micro = self._micro
        micro.done.assign(which[0])
        micro.last.assign(tf.equal(which[0] + 1, which[1]))
        with ExitStack() as replaced:
            for optimizer in self._optimizers:
                replaced.enter_context(replaced_method(optimizer, "apply", self._asking(optimizer.apply)))
            yield

    def exchanged(self, gradients: Sequence[Any], loss: Any, exchange: Exchange, *, measured: int) -> list[Any]:
        """Graph: on the last micro-batch, the result of ``exchange`` for the whole share; zeros on earlier ones. The
        first ``measured`` tensors are the gradients whose variance may be measured; others only travel with them."""
        self._fit(gradients)
        self._measured = measured if self._measures_variance else 0
        micro = self._micro

        # Not the last micro-batch: nothing is sent, and the optimizers do not update.
        def keep() -> list[Any]:
            self._add(gradients, loss)
            return [tf.zeros_like(gradient) for gradient in gradients]

        # The last micro-batch is also the first: there is nothing to sum.
        def only() -> list[Any]:
            micro.batches.assign(0)
            micro.variance.assign(math.nan)
            return [*(tf.identity(gradient) for gradient in gradients), tf.identity(loss)]

        def conclude() -> list[Any]:
            *whole, mean_loss = tf.cond(tf.equal(micro.done, 0), only, lambda: self._whole(gradients, loss))
            return exchange(whole, mean_loss)

        return list(tf.cond(micro.last.read_value(), conclude, keep))

    def ended(self, conclude: Callable[[], Any]) -> Any:
        """Graph: counts a micro-batch that is not the last; after the last, ends the step with ``conclude``."""
        micro = self._micro

        # Samples of the share are left: the step is not done.
        def count() -> Any:
            micro.done.assign_add(1)
            return tf.constant(ACCUMULATED, tf.int64)

        # The step is done on all peers, which have the same number of micro-batches.
        def end() -> Any:
            micro.done.assign(0)
            return conclude()

        return tf.cond(micro.last.read_value(), end, count)

    def _whole(self, gradients: Sequence[Any], loss: Any) -> list[Any]:
        """The means over the share's samples; sets this peer's number of samples in the step to that of the share."""
        self._add(gradients, loss)
        micro = self._micro
        samples = micro.samples.read_value()
        self._samples.assign(samples)
        divisor = tf.maximum(samples, 1.0)  # without samples the sums are zeros
        means = [
            tf.cast(total / tf.cast(divisor, total.dtype), gradient.dtype)
            for total, gradient in zip(self._sums, gradients, strict=True)
        ]
        if self._measured:
            # The sum of b_i |g_i - g|² over the micro-batches, by the degrees of freedom.
            apart = micro.squares - tf.cast(samples, tf.float64) * norm_squared(means[: self._measured])
            degrees = tf.cast(micro.batches - 1, tf.float64)
            micro.variance.assign(tf.where(degrees > 0, apart / degrees, math.nan))
        return [*means, micro.loss / divisor]

    def _add(self, gradients: Sequence[Any], loss: Any) -> None:
        micro, samples = self._micro, self._samples.read_value()

        # The first micro-batch clears the sums, which an abandoned step may have left behind.
        def clear() -> None:
            for variable in (*self._sums, micro.samples, micro.loss, micro.batches, micro.squares):
                variable.assign(tf.zeros_like(variable))

        def add() -> None:
            for total, gradient in zip(self._sums, gradients, strict=True):
                total.assign_add(tf.cast(gradient, total.dtype) * tf.cast(samples, total.dtype))
            micro.samples.assign_add(samples)
            micro.loss.assign_add(loss * samples)
            micro.batches.assign_add(1)
            if self._measured:
                micro.squares.assign_add(tf.cast(samples, tf.float64) * norm_squared(gradients[: self._measured]))

        run_where(tf.equal(micro.done, 0), clear)
        run_where(samples > 0, add)  # the mean of an empty micro-batch is NaN

    def _asking(self, apply: Callable[..., None]) -> Callable[..., None]:
        """A replacement for an optimizer's ``apply``, which updates on the last micro-batch only."""

        @tf.autograph.experimental.do_not_convert
        def asking(*args: Any, **kwargs: Any) -> None:
            run_where(self._micro.last.read_value(), lambda: apply(*args, **kwargs))

        return asking

    def _fit(self, gradients: Sequence[Any]) -> None:
        """Creates the sums in the first trace, when the shapes and dtypes of the gradients become known."""
        kinds = [(gradient.shape, _wide(gradient.dtype)) for gradient in gradients]
        if [(total.shape, total.dtype) for total in self._sums] == kinds:  # a retrace of the function
            return
        unknown = [str(shape) for shape, _ in kinds if not shape.is_fully_defined()]
        if unknown:
            raise UsageError(
                f"training.average() was given gradients of open shapes {unknown}, which cannot be accumulated over "
                "micro-batches: give them the shapes of their variables, or leave out max_local_batch_size"
            )
        with tf.init_scope():
            self._sums = [
                tf.Variable(
                    tf.zeros(shape, dtype),
                    trainable=False,
                    name=f"kungfu/sum_{index}",
                    experimental_enable_variable_lifting=False,  # otherwise TensorFlow traces a second time
                )
                for index, (shape, dtype) in enumerate(kinds)
            ]


def _wide(dtype: Any) -> Any:
    """The dtype for summing values of ``dtype``: half precision would overflow; a mean of integers needs fractions."""
    if dtype in (tf.float16, tf.bfloat16):
        return tf.float32
    return dtype if dtype.is_floating or dtype.is_complex else tf.float64


def _refuse_own_accumulation(optimizer: Any) -> None:
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    steps = {getattr(one, "gradient_accumulation_steps", None) for one in (optimizer, inner)} - {None}
    if steps:
        raise UsageError(
            f"training.batches(max_local_batch_size=...) beside the optimizer {optimizer.name!r} with "
            f"gradient_accumulation_steps={steps.pop()}: both accumulate; leave gradient_accumulation_steps out"
        )
