"""The results of the finished fits of a program, for peers that join later.

A joining peer runs the program from its top. A fit that is over returns at once, with the History, the callbacks'
attributes and the weights that the others had at its end, so the program's code between two fits behaves the same on
all peers. The peer trains in the fit under way, from the state that it receives on joining.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.keras.applications import optimizers_of
from kungfu.keras.callbacks import JobCallbacks, verbosity
from kungfu.keras.data.fit_data import FitData
from kungfu.keras.plain_values import is_plain, pack, unpack
from kungfu.training.graph.combined_metrics import Combination
from kungfu.training.loop.job_connection import JobConnection


class Evaluations:
    """The results of ``evaluate`` between two fits, in order; equal on all peers, and sent to joining peers."""

    def __init__(self) -> None:
        self._results: list[list[Any]] = []
        self._used = 0  # by this peer, if it skips the fit

    def add(self, data: Sequence[int], logs: Mapping[str, Any]) -> None:
        """Adds the peers' results of a call; ``data`` is the number of batches and their checksum."""
        if is_plain(dict(logs)):
            self._results.append([list(data), dict(logs)])

    def next_result(self, data: Sequence[int]) -> dict[str, Any] | None:
        """The results of the next call; ``None`` if the others have not reached it, or had other data."""
        if self._used >= len(self._results) or self._results[self._used][0] != list(data):
            return None
        self._used += 1
        return dict(self._results[self._used - 1][1])

    def results(self) -> list[list[Any]]:
        """All results so far, for a joining peer; thread-safe."""
        return list(self._results)

    def adopt(self, results: Sequence[list[Any]]) -> None:
        """Replaces the results by another peer's."""
        self._results, self._used = list(results), 0


class FitCall:
    """One call of ``fit`` on one peer of a job, which trains in that fit, or skips it if it is over.

    Args:
        model: The model, compiled and built.
        arguments: All arguments of ``fit`` by name.
        data: The training and validation data.
        connection: This process in its job.
        combine: The combination of metrics' states over the peers, by the name of the metric.

    Raises:
        UsageError: A callback cannot run in a job.
    """

    def __init__(
        self,
        model: Any,
        arguments: Mapping[str, Any],
        data: FitData,
        connection: JobConnection,
        *,
        combine: Mapping[str, Combination] = MappingProxyType({}),
    ) -> None:
        self.model, self.arguments, self.data, self.connection = model, arguments, data, connection
        self.combine, self.evaluations = combine, Evaluations()
        given, verbose = arguments["callbacks"] or [], verbosity(arguments["verbose"])
        params = {"epochs": arguments["epochs"], "steps": data.steps}
        self.callbacks = JobCallbacks(given, model, verbose=verbose, params=params)

    @property
    def described(self) -> list[str]:
        """The parts of the call that must be equal on all peers, as texts."""
        arguments, plan, weights = self.arguments, self.data.plan, self.arguments["class_weight"]
        names = () if self.data.validation is None else ("freq", "steps", "batch_size")
        validates = [f"validation_{name}={arguments[f'validation_{name}']}" for name in names]
        return [
            f"number {self.connection.phase} of the program",
            f"epochs={arguments['epochs']}",
            f"initial_epoch={arguments['initial_epoch']}",
            f"{plan.source.samples} samples",
            ", ".join([f"batches of {plan.batch_size}", *validates]),
            *([] if weights is None else [f"class_weight={_in_order(weights)}"]),
        ]

    def nothing(self) -> Any:
        """Runs a ``fit`` without epochs: only the callbacks' beginning and end."""
        self.model.stop_training = False
        self.callbacks.begin()
        self.callbacks.lead(takes_over=False)
        self.callbacks.end({})
        return self.model.history

    def passed(self, content: bytes) -> Any:
        """Skips this fit, which the others have finished: adopts its outcome, and returns its History."""
        epochs = _adopt_outcome(content, self)
        x = self.arguments["x"]
        # A Dataset that reshuffles on each reading must be read as often as on the other peers.
        if isinstance(x, tf.data.Dataset):
            for _ in range(1 if self.arguments["steps_per_epoch"] else epochs):
                next(iter(x), None)
        return self.model.history

    def outcome(self) -> Callable[[], bytes]:
        """Returns a function that packs the outcome of the fit on this peer; later training does not change it.

        Cost:
            On the CPU nothing is copied: the weights' memory is held, and a later update goes to new memory.
        """
        with tf.device("/CPU:0"):
            values = [tf.identity(one) for one in _variables(self.model)]
        # Packed and unpacked: a deep copy, which later changes do not reach.
        outcome = {
            "told": self.described,
            "callbacks": unpack(pack(self.callbacks.kept())),
            "stops": bool(self.model.stop_training),
            "run": self.connection.run,
        }
        evaluations = self.evaluations  # a separate name, so that the closure does not hold this call's model and data

        def packed() -> bytes:
            # Evaluations are added until the next fit begins; any thread may call this.
            whole = {**outcome, "evaluations": evaluations.results()}
            # As bytes: NumPy lacks some types (bfloat16).
            arrays = [np.frombuffer(np.ascontiguousarray(one.numpy()).tobytes(), np.uint8) for one in values]
            return pack({**whole, "variables": arrays})

        return packed


def _in_order(weights: Mapping[int, float]) -> str:
    """The class weights as text, with NumPy's numbers written like Python's."""
    return "{" + ", ".join(f"{name}: {float(weight):g}" for name, weight in sorted(weights.items())) + "}"


def _adopt_outcome(content: bytes, call: FitCall) -> int:
    """Adopts the outcome of a finished fit; returns the number of epochs that the others trained in it.

    Raises:
        UsageError: The call differs from the others' call.
    """
    outcome, model, number = unpack(content), call.model, call.connection.phase
    if outcome["told"] != call.described:
        here, there = _difference(call.described, outcome["told"])
        raise UsageError(
            f"fit number {number} of this program has {here} on this peer, and {there} on those that have done it: all "
            "peers run the same program, with the same data"
        )
    variables = _variables(model)
    if [one.dtype.size * int(np.prod(one.shape)) for one in variables] != [one.size for one in outcome["variables"]]:
        raise UsageError(
            f"fit number {number} of this program was given a model with other variables on this peer than on those "
            "that have done it: all peers run the same program"
        )
    call.callbacks.adopt(outcome["callbacks"])
    for variable, value in zip(variables, outcome["variables"], strict=True):
        array = np.frombuffer(value.tobytes(), variable.dtype.as_numpy_dtype)
        variable.assign(array.reshape(variable.shape))
    model.stop_training = outcome["stops"]
    call.evaluations.adopt(outcome["evaluations"])
    connection = call.connection
    connection.run, connection.passes = outcome["run"], True
    return len(model.history.epoch)


def _variables(model: Any) -> list[tf.Variable]:
    """The weights, and the optimizers' scalars; a fit that continues sends the optimizers' slots separately."""
    own = [one for optimizer in optimizers_of(model) for one in optimizer.variables if not len(one.shape)]
    return [one.value if isinstance(one, keras.Variable) else one for one in (*model.weights, *own)]


def _difference(here: Sequence[str], there: Sequence[str]) -> tuple[str, str]:
    """The first pair of entries that differ."""
    pairs = ((one, other) for one, other in zip(here, there, strict=False) if one != other)
    return next(pairs, (f"{len(here)} arguments", f"{len(there)}"))
