"""``evaluate`` and ``predict`` of a job: each peer processes a part of the batches, and all get the whole result.

A *pass*, the shared work of one call, has two meetings of the peers. In the first meeting, the peers check that they do
the same work on the same data, and split the remaining batches into contiguous runs. Each peer processes its part by
Keras' ``evaluate`` or ``predict``. In the second meeting, the parts are combined: the states of metrics are added up,
or combined by the program's ``combine``, and predictions become one array in the order of the data. After a loss of
peers, the next attempt processes the batches of the lost parts.

Each peer processes all batches if the work cannot be shared: if batches have no numbers or are fewer than the peers,
data differ between peers, a metric has no known combination, or a layer keeps statistics of the data.

The evaluation of a peer's part leaves a metric in the same state as a training step with this part as the peer's
slice. So sums are added, and other states are combined by the program's ``combine``. A "mean" of states cannot be
computed, as the number of batches behind each state is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from kungfu.framework_internals import is_keras_model, layer_statistics
from kungfu.keras.evaluation.numbered_batches import NumberedBatches
from kungfu.keras.metrics import metrics_of, plain_number
from kungfu.keras.plain_values import agreed, is_plain
from kungfu.runtime.api import spread
from kungfu.training.graph.combined_metrics import Combination, adds_up, call_combination
from kungfu.training.state.registered_sync import PeerGroup

Meet = Callable[[Callable[[PeerGroup], None]], bool]
States = list[NDArray[Any]]
_PIECE_BYTES = 1 << 24


class SharedPass:
    """One pass over data by all peers of a view; without numbered ``batches``, each peer processes all of the data."""

    def __init__(self, batches: NumberedBatches, work: SharedEvaluation | SharedPrediction) -> None:
        self._batches, self._work = batches, work
        self._done: set[int] = set()  # the batches that this peer has processed
        self._fits = True
        self.result: Any = None
        self.differs = False  # True if the work or the data differed between peers

    def attempt(self, meet: Meet) -> bool:
        """Runs the pass, or continues it after a loss of peers; ``meet`` returns False if peers are lost in a meeting.

        Returns True if ``result`` is available; False if peers were lost, and the others must call this again."""
        # The result was complete before peers were lost.
        if self.result is not None:
            return True
        mine: list[int] | None = None

        def agree(peers: PeerGroup) -> None:
            nonlocal mine
            mine = self._split(peers)

        if not meet(agree):
            return False
        # The work cannot be shared.
        if mine is None:
            self.result = self._work.do_all()
            return True
        if mine:
            self._fits = self._work.do(self._batches.part(mine), mine) and self._fits
            self._done.update(mine)
        if not meet(self._join):
            return False
        if self.result is None:
            self.result = self._work.do_all()
        return True

    def _split(self, peers: PeerGroup) -> list[int] | None:
        """The batches that this peer processes now; ``None`` if each peer processes all batches."""
        count = self._batches.count
        own = [self._work.name, count, self._batches.checksum]
        (self.differs,) = peers.any_of([own != agreed(peers, own)])
        is_alone = peers.size == 1 and not self._done
        if self.differs or is_alone or count < peers.size:
            return None
        done = peers.any_of([number in self._done for number in range(count)])
        missing = [number for number, is_done in enumerate(done) if not is_done]
        counts = spread(len(missing), peers.size)
        start = sum(counts[: peers.rank])
        return missing[start : start + counts[peers.rank]]

    def _join(self, peers: PeerGroup) -> None:
        # A peer that joined in a recovery may have no part.
        (unfit,) = peers.any_of([not self._fits or not self._done])
        self.result = None if unfit else self._work.join(peers, count=self._batches.count)


class _Memory:
    """The layers' statistics before a part is processed; a part that changes these statistics cannot be shared."""

    def __init__(self, model: Any) -> None:
        variables = layer_statistics(model) if is_keras_model(model) else []
        self._before = [(one, tf.identity(one.value)) for one in variables]

    def put_back(self) -> bool:
        """Restores the statistics that the layers had before the part; returns True if the part had changed them."""
        changed = [(one, old) for one, old in self._before if one.numpy().tobytes() != old.numpy().tobytes()]
        for one, old in changed:
            one.assign(old)
        return bool(changed)


class _Numbered(keras.callbacks.CallbackList):
    """Forwards the batch calls of callbacks, numbered over all parts; drops those at a part's start and end."""

    def __init__(self, callbacks: Any, numbers: Sequence[int], seen: Callable[[int, Any], None]) -> None:
        super().__init__()
        self._inner, self._numbers, self._seen = callbacks, numbers, seen

    def _number(self, batch: int) -> int:
        return self._numbers[min(batch, len(self._numbers) - 1)]

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._inner.on_test_batch_begin(self._number(batch), logs)

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        self._inner.on_test_batch_end(self._number(batch), logs)

    def on_predict_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._inner.on_predict_batch_begin(self._number(batch), logs)

    def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
        self._seen(self._number(batch), logs)
        self._inner.on_predict_batch_end(self._number(batch), logs)


class SharedEvaluation:
    """A call of ``evaluate`` shared by the peers, with this peer's callbacks; the result is the metrics by name."""

    name = "model.evaluate()"

    def __init__(
        self, model: Any, given: Mapping[str, Any], callbacks: Any, combine: Mapping[str, Combination]
    ) -> None:
        self._model, self._given, self._callbacks = model, given, callbacks
        self._states = MetricStates(metrics_of(model), combine)
        self.began = False  # on_test_begin was called; callbacks may change the weights in that call

    def do(self, arguments: Mapping[str, Any], numbers: Sequence[int]) -> bool:
        """Evaluates this peer's part of the batches; returns True if the parts of all peers can be joined."""
        if not self._states.can_be_combined:
            return False
        if not self.began:
            self.began = True
            self._callbacks.on_test_begin()
        callbacks, memory = _Numbered(self._callbacks, numbers, lambda *_: None), _Memory(self._model)
        logs = type(self._model).evaluate(self._model, **arguments, callbacks=callbacks, return_dict=True)
        self._states.add_part()
        # A custom test step may return values that are not results of metrics.
        return not memory.put_back() and set(logs) == set(self._model.get_metrics_result())

    def do_all(self) -> dict[str, Any]:
        """Evaluates all batches on this peer, and returns the metrics by name."""
        if self.began:
            self._callbacks.on_test_end({})  # of the attempt that does not count
        more = {"callbacks": self._callbacks, "return_dict": True}
        return dict(type(self._model).evaluate(self._model, **{**self._given, **more}))

    def join(self, peers: PeerGroup, *, count: int) -> dict[str, Any]:
        """Combines the metrics of all parts; returns the job's metrics by name, on all peers."""
        self._states.join(peers)
        logs = {name: plain_number(value) for name, value in self._model.get_metrics_result().items()}
        self._callbacks.on_test_end(logs)
        return logs


class SharedPrediction:
    """A call of ``predict`` shared by the peers; on every peer, the result is Keras' result for all of the data."""

    name = "model.predict()"

    def __init__(self, model: Any, given: Mapping[str, Any], callbacks: Any) -> None:
        self._model, self._given, self._callbacks = model, given, callbacks
        self._parts: list[tuple[list[int], Any]] = []
        self._rows: dict[int, int] = {}  # the number of rows, by batch of this peer's parts
        self._began = False

    def do(self, arguments: Mapping[str, Any], numbers: Sequence[int]) -> bool:
        """Predicts this peer's part of the batches; returns True if the parts of all peers can be joined."""
        if not self._began:
            self._began = True
            self._callbacks.on_predict_begin()
        callbacks, memory = _Numbered(self._callbacks, numbers, self._seen), _Memory(self._model)
        found = type(self._model).predict(self._model, **arguments, callbacks=callbacks)
        if memory.put_back():
            return False
        self._parts.append((list(numbers), found))
        rows = sum(self._rows.get(number, 0) for number in numbers)
        leaves = keras.tree.flatten(found)
        return all(isinstance(one, np.ndarray) and one.ndim and len(one) == rows and is_plain(one) for one in leaves)

    def _seen(self, number: int, logs: Any) -> None:
        first = keras.tree.flatten(logs["outputs"])[0]
        self._rows[number] = int(first.shape[0] or 0) if first.shape.rank else 0

    def do_all(self) -> Any:
        """Predicts all batches on this peer."""
        if self._began:
            self._callbacks.on_predict_end()  # of the attempt that does not count
        return type(self._model).predict(self._model, **{**self._given, "callbacks": self._callbacks})

    def join(self, peers: PeerGroup, *, count: int) -> Any | None:
        """Joins the predictions of all parts in the order of the data; returns ``None`` if their shapes differ."""
        structure = self._parts[0][1]
        parts = [(numbers, keras.tree.flatten(found)) for numbers, found in self._parts]
        own = [[list(one.shape[1:]), one.dtype.name] for one in parts[0][1]]
        # Outputs whose shapes differ between batches do not fit into one array.
        if peers.any_of([own != agreed(peers, own)])[0]:
            return None
        (rows,) = peers.sums([np.array([self._rows.get(number, 0) for number in range(count)], np.int64)])
        starts = np.concatenate([[0], np.cumsum(rows)])
        leaves = []
        for index, example in enumerate(parts[0][1]):
            whole = np.zeros((int(starts[-1]), *example.shape[1:]), example.dtype)
            for numbers, found in parts:
                _fill(whole, found[index], numbers, starts)
            leaves.append(_united(peers, whole))
        self._callbacks.on_predict_end()
        return keras.tree.pack_sequence_as(structure, leaves)


def _fill(whole: NDArray[Any], found: NDArray[Any], numbers: Sequence[int], starts: Any) -> None:
    """Copies the predictions of one part of the batches into the array of all predictions."""
    at = 0
    for number in numbers:
        rows = int(starts[number + 1] - starts[number])
        whole[starts[number] : starts[number + 1]] = found[at : at + rows]
        at += rows


def _united(peers: PeerGroup, whole: NDArray[Any]) -> NDArray[Any]:
    """The union of the peers' arrays; each array has some of the rows, and zeros in the other rows."""
    # Summed as integers, because their sum with zeros keeps every bit.
    content = whole.tobytes()
    padded = np.frombuffer(content + b"\0" * (-len(content) % 4), np.int32)
    step = _PIECE_BYTES // 4
    pieces = [peers.sums([padded[start : start + step]])[0] for start in range(0, len(padded), step)]
    bits = np.concatenate(pieces).tobytes()[: len(content)] if pieces else b""
    return np.frombuffer(bits, whole.dtype).reshape(whole.shape).copy()


# ---- states of metrics -----------------------------------------------------------------------------------------------


class MetricStates:
    """The states of all metrics of a model; ``combine`` is the argument of ``kf.keras.attach``."""

    def __init__(self, metrics: Sequence[Any], combine: Mapping[str, Combination]) -> None:
        self._metrics = [(one, "sum" if adds_up(one) else combine.get(one.name)) for one in metrics]
        self._own: list[States] = []  # the states of each metric, over this peer's parts

    @property
    def can_be_combined(self) -> bool:
        """True if the combination of the parts yields the whole job's state for every metric."""
        return all(way not in (None, "mean") for _, way in self._metrics)

    def add_part(self) -> None:
        """Adds the present states of the metrics, which result from the evaluation of a part."""
        part = [[np.asarray(variable.numpy()) for variable in metric.variables] for metric, _ in self._metrics]
        # After a loss of peers, this peer also evaluates some of the lost batches.
        if self._own:
            pairs = [[np.stack(pair) for pair in zip(*both, strict=True)] for both in zip(self._own, part, strict=True)]
            part = [_combined(*one, stacked) for one, stacked in zip(self._metrics, pairs, strict=True)]
        self._own = part

    def join(self, group: PeerGroup) -> None:
        """Sets the metrics to the states combined over all peers, which each evaluated one part; sends one message."""
        sent = [
            state if way == "sum" else _in_row(state, group)
            for (_, way), own in zip(self._metrics, self._own, strict=True)
            for state in own
        ]
        sums = iter(group.sums(sent))
        for (metric, way), own in zip(self._metrics, self._own, strict=True):
            found = [next(sums) for _ in own]
            states = found if way == "sum" else _combined(metric, way, found)
            for variable, state in zip(metric.variables, states, strict=True):
                variable.assign(state)


def _combined(metric: Any, way: Combination | None, stacked: Sequence[NDArray[Any]]) -> States:
    """The state that combines the states of several parts, which are stacked along a new first axis."""
    if way == "sum":
        return [one.sum(axis=0, dtype=one.dtype) for one in stacked]
    if way in ("max", "min"):
        return [one.max(axis=0) if way == "max" else one.min(axis=0) for one in stacked]
    assert callable(way)
    metric.reset_state()
    start = [tf.convert_to_tensor(variable.numpy()) for variable in metric.variables]
    return [one.numpy() for one in call_combination(way, start, [tf.constant(one) for one in stacked])]


def _in_row(state: NDArray[Any], group: PeerGroup) -> NDArray[Any]:
    """An array with a row per peer, zero except in this peer's row; the sum over the peers contains all rows."""
    rows = np.zeros((group.size, *state.shape), state.dtype)
    rows[group.rank] = state
    return rows
