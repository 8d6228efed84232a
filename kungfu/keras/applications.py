"""The applications of gradients in a custom training step, rewritten while the step is traced.

In the trace, ``apply`` of the model's optimizers first averages over the peers and then applies the means. Weights that
are assigned without an optimizer, from numbers that only this peer has, would diverge between the peers: such a write
is found in the graph and refused. An application that some steps would skip is refused as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.framework_internals import gradients_noted, layer_statistics, replaced_method
from kungfu.training.graph.tracing.sample_flow import SampleFlow

# Called with an optimizer, its gradients and their loss; returns the means of the gradients over the peers.
Average = Callable[[Any, Sequence[Any], Any], Sequence[Any]]

_LOOP = "or write the loop with kf.attach() and @training.step(averages=...) (docs/steps.md)"


def optimizers_of(model: Any) -> list[Any]:
    """The optimizer given to ``compile``, and the optimizers in the model's attributes, lists and dictionaries."""
    found = {id(one): one for value in (model.optimizer, *vars(model).values()) for one in _optimizers_in(value)}
    # A loss-scaling optimizer contains the optimizer that applies its gradients.
    inner = {id(getattr(one, "inner_optimizer", None)) for one in found.values()}
    return [one for key, one in found.items() if key not in inner]


def _optimizers_in(value: Any) -> list[Any]:
    held = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
    return [one for one in held if isinstance(one, keras.optimizers.Optimizer)]


class Applications:
    """The applications of gradients in one trace; calls ``average`` for each of them, in program order."""

    def __init__(self, model: Any, average: Average) -> None:
        self._model, self._average = model, average
        self.optimizers: list[Any] = []  # the optimizer of each application, in program order
        self._graph: Any = None  # the step's graph
        self._applies = False  # True during an application; nested calls of ``apply`` belong to this application
        self._targets: list[tuple[list[Any], Any]] = []  # the gradients of each tape, and their target
        self._means: list[Any] = []
        self._operations: set[Any] = set()  # created by optimizers

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Surrounds the user's step while it is traced: each application of gradients first averages the gradients.

        Raises ``UsageError`` at the end of the block if a weight is assigned without an optimizer."""
        self._graph = tf.compat.v1.get_default_graph()
        data = [one for one in self._graph.inputs if one.dtype != tf.resource]
        with ExitStack() as within, gradients_noted(self._note_gradients):
            for one in optimizers_of(self._model):
                within.enter_context(replaced_method(one, "apply", self._averaging(one, one.apply)))
            yield
        self._refuse_writes(data)

    def _averaging(self, optimizer: Any, apply: Callable[..., None]) -> Callable[..., None]:
        """Returns a replacement for an optimizer's ``apply``; the replacement averages the gradients first."""

        @tf.autograph.experimental.do_not_convert
        def averaging(grads: Any, trainable_variables: Any = None) -> None:
            gradients = list(grads)
            # A call inside an application, or nothing to apply.
            if self._applies or not gradients:
                apply(gradients, trainable_variables)
                return
            self._refuse_place(optimizer)
            means = self._average(optimizer, gradients, self._loss_of(gradients, optimizer))
            self.optimizers.append(optimizer)
            self._means += [one for one in means if one is not None]
            before = len(self._graph.get_operations())
            self._applies = True
            try:
                apply(means, trainable_variables)
            finally:
                self._applies = False
            self._operations.update(self._graph.get_operations()[before:])

        return averaging

    def _refuse_place(self, optimizer: Any) -> None:
        if tf.compat.v1.get_default_graph() is self._graph:
            return
        raise UsageError(
            f"{self._step()} applies gradients by {optimizer.name!r} in a function inside of the step, under a "
            "condition (tf.cond, keras.ops.cond, a loop) on which peers may disagree, so that they would wait for "
            "each other: apply in each step, in train_step itself, with gradients of zeros where nothing is to change; "
            f"take a tf.function away; {_LOOP}"
        )

    def _note_gradients(self, found: Any, target: Any) -> None:
        self._targets.append(([one for one in tf.nest.flatten(found) if one is not None], target))

    def _loss_of(self, gradients: Sequence[Any], optimizer: Any) -> Any:
        """The loss that ``gradients`` come from; the last tape's loss if the step changed them; NaN without a tape."""
        given = {id(one) for one in gradients if one is not None}
        known = self._known_targets()
        if not known:
            return tf.constant(float("nan"))
        own = [target for found, target in known if given & {id(one) for one in found}]
        target = own[-1] if own else known[-1][1]
        loss = tf.add_n([tf.reduce_mean(tf.cast(one, tf.float32)) for one in tf.nest.flatten(target)])
        scale = getattr(optimizer, "dynamic_scale", None)  # set in half precision
        return loss if scale is None else loss / tf.cast(tf.convert_to_tensor(scale), tf.float32)

    @property
    def knows_loss(self) -> bool:
        """True if a tape of the step itself computed gradients."""
        return bool(self._known_targets())

    def _known_targets(self) -> list[tuple[list[Any], Any]]:
        """The gradients and the differentiated target of each tape in the step's own graph, not in called functions."""
        return [
            (found, target)
            for found, target in self._targets
            if all(getattr(one, "graph", None) is self._graph for one in tf.nest.flatten(target))
        ]

    def _refuse_writes(self, data: Sequence[Any]) -> None:
        """Raises ``UsageError`` if a weight is assigned a value computed only from this peer's samples."""
        statistics = {id(one) for one in layer_statistics(self._model)}
        weights = {id(one.value.handle): one for one in self._model.weights if id(one) not in statistics}
        flow = SampleFlow(self._graph, data, agreed=self._means, passed_over=self._operations)
        wrong = next((one for handle, one in weights.items() if handle in flow.written), None)
        if wrong is not None:
            raise UsageError(
                f"{self._step()} assigns to the weight {wrong.path!r} what this peer has computed from its own "
                "samples, past the optimizers that the model holds "
                f"({', '.join(repr(one.name) for one in optimizers_of(self._model)) or 'none'}), so the weights of "
                "the peers would part: apply gradients by an optimizer that compile() was given or that is an "
                f"attribute of the model; {_LOOP}"
            )

    def _step(self) -> str:
        return f"{type(self._model).__name__}.train_step()"
