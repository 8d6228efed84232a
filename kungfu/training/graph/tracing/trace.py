"""Records the last trace of the user's function, since TensorFlow may trace it twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import tensorflow as tf

from kungfu.errors import KungfuError, UsageError
from kungfu.framework_internals import add_control_inputs, is_in_xla_context, is_under_condition
from kungfu.training.graph.tracing.effects import EffectGate
from kungfu.training.graph.tracing.random_streams import RandomStreams
from kungfu.training.graph.variable_io import is_variable


class StepTrace:
    """The last trace of a function that ``traced`` wraps. ``gate`` puts the function's prints and summaries inside a
    condition; it is ``None`` in a program that runs alone."""

    def __init__(self, gate: EffectGate | None = None) -> None:
        self.gate, self._around = gate, ExitStack()
        self.random_streams: RandomStreams | None = None  # this peer's, from which the function draws in later traces
        self.around: list[Callable[[], AbstractContextManager[None]]] = []  # contexts entered around each trace
        self.is_under_way = False
        self.averages = 0  # calls of training.average()
        self.declared_averages = 1  # the number that the program declares
        self.waited: list[Any] = []  # the seconds that each message before the last one took, in the graph
        # The handles of variables that a step may change before its last message arrives: if that message fails, the
        # variables are restored, and all peers repeat the step. Old values are kept, so a first write allocates memory.
        self.undo: list[Any] = []
        self.undone: list[Any] = []  # handles of other variables that a failed step must restore
        self.ended_at: int | None = None  # the number of operations before the arrival of the last message
        self._moved_early: set[int] | None = set()  # ids of the handles used before the last average; None for all
        self.published: dict[str, tuple[Any, str]] = {}  # the graph and the user's line, by name
        self.means: list[Any] = []  # the results of the last average
        self.refused: KungfuError | None = None  # the error that AutoGraph re-raised as another type
        self.graph: Any = None  # the traced graph of the function
        self.handles: list[Any] = []  # of the variables that the function touches, except kungfu's own
        self._ours: set[int] = set()
        self._own: Any = None  # the graph of the function

    def traced(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps the function so that this object records its last trace."""

        def traced(*args: Any, **kwargs: Any) -> Any:
            self._begin()
            try:
                returned = function(*args, **kwargs)
            finally:
                self._leave()
            _hold_back(self.means)
            self._end()
            return returned

        return traced

    @contextmanager
    def average(self) -> Iterator[None]:
        """Surrounds the code that builds an average: variables first used in the block count as kungfu's."""
        self.averages += 1
        if self.is_last_average and self.declared_averages > 1:
            self._moved_early = self.captured()
        with self.ours():
            self._refuse_place()
            yield

    def averaged(self, means: Any) -> None:
        """Records the means of the last average (a nest); later ops of the step wait for these means."""
        self.means = [mean for mean in tf.nest.flatten(means) if mean is not None]
        self.note_end()

    def note_end(self) -> None:
        """Records the number of ops in the graph after the step's last message; unknown inside a nested function."""
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        self.ended_at = len(graph.get_operations()) if graph is not None and graph is self._own else None

    @property
    def batch(self) -> list[Any]:
        """The tensor arguments of the function, as inputs of the function's graph."""
        captured = {id(own) for _, own in self.graph.captures}
        return [one for one in self.graph.inputs if one.dtype != tf.resource and id(one) not in captured]

    @property
    def is_last_average(self) -> bool:
        """True if the average under construction is the last one that the program declared."""
        return self.averages == self.declared_averages

    def refuse_averages(self) -> None:
        """Raises ``UsageError`` if the last trace averages more or less often than declared."""
        found, declared = self.averages, self.declared_averages
        if found == declared:
            return
        if declared == 1:
            raise UsageError(
                f"the function marked @training.step calls training.average() {found} times; it must do so exactly "
                "once, with all gradients, or say how often: @training.step(averages=...)"
            )
        raise UsageError(
            f"the function marked @training.step(averages={declared}) calls training.average() {found} times: say as "
            "many as it calls in each step, since what the policies need rides on the last one"
        )

    def undo_all(self) -> None:
        """Records that a message follows the last average; if this message fails, the whole step must be undone."""
        self._moved_early = None

    def _refuse_place(self) -> None:
        """Raises ``UsageError`` if a step might not send this message, or might send it twice."""
        if tf.executing_eagerly():
            return
        graph = tf.compat.v1.get_default_graph()
        if is_under_condition(graph):
            raise UsageError(
                "training.average() was called under a condition or in a loop of the graph (tf.cond, tf.while_loop, or "
                "an if or for on tensors): peers that take another way would wait for each other; call it in each "
                "step, and choose with tf.where what is applied"
            )
        # A nested function is traced once and may be called twice, so its averages cannot be counted.
        if self.declared_averages > 1 and graph is not self._own:
            raise UsageError(
                "training.average() was called in a tf.function inside of a step with "
                f"averages={self.declared_averages}: call it in the step itself; loss and gradients may be computed "
                "in functions of their own"
            )

    @contextmanager
    def ours(self) -> Iterator[None]:
        """Surrounds kungfu's additions to the user's function: variables first used in the block count as kungfu's."""
        before = _ids(_captured())
        try:
            yield
        except KungfuError as error:
            self.refused = error
            raise
        self._ours |= _ids(_captured()) - before

    def publish(self, name: str, where: str) -> str:
        """Records a published name; returns the user's line that published it earlier in this trace, or ""."""
        # TensorFlow may trace a function inside the step twice: then one line publishes once in each of two graphs.
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        before = self.published.get(name)
        self.published[name] = (graph, where)
        return "" if before is None or (before[0] is not graph and before[1] == where) else before[1]

    def captured(self) -> set[int]:
        """The ids of the variables' handles that the function has used so far, also in graphs nested in its graph."""
        if tf.executing_eagerly():
            return set()
        graph = tf.compat.v1.get_default_graph()
        found = _ids(_captured())
        while graph is not self._own and (graph := getattr(graph, "outer_graph", None)) is not None:
            found |= _ids([external for external, _ in getattr(graph, "captures", ())])
        return found

    @tf.autograph.experimental.do_not_convert
    def _begin(self) -> None:
        self.is_under_way, self.averages, self.means, self.waited = True, 0, [], []
        self.refused = None
        self.published.clear()
        self._ours = _ids(_captured())
        self._own = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        if self.gate is not None:
            self._around.enter_context(self.gate.around())
        if self.random_streams is not None and not tf.executing_eagerly():
            self.random_streams.seed(tf.compat.v1.get_default_graph())
        for around in self.around:
            with self.ours():
                self._around.enter_context(around())

    @tf.autograph.experimental.do_not_convert  # converting an exit stack takes longer than the user's function
    def _leave(self) -> None:
        self.is_under_way = False
        self._around.close()

    @tf.autograph.experimental.do_not_convert
    def _end(self) -> None:
        if not tf.executing_eagerly():  # eager ops capture nothing: the findings of an earlier trace are kept
            self.graph = tf.compat.v1.get_default_graph()
            if self.random_streams is not None:
                self.random_streams.exchange(self.graph)
            self.handles = [one for one in _captured() if id(one) not in self._ours]
            early = self._moved_early
            moved = [one for one in self.handles if early is None or id(one) in early]
            self.undo = list({id(one): one for one in [*moved, *self.undone]}.values())


def _captured() -> Sequence[Any]:
    """The handles of the variables that the graph under construction has captured so far."""
    if tf.executing_eagerly():
        return []
    graph = tf.compat.v1.get_default_graph()
    return [external for external, _ in graph.captures if is_variable(external)]


def _ids(handles: Sequence[Any]) -> set[int]:
    return {id(one) for one in handles}


def refuse_xla(what: str) -> None:
    """Raises ``UsageError`` if ``what`` is being traced into a function that XLA compiles as a whole."""
    if tf.executing_eagerly() or not is_in_xla_context(tf.compat.v1.get_default_graph()):
        return
    raise UsageError(
        f"{what} was called inside a tf.function(jit_compile=True): XLA compiles such a function as a whole, and can "
        "compile neither the message that averages gradients nor a barrier; put jit_compile=True on a function of its "
        "own that computes loss and gradients, and call that one in the step, before training.average()"
    )


@tf.autograph.experimental.do_not_convert
def _hold_back(means: Sequence[Any]) -> None:
    """Delays, until the means are computed, the ops that follow a function's average and touch a variable.

    A step in which peers are lost must have changed nothing. TensorFlow runs an op as soon as its inputs are ready, and
    a step counter, for example, needs none of the means. If the step's message failed and the step were repeated, the
    counter would be one too high on some of the peers.

    Args:
        means: The means of the average. If they are in a graph nested in the function, only ops that use them wait.
    """
    if tf.executing_eagerly():  # eager ops already run in the program's order
        return
    graph = tf.compat.v1.get_default_graph()
    awaited = [mean.op for mean in means if mean.graph is graph]
    if not awaited:  # the average is in a nested graph
        return
    operations = graph.get_operations()
    last = max(operations.index(op) for op in awaited)
    for op in operations[last + 1 :]:
        # An op that is stateful, or has a variable as input, may change it.
        if op.op_def.is_stateful or any(given.dtype == tf.resource for given in op.inputs):
            add_control_inputs(op, awaited)
