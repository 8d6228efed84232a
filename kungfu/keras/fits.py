"""The results of the finished fits of a program, for peers that join later.

A joining peer runs the program from its top. On this peer a finished fit returns at once, with the History, the
callbacks' attributes and the weights that the other peers had at the fit's end. So the program's code between two fits
behaves the same on all peers. The joining peer trains in the fit under way, from the state that it receives on joining.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.keras.applications import optimizers_of
from kungfu.keras.callbacks import JobCallbacks
from kungfu.keras.plain_values import is_plain, pack, unpack


class Evaluations:
    """The results of ``evaluate`` between two fits, in order; equal on all peers, and sent to joiners."""

    def __init__(self) -> None:
        self._results: list[list[Any]] = []
        self._used = 0  # by this peer, if it skips the fit

    def add(self, data: Sequence[int], logs: Mapping[str, Any]) -> None:
        """Adds the results of a call that all peers made; ``data`` is the number of batches, and their checksum."""
        if is_plain(dict(logs)):
            self._results.append([list(data), dict(logs)])

    def next_result(self, data: Sequence[int]) -> dict[str, Any] | None:
        """The other peers' results of the next call; ``None`` if they have not made it, or made it with other data."""
        if self._used >= len(self._results) or self._results[self._used][0] != list(data):
            return None
        self._used += 1
        return dict(self._results[self._used - 1][1])

    def results(self) -> list[list[Any]]:
        """All results so far, for a joining peer; thread-safe."""
        return list(self._results)

    def adopt(self, results: Sequence[list[Any]]) -> None:
        """Replaces the results by the results of another peer."""
        self._results, self._used = list(results), 0


def pack_outcome(
    model: Any, callbacks: JobCallbacks, evaluations: Evaluations, *, described: Sequence[str], run: str
) -> Callable[[], bytes]:
    """Returns a function that packs the outcome of a fit on this peer; later training does not change the outcome.

    Cost: on the CPU nothing is copied: the weights' memory is held, and later updates use new memory."""
    with tf.device("/CPU:0"):
        values = [tf.identity(one) for one in _variables(model)]
    # Packing and unpacking makes a deep copy, which later changes do not affect.
    kept, stops = unpack(pack(callbacks.kept())), bool(model.stop_training)

    def packed() -> bytes:
        # As bytes: NumPy lacks some types (bfloat16).
        arrays = [np.frombuffer(np.ascontiguousarray(one.numpy()).tobytes(), np.uint8) for one in values]
        # Evaluations are added until the next fit begins; any thread may call this function.
        outcome = {"arguments": list(described), "callbacks": kept, "stops": stops, "run": run, "variables": arrays}
        return pack({**outcome, "evaluations": evaluations.results()})

    return packed


def adopt_outcome(
    content: bytes, model: Any, callbacks: JobCallbacks, evaluations: Evaluations, *, described: Sequence[str]
) -> str:
    """Adopts the outcome of a finished fit; returns the name of the job whose peers trained in that fit.

    Raises ``UsageError`` if this peer's call of ``fit`` differs from the others'."""
    outcome = unpack(content)
    if outcome["arguments"] != described:
        pairs = ((one, other) for one, other in zip(described, outcome["arguments"], strict=False) if one != other)
        here, there = next(pairs, (f"{len(described)} arguments", str(len(outcome["arguments"]))))
        raise UsageError(
            f"fit {described[0]} has {here} on this peer, and {there} on those that have done it: all "
            "peers run the same program, with the same data"
        )
    variables = _variables(model)
    if [one.dtype.size * int(np.prod(one.shape)) for one in variables] != [one.size for one in outcome["variables"]]:
        raise UsageError(
            f"fit {described[0]} was given a model with other variables on this peer than on those "
            "that have done it: all peers run the same program"
        )
    callbacks.adopt(outcome["callbacks"], where="on those that have done it")
    for variable, value in zip(variables, outcome["variables"], strict=True):
        array = np.frombuffer(value.tobytes(), variable.dtype.as_numpy_dtype)
        variable.assign(array.reshape(variable.shape))
    model.stop_training = outcome["stops"]
    evaluations.adopt(outcome["evaluations"])
    return str(outcome["run"])


def _variables(model: Any) -> list[tf.Variable]:
    """The variables in the outcome of a fit: weights and optimizers' scalars; slots come from the fit under way."""
    own = [one for optimizer in optimizers_of(model) for one in optimizer.variables if not len(one.shape)]
    return [one.value if isinstance(one, keras.Variable) else one for one in (*model.weights, *own)]
