"""What Python learns while TensorFlow traces the user's function, which it may do twice: the last time counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import tensorflow as tf

from kungfu.training.graph.effects import Gate
from kungfu.training.graph.handles import is_variable
from kungfu.training.graph.streams import Streams

__all__ = ["Trace"]


class Trace:
    """The last trace of a function that was made by ``traced``.

    Its prints and summaries stand behind a ``gate``, and it draws from ``streams`` of this peer's, where there are.
    """

    def __init__(self, gate: Gate | None = None, streams: Streams | None = None) -> None:
        self._gate, self.streams, self._around = gate, streams, ExitStack()
        self.averages = 0  # calls of training.average()
        self.means: list[Any] = []  # what it gave
        self.graph: Any = None  # of the function
        self.handles: list[Any] = []  # of the variables that the function touched, without those that only kungfu does
        self._ours: set[int] = set()

    def traced(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, made so that this object knows of its last trace."""

        def traced(*args: Any, **kwargs: Any) -> Any:
            self._begin()
            try:
                returned = function(*args, **kwargs)
            finally:
                self._around.close()
            self._end()
            return returned

        return traced

    @contextmanager
    def average(self) -> Iterator[None]:
        """Around the building of an average: the variables that come up there are kungfu's."""
        self.averages += 1
        before = _ids(_captured())
        yield
        self._ours |= _ids(_captured()) - before

    @tf.autograph.experimental.do_not_convert
    def _begin(self) -> None:
        self.averages, self.means = 0, []
        self._ours = _ids(_captured())
        if self._gate is not None:
            self._around.enter_context(self._gate.around())
        if self.streams is not None and not tf.executing_eagerly():
            self.streams.seed(tf.compat.v1.get_default_graph())

    @tf.autograph.experimental.do_not_convert
    def _end(self) -> None:
        if not tf.executing_eagerly():  # op by op nothing is captured: what was known of the trace stays
            self.graph = tf.compat.v1.get_default_graph()
            if self.streams is not None:
                self.streams.exchange(self.graph)
            self.handles = [one for one in _captured() if id(one) not in self._ours]


def _captured() -> Sequence[Any]:
    """The handles of the variables that the graph under construction touches so far."""
    if tf.executing_eagerly():
        return []
    graph = tf.compat.v1.get_default_graph()
    return [external for external, _ in graph.captures if is_variable(external)]


def _ids(handles: Sequence[Any]) -> set[int]:
    return {id(one) for one in handles}
