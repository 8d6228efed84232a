"""Builds the message of a step in the graph; it carries the gradients, the policy's floats and requests for a barrier.

The policy's local signals are computed before the message. The signals that are equal on all peers, the folds and the
rules follow after it. A rule that fires only *posts* a request: the request rides on the next step's message, and after
that step's update all peers run the barrier. The barrier also answers the rules that fire in this next step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from kungfu.compiler.compiled_policies import LOCAL_NORM, MEAN_NORM
from kungfu.compiler.lower import Program
from kungfu.compiler.passes.synchronising import STEPS_SINCE_AVERAGE
from kungfu.control.action import changes_membership
from kungfu.runtime.api import Attachment, NormsWanted, norm_placeholder, norm_squared, where_wanted
from kungfu.training.graph.graph_state import CHECKSUM_FLOATS, GraphState, StateChecksum
from kungfu.training.graph.learning_rate import LearningRateFactor
from kungfu.training.graph.model_average import AverageWindow, ModelAverage
from kungfu.training.graph.step_record import MessageNumbers
from kungfu.training.graph.totals import SentTotals
from kungfu.training.graph.variable_io import run_where

_HEADER = 4  # samples, loss times samples, posts, and the number of posts that change the membership


@dataclass(frozen=True)
class Averaging:
    """The parts of a run that ``average`` uses.

    ``loss_scale`` returns the factor on the loss, ``rate_factor`` receives the policies' factor on the learning rate,
    if there is one, and ``models`` averages models if the run does so in place of gradients.
    """

    graph_state: GraphState
    program: Program
    attachment: Attachment
    learning_rate: Callable[[], Any]
    loss_scale: Callable[[], Any] | None = None
    rate_factor: LearningRateFactor | None = None
    models: ModelAverage | None = None

    @property
    def window(self) -> AverageWindow | None:
        """The window of a run that averages models; ``None`` if the run averages gradients."""
        return None if self.models is None else self.models.window


def optimizer_signals(optimizer: Any) -> tuple[Callable[[], Any], Callable[[], Any] | None]:
    """Functions to read learning rate and loss scale in the graph; the second is ``None`` if the loss is not scaled."""
    scale = getattr(optimizer, "dynamic_scale", None)
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return lambda: tf.convert_to_tensor(inner.learning_rate), None if scale is None else lambda: scale


@dataclass(frozen=True)
class GradientMessage:
    """A received message: the means, the sums over the peers, and ``conclude``, which evaluates folds and rules."""

    means: Sequence[Any]
    sums: Sequence[Any]
    conclude: Callable[[], Any]


def _expected(graph_state: GraphState) -> tuple[Any, Any, Any]:
    """Graph: the samples of this peer, the number of peers, and the expected samples of all peers together."""
    samples = graph_state.metrics.samples.read_value()
    size = graph_state.view.size.read_value()
    expected = tf.cast(graph_state.view.global_batch_size.read_value(), tf.float32)
    # No batch size is agreed during the warm-up: then all peers are assumed to have as many samples as this peer.
    return samples, size, tf.where(expected > 0, expected, samples * tf.cast(size, tf.float32))


def send(
    averaging: Averaging,
    gradients: Sequence[Any],
    loss: Any,
    published: list[Any],
    *,
    totals: Sequence[Any] = (),
    waited: Sequence[Any] = (),
) -> GradientMessage:
    """Graph: sends this peer's gradients and all other values of the step in one message, and computes the means."""
    graph_state, program, window = averaging.graph_state, averaging.program, averaging.window
    samples, size, expected = _expected(graph_state)
    # Requests are counted, not flagged: a request made during the message waits for the next message.
    counts = graph_state.posts.counts
    asked = [count.asked.read_value() for count in counts]
    # Before the message: this peer's local values, and the local reductions that ride on the message. The norms become
    # known together with the message.
    scale = None if averaging.loss_scale is None else averaging.loss_scale()
    now = _time_after(gradients)
    sources = _known_before(averaging, loss, samples, size, expected, now)
    if window is not None:
        sources[STEPS_SINCE_AVERAGE.source] = window.steps
    if waited:  # in earlier messages of the step, for other peers
        sources["busy_seconds"] -= _float(tf.add_n(list(waited)))
    sources["grads"] = _unscaled(gradients, scale)
    variance = graph_state.metrics.micro.variance.read_value()
    sources["micro_batch_variance"] = _float(variance if scale is None else variance * _norm_factor(scale))
    fed, offers = graph_state.metrics.fed.offered()
    sources |= graph_state.metrics.published.offered(published, samples) | fed
    is_sent = window is None
    wanted, local_norm = _gradient_norms(
        program, gradients, sources, samples=samples, loss_scale=scale, is_sent=is_sent
    )
    sources |= local_norm
    sources |= _of_samples(program, program.gradient_reductions(sources), samples)
    # A peer without samples has weight 0 in the header's mean loss, whatever loss it computed.
    changes, others = (_float(now - count.served) for now, count in zip(asked, counts, strict=True))
    weighed = (samples, tf.where(samples > 0, loss * samples, 0.0)) if window is None else (window.samples, window.loss)
    header = tf.stack([*weighed, changes + others, changes])
    # Other types travel in an earlier message: if that message fails, nothing has been assigned.
    counted = samples if window is None else tf.ones([])  # of a window: each peer counts what it has held
    added = SentTotals.sent(averaging.attachment, totals, order=graph_state.order, samples=counted)
    checksum = graph_state.posts.checksum
    riding = [header, checksum.numbers.read_value(), program.piggybacked(sources), added.floats]
    (*sums, extras), norm, norm_of_sums = averaging.attachment.all_reduce_with_norms(
        [*(_counted(gradients, samples) if is_sent else ()), tf.concat(riding, axis=0)],
        wanted=wanted,
        prescale=tf.math.divide_no_nan(_exact(samples), _exact(expected)),
        order=graph_state.order,
        tag="gradients",
    )
    extras, summed = added.received(extras)
    extras = _without_checksums(checksum, extras, size)
    if averaging.rate_factor is not None:  # before the update, and again if the step is done again
        averaging.rate_factor.receive(extras[_HEADER:])
    if window is not None:  # of whole windows, which began with the last average
        extras = tf.concat([window.received(extras[:_HEADER], size), extras[_HEADER:]], axis=0)
    # After the message: the means, the agreed signals, and the policies that follow from them.

    def corrected() -> list[Any]:
        others = _times(sums, expected, extras[0])
        return [*others, where_wanted(wanted.sums, lambda: norm_squared(others) * wanted.factor)]

    *means, norm_of_means = _corrected([*sums, norm_of_sums], corrected, expected, extras[0])

    def conclude() -> Any:
        carried = [count.carried.assign(now) for count, now in zip(counts, asked, strict=True)]
        with tf.control_dependencies([*carried, *_stamp_synchronisation(averaging, extras)]):
            after = _known_after(averaging, extras)
        known = sources | after | {"mean_grads": _unscaled(means, scale)}
        norms = ((LOCAL_NORM, wanted.values, norm), (MEAN_NORM, wanted.sums, norm_of_means))
        known |= {name: _float(one) for name, is_wanted, one in norms if is_wanted is not False}
        outcome = _conclude(averaging, known | program.gradient_reductions(known), extras, now)
        # A failed message has carried no requests. The outcome may not depend on the message: wait for both.
        with tf.control_dependencies([*outcome, extras]):
            graph_state.metrics.fed.carry(offers)
        return outcome

    return GradientMessage(means, summed, conclude)


def send_gradients(averaging: Averaging, gradients: Sequence[Any], *, number: int) -> tuple[list[Any], Any]:
    """Graph: sends a message that is not the step's last; returns the means, and the seconds waited for them."""
    graph_state = averaging.graph_state
    samples, _, expected = _expected(graph_state)
    ready = _time_after(gradients)
    with tf.control_dependencies([ready]):
        *sums, total = averaging.attachment.all_reduce(
            [*_counted(gradients, samples), tf.reshape(samples, [1])],
            prescale=tf.math.divide_no_nan(_exact(samples), _exact(expected)),
            order=graph_state.order,
            tag=f"gradients {number}",
        )
    with tf.control_dependencies([total]):
        waited_s = tf.timestamp() - ready
    return _corrected(sums, lambda: _times(sums, expected, total[0]), expected, total[0]), waited_s


def _gradient_norms(
    program: Program,
    gradients: Sequence[Any],
    sources: Mapping[str, Any],
    *,
    samples: Any,
    loss_scale: Any | None,
    is_sent: bool,
) -> tuple[NormsWanted, dict[str, Any]]:
    """Graph: the gradient norms that this step's policies need, without the factor ``loss_scale``.

    Args:
        sources: The sources known before the message; they determine if this step needs a norm.
        samples: The number of this peer's samples; if 0, its gradients belong to another peer's sample, and their norm
            is set to NaN.
        is_sent: True if the message carries the gradients; only then it can compute their norm.

    Returns:
        The norms that the message computes; and this peer's norm before the message, by the name of its reduction. A
        placeholder is enough if policies only send the norm: the attachment replaces the placeholder. If a policy uses
        the norm before the message, for example in a local fold, a pass over the gradients computes the norm.
    """
    factor = _norm_factor(loss_scale)
    values, sums = program.computes(LOCAL_NORM, sources), program.computes(MEAN_NORM, sources)
    if values is False or (is_sent and program.plan.only_sends_local_norm):
        before = {} if values is False else {LOCAL_NORM: norm_placeholder()}
        return NormsWanted(values=values, sums=sums, factor=factor), before
    own = where_wanted(values, lambda: tf.where(samples > 0, norm_squared(gradients) * factor, math.nan))
    return NormsWanted(values=False, sums=sums, factor=factor), {LOCAL_NORM: _float(own)}


def _norm_factor(loss_scale: Any | None) -> Any:
    """The factor on squared norms, float64, that removes the loss scale from the gradients."""
    return tf.constant(1.0, tf.float64) if loss_scale is None else tf.square(1.0 / tf.cast(loss_scale, tf.float64))


def _counted(gradients: Sequence[Any], samples: Any) -> list[Any]:
    """Zeroes the integers of a peer without samples, since integers are summed unweighted; keeps floats unchanged."""
    return [one if one.dtype.is_floating else tf.where(samples > 0, one, tf.zeros_like(one)) for one in gradients]


def _of_samples(program: Program, reductions: Mapping[str, Any], samples: Any) -> dict[str, Any]:
    """Sets reductions of local gradients to NaN on a peer without samples, which ran on another peer's sample."""
    # Reductions that a step does not compute stay minus infinity.
    local = {name for name, one in program.plan.gradient_reductions.items() if one.placement == "local"}
    return {
        name: tf.where(tf.logical_or(samples > 0, value == -math.inf), value, math.nan) if name in local else value
        for name, value in reductions.items()
    }


def _float(value: Any) -> Any:
    return tf.cast(value, tf.float32)


def _exact(count: Any) -> Any:
    """Converts a count of samples to float64: float32 would limit the accuracy of float64 gradients."""
    return tf.cast(count, tf.float64)


def _time_after(gradients: Sequence[Any]) -> Any:
    """The end of this peer's busy time in the step: the time when the last gradient is computed, float64 seconds."""
    with tf.control_dependencies(list(gradients)):
        return tf.timestamp()


def _known_before(averaging: Averaging, loss: Any, samples: Any, size: Any, expected: Any, now: Any) -> dict[str, Any]:
    """The sources known before the message, by name: values of this peer, and values that all peers share."""
    graph_state = averaging.graph_state
    busy, began = now - graph_state.times.synchronised.read_value(), graph_state.times.began.read_value()
    return {
        "loss": tf.where(samples > 0, loss, math.nan),
        "samples": samples,
        "micro_batches": tf.maximum(graph_state.metrics.micro.batches, tf.cast(samples > 0, tf.int64)),
        "rank": graph_state.view.rank,
        "busy_seconds": _float(_of_a_step(averaging, busy)),
        "step_seconds": graph_state.times.step_seconds.read_value(),
        "rescale_seconds": graph_state.times.rescale_seconds,
        "host_joiners": graph_state.view.host_joiners,
        "clock_seconds": _float(tf.where(now > began, now - began, tf.zeros_like(began))),
        "step": graph_state.progress.step.read_value() + 1,
        "epoch": graph_state.progress.epoch,
        "samples_done": graph_state.progress.trained,
        "size": size,
        "view": graph_state.view.version,
        "local_batch_size": expected / _float(size),
        "global_batch_size": tf.cast(tf.round(expected), tf.int64),
        "epoch_samples": graph_state.progress.samples,
        "job_samples": graph_state.progress.job_samples(graph_state.view.global_batch_size),
        "learning_rate": _float(averaging.learning_rate()),
        "requested_rate": graph_state.view.requested_rate,
        "min_size": graph_state.view.min_size,
        "max_size": graph_state.view.max_size,
        "refused_size": graph_state.view.refused_size,
        "target_size": graph_state.view.target_size,
        "replaced_peers": graph_state.view.replaced_peers,
        "replacement_refused": graph_state.view.replacement_refused.read_value() > 0,
        "replacing": graph_state.view.exchanged.read_value() > 0,
    }


def _unscaled(gradients: Sequence[Any], loss_scale: Any | None) -> list[Any]:
    """The gradients without the factor of a loss-scaling optimizer; policies measure the norms of such gradients."""
    if loss_scale is None:
        return list(gradients)
    inverse = 1.0 / _float(loss_scale)
    return [_float(gradient) * inverse for gradient in gradients]


def _corrected(sums: Sequence[Any], corrected: Callable[[], list[Any]], expected: Any, total: Any) -> list[Any]:
    """The means of the gradients and other values. ``sums`` were weighted by the peers' ``expected`` samples; they are
    corrected if the actual number of samples, ``total``, differs."""
    # Usually the actual samples equal the expected ones, and the gradients are not touched again. Otherwise the means
    # are reweighted by the actual samples; without any samples the mean is zero, so that no variable becomes NaN.
    return list(tf.cond(tf.equal(expected, total), lambda: [tf.identity(value) for value in sums], corrected))


def _times(sums: Sequence[Any], expected: Any, total: Any) -> list[Any]:
    factor = tf.math.divide_no_nan(_exact(expected), _exact(total))
    return [value * tf.cast(factor, value.dtype) for value in sums]


def _stamp_synchronisation(averaging: Averaging, extras: Any) -> list[Any]:
    """Graph: stores the time at which the message was complete, and the seconds of a step since the last message."""
    graph_state = averaging.graph_state
    with tf.control_dependencies([extras]):
        now = tf.timestamp()
    previous = graph_state.times.synchronised.read_value()
    seconds = graph_state.times.step_seconds.assign(_float(_of_a_step(averaging, now - previous)))
    began = graph_state.times.began.read_value()
    # Assigned after the read; the time of the run's first message is kept permanently.
    with tf.control_dependencies([seconds]):
        synchronised = graph_state.times.synchronised.assign(now)
    return [seconds, synchronised, graph_state.times.began.assign(tf.where(tf.math.is_nan(began), now, began))]


def _of_a_step(averaging: Averaging, seconds: Any) -> Any:
    """Seconds since the last message as seconds of a step: of its window's steps if the run averages models."""
    window = averaging.window
    return seconds if window is None else seconds / tf.cast(window.steps.read_value(), tf.float64)


def _without_checksums(checksum: StateChecksum, extras: Any, size: Any) -> Any:
    """Graph: removes the checksums from the message; if they differ, adds a barrier request to the message's header."""
    header, checksums, rest = tf.split(extras, [_HEADER, CHECKSUM_FLOATS, -1])
    # Peers whose states differ hold a barrier, as if one of them had requested it.
    unlike = _float(checksum.compared(checksums, size))
    return tf.concat([header + unlike * tf.constant([0.0, 0.0, 1.0, 0.0]), rest], axis=0)


def _known_after(averaging: Averaging, extras: Any) -> dict[str, Any]:
    """The sources known after the message, by name; equal on all peers, such as the mean loss over all samples."""
    graph_state = averaging.graph_state
    posts, changes = (tf.cast(tf.round(extras[place]), tf.int64) for place in (2, 3))
    with tf.control_dependencies([graph_state.posts.everywhere.assign(posts)]):
        resizes = graph_state.view.target_size.read_value() > 0
    return {
        "mean_loss": extras[1] / extras[0],
        "total_samples": extras[0],
        "pending": tf.logical_or(changes > 0, resizes),
        "barrier_due": posts > 0,
        "change_due": changes > 0,
    }


def _conclude(averaging: Averaging, sources: Mapping[str, Any], extras: Any, now: Any) -> Any:
    """Evaluates folds and rules, and returns their outcome; if an acting rule fires, requests a barrier."""
    graph_state = averaging.graph_state
    progress, view = graph_state.progress, graph_state.view

    def all_reduce(vectors: Sequence[Any], tag: str) -> list[Any]:
        values = [*vectors, tf.zeros([0], tf.float32)]
        one = tf.constant(1.0, tf.float64)
        return averaging.attachment.all_reduce(values, prescale=one, order=graph_state.order, tag=tag)[:-1]

    outcome = averaging.program.conclude(sources, extras[_HEADER:], all_reduce)
    graph_state.metrics.total_samples.assign(sources["total_samples"])
    given = MessageNumbers(
        steps=progress.step,
        size=view.size,
        batch=view.global_batch_size,
        replacement_refused=view.replacement_refused,
        exchanged=view.exchanged,
        target_size=view.target_size,
        trained=progress.trained,
        epoch_samples=progress.samples,
        epoch=progress.epoch,
        offset=progress.offset,
        epochs=progress.epochs,
        drops=progress.drops,
        now=now,
        began=graph_state.times.began,
        header=extras[:_HEADER],
    )
    of_the_step = {"seconds": graph_state.times.step_seconds}
    graph_state.metrics.step_record.write(given, of_the_step, sources, outcome)
    _post(averaging, outcome)
    return outcome


def _post(averaging: Averaging, outcome: Any) -> None:
    """Graph: stores the inputs of the rules that fired, and requests a barrier if an acting rule fired."""
    graph_state, rules = averaging.graph_state, averaging.program.plan.rules
    # Shadow rules do not act: the host reports them, without a barrier.
    reported = [rule.is_reported for rule in rules]
    if any(reported):
        graph_state.rules.shadows.assign(outcome, standing=tf.constant(reported, tf.bool))
    if not any(rule.posts for rule in rules):
        return

    changing = tf.constant([changes_membership(rule.action) for rule in rules], tf.bool)
    fired = tf.logical_and(outcome.fired, graph_state.rules.standing)

    def post() -> None:
        step = graph_state.progress.step.read_value() + 1
        graph_state.rules.post(outcome, step=step)
        is_change = tf.cast(tf.reduce_any(tf.logical_and(fired, changing)), tf.int64)
        graph_state.posts.changes.post(is_change)
        graph_state.posts.others.post(1 - is_change)

    run_where(tf.reduce_any(fired), post)
