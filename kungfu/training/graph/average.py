"""Averages the gradients of a step in the graph, for ``training.average``, by a message of `gradient_message`.

A step that averages several times sends one message per average; the last message also carries the policies' values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.training.graph.accumulate import Accumulation
from kungfu.training.graph.gradient_message import Averaging, GradientMessage, send, send_gradients
from kungfu.training.graph.model_average import ModelAverage
from kungfu.training.graph.tracing.trace import refuse_xla

# Larger sparse gradients are refused, not made dense: an embedding of a few gigabytes would fill the memory.
DENSE_LIMIT_BYTES = 256 << 20


@dataclass(frozen=True)
class SummedTotals:
    """Tensors that a step's message sums over the peers along with the gradients; ``conclude`` receives the sums."""

    totals: Sequence[Any]
    conclude: Callable[[Sequence[Any]], object]


def average(
    averaging: Averaging,
    gradients: Any,
    *,
    loss: Any,
    accumulation: Accumulation | None = None,
    summed: Sequence[SummedTotals] = (),
    waited: Sequence[Any] = (),
) -> Any:
    """Computes the weighted mean of a nest of gradients over the peers, and evaluates the policies.

    With samples `b_r` and gradients `g_r` of rank `r`, the mean is `sum(b_r g_r) / sum(b_r)`. In a run that averages
    models, the result is this peer's own gradients, and policies are evaluated in synchronising steps.

    Args:
        gradients: A nest of tensors and ``None``; sparse gradients become dense.
        loss: This peer's mean loss, a scalar.
        accumulation: Sums the gradients if a share is split into micro-batches; only the last micro-batch averages.
        summed: Tensors that are summed along with the gradients.
        waited: The seconds that the earlier messages of this step took, from `average_before_last`.

    Returns:
        The means, equal on all peers, in a nest like ``gradients``; zeros for every micro-batch but the last.

    Raises:
        UsageError: All gradients are ``None``, a sparse gradient is too large, the loss is not a scalar, or XLA
            compiles the step.

    Cost:
        One message of the attachment for gradients, policies and requests together.
    """
    dense = _dense_leaves(gradients)
    own, metrics = _scalar(loss), averaging.graph_state.metrics
    if accumulation is not None:
        metrics.published.hold(metrics.samples.read_value(), metrics.micro.done.read_value())
    published, totals = metrics.published.floats(), [total for one in summed for total in one.totals]
    first, end = len(dense), len(dense) + len(published)

    def exchange(share: Sequence[Any], mean_loss: Any, totals: Sequence[Any]) -> list[Any]:
        gradients, published = share[:first], list(share[first:end])
        if (models := averaging.models) is not None:
            applied, sums = _applied_by_this_peer(averaging, models, gradients, mean_loss, published, totals)
            _conclude_sums(summed, sums)
            return [*applied, *share[first:]]
        sent = send(averaging, gradients, mean_loss, published, totals=totals, waited=waited)
        _conclude_sums(summed, sent.sums)
        return [*_concluded(averaging, sent), *share[first:]]

    if accumulation is None:
        return _packed_like(gradients, exchange([*dense, *published], own, totals))

    def exchange_share(share: Sequence[Any], mean_loss: Any) -> list[Any]:
        given = zip(share[end:], totals, strict=True)
        return exchange(share, mean_loss, [_of_share(one, like, metrics.samples) for one, like in given])

    # Published values are averaged over micro-batches like gradients; totals are converted to means over samples.
    share = [*dense, *published, *(_per_sample(one, metrics.samples) for one in totals)]
    means = accumulation.exchanged(share, own, exchange_share, measured=first)
    return _packed_like(gradients, means)


def average_to_conclude(
    averaging: Averaging, gradients: Any, *, loss: Any, waited: Sequence[Any] = ()
) -> tuple[Any, Callable[[], Any]]:
    """Averages like `average`; the caller evaluates the policies' folds and rules later, after a further message.

    Returns:
        The means in a nest like ``gradients``; and the function that evaluates the folds and rules, to be called after
        the step's last message.

    Raises:
        UsageError: See `average`.
    """
    dense = _dense_leaves(gradients)
    sent = send(averaging, dense, _scalar(loss), list(averaging.graph_state.metrics.published.floats()), waited=waited)
    return _packed_like(gradients, sent.means), sent.conclude


def average_before_last(averaging: Averaging, gradients: Any, *, number: int) -> tuple[Any, Any]:
    """Averages like `average` if another average follows in the step: the message carries only gradients.

    Args:
        number: The index of this average in the step, from 1.

    Returns:
        The means, equal on all peers, in a nest like ``gradients``; and the seconds for which this peer waited.

    Raises:
        UsageError: See `average`.

    Cost:
        One message of the attachment.
    """
    means, waited_s = send_gradients(averaging, _dense_leaves(gradients), number=number)
    return _packed_like(gradients, means), waited_s


def _applied_by_this_peer(
    averaging: Averaging,
    models: ModelAverage,
    gradients: Sequence[Any],
    loss: Any,
    published: list[Any],
    totals: Sequence[Any],
) -> tuple[list[Any], list[Any]]:
    """Graph: the gradients of this peer, if the run averages models, and the sums of ``totals`` over window and peers.

    A synchronising step evaluates the policies; in any other step the sums are zeros. A peer without samples ran on
    another peer's sample, so its gradients and totals are zeros.
    """
    samples = averaging.graph_state.metrics.samples.read_value()
    models.window.count(samples, loss)

    def synchronise(held: Sequence[Any]) -> Sequence[Any]:
        sent = send(averaging, gradients, loss, published, totals=held)
        sent.conclude()
        return sent.sums

    applied, own = ([tf.where(samples > 0, one, tf.zeros_like(one)) for one in each] for each in (gradients, totals))
    return applied, models.sums.add(own, models.window.is_last_step(), synchronise)


def _conclude_sums(summed: Sequence[SummedTotals], sums: Sequence[Any]) -> None:
    come = iter(sums)
    for one in summed:
        one.conclude([next(come) for _ in one.totals])


def _concluded(averaging: Averaging, sent: GradientMessage) -> list[Any]:
    """Graph: evaluates the policies' folds and rules after the message; returns the means."""
    outcome = sent.conclude()
    # These policies send no messages: the update need not wait for the policies.
    if not averaging.program.plan.exchanges:
        return list(sent.means)
    with tf.control_dependencies(list(outcome)):  # a peer lost in the policies' messages must leave no partial update
        return [tf.identity(mean) for mean in sent.means]


def _per_sample(total: Any, samples: tf.Variable) -> Any:
    """This peer's total as a mean over its samples, in float64, which keeps integers exact."""
    return tf.math.divide_no_nan(tf.cast(total, tf.float64), tf.cast(samples.read_value(), tf.float64))


def _of_share(mean: Any, total: Any, samples: tf.Variable) -> Any:
    """The sum over this peer's share, computed from the ``mean`` per sample, in the dtype of ``total``."""
    whole = mean * tf.cast(samples.read_value(), tf.float64)
    return tf.cast(whole if total.dtype.is_floating else tf.round(whole), total.dtype)


def _dense_leaves(gradients: Any) -> list[Any]:
    """The gradients that are not ``None``, as dense tensors; ``UsageError`` if all are ``None``, or under XLA."""
    refuse_xla("training.average()")
    leaves = tf.nest.flatten(gradients)
    dense = [_dense(leaf) for leaf in leaves if leaf is not None]
    if not dense:
        raise UsageError(
            f"training.average() was given {len(leaves)} gradients and all of them are None: the loss does not depend "
            "on these variables; compute it under the tape, from the model's output"
        )
    return dense


def _packed_like(gradients: Any, means: Sequence[Any]) -> Any:
    given = iter(means)
    leaves = [None if leaf is None else next(given) for leaf in tf.nest.flatten(gradients)]
    return tf.nest.pack_sequence_as(gradients, leaves)


def _scalar(loss: Any) -> Any:
    loss = tf.cast(tf.convert_to_tensor(loss), tf.float32)
    if loss.shape.rank not in (0, None):
        raise UsageError(
            f"training.average(loss=...) was given a tensor of shape {loss.shape}: it takes a scalar, this peer's mean "
            "loss, as in tf.reduce_mean(losses)"
        )
    return tf.reshape(loss, [])


def _dense(gradient: Any) -> Any:
    if not isinstance(gradient, tf.IndexedSlices):
        return tf.convert_to_tensor(gradient)
    # Sparse: the used rows of an embedding. Peers use different rows, so all rows are sent.
    shape = gradient.dense_shape if gradient.dense_shape is None else tf.get_static_value(gradient.dense_shape)
    elements = 1 if shape is None else int(tf.TensorShape(shape).num_elements() or 1)
    if shape is None or elements * gradient.dtype.size > DENSE_LIMIT_BYTES:
        size = "of unknown size" if shape is None else f"of {elements * gradient.dtype.size >> 20} MiB when dense"
        raise UsageError(
            f"a sparse gradient {size} was given to training.average(), which sends dense tensors of at most "
            f"{DENSE_LIMIT_BYTES >> 20} MiB: make the embedding smaller or convert it with tf.convert_to_tensor"
        )
    return tf.convert_to_tensor(gradient)
