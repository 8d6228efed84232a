"""The average of models in the graph: in place of gradients, the peers average their weights and slots every H steps.

The *window* is the steps since the last average. In an ordinary step of the window every peer applies its own gradients
and sends nothing. The last step of the window, a *synchronising* step, sends two messages:

1. In ``training.average``: the message of `gradient_message` without gradients. It carries the samples and losses of
   the window, the policies' values and requests for a barrier; then folds and rules are evaluated.
2. After the update: weights and slots, and the requests once more, now with those of the rules that have just fired.

The host decides before each step if the step synchronises (`ModelAverage.announce`): position and settings are equal on
all peers, so all peers decide alike. If a message fails, the step is undone (`StepTrace.undo`), and the survivors
average their models as of the step before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

import tensorflow as tf

from kungfu.framework_internals import resources_written
from kungfu.runtime.api import Attachment, Position, advanced
from kungfu.training.graph.graph_state import GraphState
from kungfu.training.graph.step_report import PlannedEpochs, StepPosition
from kungfu.training.graph.variable_io import read_variable, write_variable

# The sums of tensors over the peers, each peer's times its weight.
Total = Callable[[Sequence[Any]], Sequence[Any]]


def _variable(name: str, value: Any, dtype: Any) -> tf.Variable:
    return tf.Variable(value, dtype=dtype, trainable=False, name=f"kungfu/{name}")


@dataclass(frozen=True)
class AverageWindow:
    """The variables of the window of this peer.

    Args:
        steps: The number of steps of the window if the running step is a synchronising step, else 0; set by the host.
        counted: The samples of all peers in the earlier steps of the window; equal on all peers.
        loss: The sum of the losses of these samples.
        weight: The weight of this peer's model in the next average: its share of the window's samples.
    """

    steps: tf.Variable = field(default_factory=partial(_variable, "window_steps", 1, tf.int64))
    counted: tf.Variable = field(default_factory=partial(_variable, "window_counted", 0, tf.int64))
    samples: tf.Variable = field(default_factory=partial(_variable, "window_samples", 0.0, tf.float32))
    loss: tf.Variable = field(default_factory=partial(_variable, "window_loss", 0.0, tf.float32))
    weight: tf.Variable = field(default_factory=partial(_variable, "window_weight", 1.0, tf.float64))

    def variables(self) -> list[tf.Variable]:
        return [getattr(self, one.name) for one in fields(self)]

    def is_last_step(self) -> Any:
        """Graph: True in a synchronising step."""
        return self.steps.read_value() > 0

    def count(self, samples: Any, loss: Any) -> None:
        """Graph: adds this peer's samples of a step, and their mean loss."""
        self.samples.assign_add(samples)
        self.loss.assign_add(tf.where(samples > 0, loss * samples, 0.0))

    def received(self, header: Any, size: Any) -> Any:
        """Graph: the header of a step's message, made from a header with the samples and losses of whole windows.

        The samples of the earlier steps were counted in these steps; the loss is the mean over the window.
        """
        whole, loss, posts = header[0], header[1], header[2:]
        samples = whole - tf.cast(self.counted.read_value(), tf.float32)
        own, total = (tf.cast(one, tf.float64) for one in (self.samples.read_value(), whole))
        self.weight.assign(tf.where(total > 0, tf.math.divide_no_nan(own, total), 1.0 / tf.cast(size, tf.float64)))
        return tf.concat([tf.stack([samples, tf.math.divide_no_nan(loss, whole) * samples]), posts], axis=0)

    def clear(self) -> None:
        """Graph: begins the next window."""
        for one in (self.counted, self.samples, self.loss):
            one.assign(tf.zeros_like(one))


class HeldSums:
    """Tensors that a step's message sums over the peers, summed over the earlier steps of the window on this peer.

    In an ordinary step the sums over the peers are zeros, so that the results of a window arrive with its last step.
    After a loss of peers the survivors add up what they hold, see ``conclude_window`` of the barrier.
    """

    def __init__(self) -> None:
        self.variables: list[tf.Variable] = []

    def add(
        self, totals: Sequence[Any], is_last_step: Any, send: Callable[[Sequence[Any]], Sequence[Any]]
    ) -> list[Any]:
        """Graph: holds this peer's ``totals`` of a step; in the last step of the window, the result of ``send``."""
        self._fit(totals)

        def hold() -> list[Any]:
            for held, one in zip(self.variables, totals, strict=True):
                held.assign_add(one)
            return [tf.constant(True), *map(tf.zeros_like, totals)]

        def sum_up() -> list[Any]:
            sums = send([held + one for held, one in zip(self.variables, totals, strict=True)])
            self.clear()
            return [tf.constant(True), *sums]

        return list(tf.cond(is_last_step, sum_up, hold))[1:]

    def clear(self) -> None:
        """Forgets what this peer has held, once it is summed, or if this peer has fetched another peer's state."""
        for held in self.variables:
            held.assign(tf.zeros_like(held))

    def _fit(self, totals: Sequence[Any]) -> None:
        """Creates the variables in the first trace, when the shapes and dtypes of the tensors become known."""
        kinds = [(one.shape, one.dtype) for one in totals]
        if [(held.shape, held.dtype) for held in self.variables] != kinds:
            with tf.init_scope():
                self.variables = [
                    tf.Variable(
                        tf.zeros(*kind),
                        trainable=False,
                        name="kungfu/held_sum",
                        experimental_enable_variable_lifting=False,  # otherwise TensorFlow traces a second time
                    )
                    for kind in kinds
                ]


class ModelAverage:
    """The averages of models of one run on this peer.

    Args:
        every: H, the number of steps from one average to the next.
    """

    def __init__(self, every: int, graph_state: GraphState, attachment: Attachment) -> None:
        with tf.device("/CPU:0"):
            self.window = AverageWindow()
        self.sums = HeldSums()
        self.equal: Sequence[tf.Variable] = ()  # equal on all peers, though the step writes them: not averaged
        self.every, self._graph_state, self._attachment = every, graph_state, attachment
        self.shared: Sequence[tf.Variable] = ()  # the weights and slots, of which the average covers those written
        self._variables: list[tf.Variable] = []
        self._averaged_at = 0  # the number of steps done at the last average
        self.summed_at = 0  # the number of steps done when the peers last added up what each of them has held
        self._announced = 1  # the window's steps, as last written to the graph
        self.lost = 0  # the samples that are in no average because of the last loss of peers

    # ---- host ------------------------------------------------------------------------------------------------------

    @property
    def is_synchronising(self) -> bool:
        """True if the coming or running step is a synchronising step."""
        return self._announced > 0

    @property
    def described(self) -> str:
        """The setting as text; equal on all peers of a job."""
        return f"sync=average_models(every={self.every})"

    def announce(self, here: StepPosition, planned: PlannedEpochs | None) -> None:
        """Decides if the step that begins ``here`` synchronises: it is the H-th since the last, or ends an epoch."""
        steps = here.step + 1 - self._averaged_at
        is_last = steps >= self.every or (planned is not None and _ends_epoch(here, planned))
        announced = steps if is_last else 0
        if announced != self._announced:
            self._announced = announced
            write_variable(self.window.steps, announced)

    def put_in_force(self, every: int) -> None:
        """Averages every ``every`` steps from the next window on, as a barrier has decided; 0 keeps the number."""
        self.every = every or self.every

    def is_in_force(self, steps: int) -> bool:
        """True if the models are those of the last average: no step was done since."""
        return steps == self._averaged_at

    def averaged(self, *, at: int) -> int:
        """Records the average of the ``at``-th step of the job; returns the number of steps of the window."""
        steps, self._averaged_at, self.summed_at, self.lost = at - self._averaged_at, at, at, 0
        return steps

    def restart(self, *, at: int) -> None:
        """Begins a window outside of a step, after ``at`` steps: in a view just entered, or after an average there."""
        self._averaged_at = at
        self.window.clear()

    def held(self) -> tuple[float, int]:
        """The samples of this peer, and of all peers, in the steps since the last average."""
        return float(read_variable(self.window.samples)), int(read_variable(self.window.counted))

    def average_held(self, total: Total) -> None:
        """Averages the models outside of a step: ``total`` sums over the peers the values times the peers' weights."""
        _assign_average(self._variables, total)

    # ---- graph -----------------------------------------------------------------------------------------------------

    def covers(self, graph: Any) -> None:
        """Tracing: selects the variables to average: floating-point variables of the state that the step writes.

        The mean of equal numbers may differ from them in the last bit, so constants and frozen weights are left alone.
        """
        equal = set(map(id, self.equal))
        self._variables = [one for one in self.shared if one.dtype.is_floating and id(one) not in equal]
        if graph is None:  # functions run op by op, to debug them: what the step writes is unknown
            return
        outer = {id(inner): id(handle) for handle, inner in graph.captures if inner.dtype == tf.resource}
        written = {outer.get(id(one)) for op in graph.get_operations() for one in resources_written(op)}
        self._variables = [one for one in self._variables if id(one.handle) in written]

    def average(self) -> list[Any]:
        """Graph, after the update of a synchronising step: averages the models; collects requests for a barrier.

        Returns tensors for which everything has to wait that a failed message must leave undone."""
        posts, window = self._graph_state.posts, self.window
        asked = [count.asked.read_value() for count in posts.counts]
        wanted = tf.stack([tf.cast(now - one.served, tf.float32) for now, one in zip(asked, posts.counts, strict=True)])
        given = list[Any]()

        def total(values: Sequence[Any]) -> Sequence[Any]:
            *sums, requests = self._attachment.all_reduce(
                [*values, wanted],
                prescale=window.weight.read_value(),
                order=self._graph_state.order,
                tag="models",
            )
            given.append(requests)
            return sums

        _assign_average(self._variables, total)
        with tf.control_dependencies(given):
            _collect(self._graph_state, asked, given[0])
            window.clear()
        return given


def _assign_average(variables: Sequence[tf.Variable], total: Total) -> None:
    """Assigns to each variable the sum over the peers, which ``total`` weights; half precision is summed in float32."""
    narrow = (tf.float16, tf.bfloat16)
    values = [tf.cast(one, tf.float32) if one.dtype in narrow else one.read_value() for one in variables]
    for variable, mean in zip(variables, total(values), strict=True):
        variable.assign(tf.cast(mean, variable.dtype))


def _collect(graph_state: GraphState, asked: Sequence[Any], requests: Any) -> None:
    """Graph: stores the requests of all peers, and those of this peer that the message has carried."""
    posts = graph_state.posts
    for count, now in zip(posts.counts, asked, strict=True):
        count.carried.assign(now)
    # During the warm-up no batch size is agreed, and this peer is in no view that could hold a barrier.
    everywhere = tf.cast(tf.round(tf.reduce_sum(requests)), tf.int64)
    agreed = graph_state.view.global_batch_size.read_value() > 0
    posts.everywhere.assign(tf.where(agreed, everywhere, tf.zeros_like(everywhere)))


def _ends_epoch(here: StepPosition, planned: PlannedEpochs) -> bool:
    """True if an epoch ends with the step that begins at this position."""
    batch, samples = here.global_batch_size, planned.samples
    least = batch if planned.drops else 1
    after = advanced(Position(here.epoch, here.offset), min(batch, samples - here.offset), samples=samples, least=least)
    return after.epoch > here.epoch
