"""The metrics of a model in a job, and the logs for callbacks, which are computed when they are first read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kungfu.framework_internals import loss_tracker


def metrics_of(model: Any) -> list[Any]:
    """All metrics that a training step of the model updates, each once, including the metrics of ``compile``."""
    tracker = loss_tracker(model)
    top = [*model.metrics, *([] if tracker is None else [tracker])]
    found: dict[int, Any] = {}
    for metric in top:
        for one in _parts(metric):
            found[id(one)] = one
    return list(found.values())


def _parts(metric: Any) -> Iterator[Any]:
    """The metrics inside a metric: ``compile`` wraps its metrics in a container metric."""
    inside = getattr(metric, "metrics", None)
    if inside is None:
        yield metric
    else:
        for one in inside:
            yield from _parts(one)


class JobLogs:
    """The logs of an epoch so far, computed by ``numbers`` from ``totals``; equal on all peers."""

    def __init__(self, totals: Sequence[tf.Variable], numbers: Callable[[Sequence[Any]], dict[str, Any]]) -> None:
        self.totals, self._function = totals, numbers
        self._numbers: Callable[..., dict[str, Any]] | None = None  # traced on the first reading

    def so_far(self) -> dict[str, Any]:
        """The logs after the last finished step: a dictionary, computed when it is first read."""
        return _Logs(partial(self._computed, [total.read_value() for total in self.totals]))

    def _computed(self, totals: list[Any]) -> dict[str, Any]:
        if self._numbers is None:
            # Traced from a signature: in a program with several fits, TensorFlow would warn about calls that trace.
            specs = [tf.TensorSpec(one.shape, one.dtype) for one in totals]
            self._numbers = tf.function(self._function, autograph=False).get_concrete_function(specs)
        return {name: plain_number(value) for name, value in self._numbers(totals).items()}


class _Logs(dict[str, Any]):
    """A dictionary that is filled at the first call of one of the methods in `_FILLS`."""

    def __init__(self, compute: Callable[[], dict[str, Any]]) -> None:
        super().__init__()
        self._compute: Callable[[], dict[str, Any]] | None = compute

    def fill(self) -> None:
        """Fills this dictionary with the computed logs; later calls have no effect."""
        compute, self._compute = self._compute, None
        if compute is not None:
            dict.update(self, compute())


# Methods that do not need the contents.
_EMPTY_TOO = frozenset(vars(object)) - {"__eq__", "__ne__", "__repr__"} | {"__class_getitem__", "fromkeys"}


def _filling(own: Callable[..., Any]) -> Callable[..., Any]:
    def method(logs: _Logs, *args: Any, **kwargs: Any) -> Any:
        logs.fill()
        return own(logs, *args, **kwargs)

    return method


_FILLS = [name for name in vars(dict) if callable(getattr(dict, name)) and name not in _EMPTY_TOO]
for _name in _FILLS:
    setattr(_Logs, _name, _filling(getattr(dict, _name)))


def plain_number(value: Any) -> Any:
    """A number as Keras passes it to callbacks.

    >>> plain_number({"loss": np.ones((1,), np.float32)})
    {'loss': 1.0}
    """
    if isinstance(value, dict):
        return {name: plain_number(one) for name, one in value.items()}
    array = np.asarray(keras.ops.convert_to_numpy(value))
    return float(array.item()) if array.size == 1 else array  # NumPy 2.4 cannot convert an array with dimensions
