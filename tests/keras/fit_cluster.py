"""Several peers in one process that ``fit``: the loop of each is the real one, in a thread, and a message can be cut.

A message is a sum over the peers of a view. At one of them a peer ends, and of the others only some receive the sum;
the rest notice the loss, as do the first ones at their next message. Who holds the state that counts is found by the
rules of the agent; the state itself is copied.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import keras
import numpy as np
import tensorflow as tf

from kungfu.keras.data import FitData
from kungfu.keras.fits import FitCall
from kungfu.keras.loop import FitRun
from kungfu.runtime.core.cluster.events import LossReport
from kungfu.runtime.core.cluster.recovery import _most_advanced
from kungfu.training.graph.step_report import StepPosition
from kungfu.training.loop.training import Training
from kungfu.training.state.registered_sync import PeerGroup
from tests.keras.fitting import arguments

__all__ = ["Cut", "Network", "NobodyHoldsError", "fit_together"]

EPOCHS, STEPS, STEPS_PER_EXECUTION = 2, 2, 1
_DEADLINE_S = 120.0


class KilledError(BaseException):
    """This peer ends here."""


class NobodyHoldsError(Exception):
    """A second peer was lost before others had the state of the first one."""


class LostError(Exception):
    """Another peer has ended."""


@dataclass(frozen=True)
class Cut:
    """Peer ``dies`` ends over a message, of whose sum only these peers hear: before any of them, where nobody does."""

    message: int
    dies: int = 0
    heard_by: tuple[int, ...] = ()


class Network:
    """Something like a Keras model: a weight, a statistic, a metric and an optimizer."""

    def __init__(self) -> None:
        self.weight = tf.Variable(1.0, dtype=tf.float64)
        self.statistic = tf.Variable(0.0, dtype=tf.float64)
        self.optimizer = keras.optimizers.SGD(0.125)
        self.optimizer.build([])
        self.compiled_metrics_mean = keras.metrics.Mean("value", dtype="float64")
        self.metrics, self._loss_tracker = [self.compiled_metrics_mean], None
        self.steps_per_execution, self.trainable_weights, self.weights = STEPS_PER_EXECUTION, [], []
        self.stop_training, self.history, self._initial_epoch = False, cast(Any, None), None

    @property
    def shared(self) -> list[tf.Variable]:
        return [self.weight, *(one.value for one in self.optimizer.variables)]

    def reset_metrics(self) -> None:
        self.compiled_metrics_mean.reset_state()

    def get_metrics_result(self) -> dict[str, Any]:
        return {"value": self.compiled_metrics_mean.result()}

    def evaluate(self, x: Any, callbacks: Any, batch_size: int = 1, return_dict: bool = True, **_: Any) -> Any:
        assert (batch_size, return_dict) == (1, True)
        self.reset_metrics()
        callbacks.on_test_begin()
        for batch, value in enumerate(x):
            callbacks.on_test_batch_begin(batch)
            self.compiled_metrics_mean.update_state(value[0] * self.weight.numpy())
            callbacks.on_test_batch_end(batch, {})
        logs = {name: float(value) for name, value in self.get_metrics_result().items()}
        callbacks.on_test_end(logs)
        return logs

    def save_weights(self, path: str, overwrite: bool = True) -> None:
        Path(path).write_text(f"{float(self.weight.numpy()):.17g}")


class _Cluster:
    """The peers, and the view that they are in."""

    def __init__(self, size: int, cuts: Sequence[Cut]) -> None:
        self.cuts, self.ids = {cut.message: cut for cut in cuts}, tuple(range(size))
        self.changed, self.messages, self.version = threading.Condition(), 0, 1
        self.gone: set[int] = set()
        self.finished: set[int] = set()
        self.broken: BaseException | None = None  # what ends all of them
        self.brought: dict[int, list[Any]] = {}
        self.sums: dict[int, list[Any]] = {}
        self.reports: dict[int, LossReport] = {}
        self.loops: dict[int, Any] = {}
        self.sources: tuple[int, ...] = (0,)

    def total(self, peer: int, tensors: Sequence[Any]) -> list[Any]:
        """The sums; raises where a peer has ended that this one has not recovered from."""
        with self.changed:
            if self.gone & {*self.ids}:
                raise LostError
            self.brought[peer] = [np.asarray(one) for one in tensors]
            if len(self.brought) == len(self.ids):
                self._conclude()
            self._wait(lambda: peer in self.sums or peer in self.gone or bool(self.gone & {*self.ids}))
            if peer in self.gone:
                raise KilledError
            if peer not in self.sums:
                raise LostError
            return self.sums.pop(peer)

    def _conclude(self) -> None:
        """All have brought their part of a message."""
        number, brought = self.messages, self.brought
        cut = self.cuts.get(number)
        shapes = {peer: [(one.shape, one.dtype) for one in given] for peer, given in brought.items()}
        assert len({str(one) for one in shapes.values()}) == 1, f"message {number}: {shapes}"
        self.messages, self.brought = number + 1, {}
        sums = [tf.constant(sum(given)) for given in zip(*brought.values(), strict=True)]
        self.sums = dict.fromkeys(self.ids if cut is None else cut.heard_by, sums)
        if cut is not None:
            self.gone.add(cut.dies)
        self.changed.notify_all()

    def end(self, peer: int) -> None:
        """It has come through the last barrier, after which nobody misses it."""
        with self.changed:
            self.finished.add(peer)
            self._form_view_if_complete()

    def fail(self, error: BaseException) -> None:
        """The test is over."""
        with self.changed:
            self.broken = self.broken or error
            self.changed.notify_all()

    def recover(self, peer: int, loop: Any) -> None:
        """All that live have reported: the next view, with the state of those that are furthest on."""
        with self.changed:
            version, self.brought = self.version, {}
            self.reports[peer] = LossReport(
                version, loop.step_number, loop.holds, "lost", stage=loop.stage, digest=loop.digest()
            )
            self._form_view_if_complete()
            self._wait(lambda: self.version > version)

    def _form_view_if_complete(self) -> None:
        if self.reports and self.reports.keys() == {*self.ids} - self.gone - self.finished:
            self._form_view()

    def _form_view(self) -> None:
        self.ids = tuple(one for one in self.ids if one not in self.gone | self.finished)
        if not any(report.holds for report in self.reports.values()):
            raise NobodyHoldsError
        holders = _most_advanced(self.reports, self.ids)
        source = self.loops[holders[0]]
        state = [[one.numpy() for one in loop.variables()] for loop in map(self.loops.__getitem__, holders)]
        for given in state:
            shared = len(source.network.shared)
            np.testing.assert_array_equal(np.asarray(given[:shared]), np.asarray(state[0][:shared]))
        for one in self.ids:
            if one not in holders:
                self.loops[one].holds = False
                for variable, value in zip(self.loops[one].variables(), state[0], strict=True):
                    variable.assign(value)
                self.loops[one].place = dict(source.place)
        for one in self.ids:
            loop = self.loops[one]
            loop.given = {name: get() for name, (get, _) in source.registered.items()}
            loop.stage, loop.source = 1, self.ids.index(holders[0])
        self.reports, self.version = {}, self.version + 2
        self.changed.notify_all()

    def _wait(self, until: Callable[[], bool]) -> None:
        came = self.changed.wait_for(lambda: until() or self.broken is not None, _DEADLINE_S)
        assert came, f"message {self.messages}, view {self.version}: stuck"
        if self.broken is not None:
            raise KilledError from self.broken


@dataclass
class _Loop:
    """What `JobLoop` is to a `FitRun`; a step is a message, and so is the barrier after it."""

    cluster: _Cluster
    peer: int
    network: Network
    place: dict[str, int] = field(default_factory=lambda: {"epoch": 0, "offset": 0})
    stage: int = 1
    holds: bool = True
    source: int = 0
    given: dict[str, Any] | None = None
    registered: dict[str, Any] = field(default_factory=dict)
    left: bool = False
    stopped: bool = False
    has_view: bool = True
    views: int = 1
    wants: Any = None  # this peer's callbacks want training to stop

    # ---- the run ---------------------------------------------------------------------------------------------------

    SKIPPED = Training.SKIPPED

    def register(self, name: str, get: Any, put: Any = None) -> None:
        self.registered[name] = (get, put)

    def variables(self) -> list[Any]:
        return [*self.network.shared, self.network.statistic]

    def digest(self) -> int:
        return zlib.crc32(np.array([float(one) for one in self.network.shared]).tobytes())

    @property
    def step_number(self) -> int:
        return self.place["epoch"] * STEPS + self.place["offset"]

    @property
    def rank(self) -> int:
        return self.cluster.ids.index(self.peer)

    def position(self) -> StepPosition:
        place, cluster = self.place, self.cluster
        return StepPosition(
            self.step_number, place["epoch"], place["offset"], 0, self.views, len(cluster.ids), self.rank, 1
        )

    def total(self, tensors: Sequence[Any]) -> list[Any]:
        return self.cluster.total(self.peer, tensors)

    def recovered(self) -> None:
        self.cluster.recover(self.peer, self)
        self.views = self.cluster.version

    def meet(self, together: Callable[[PeerGroup], None]) -> bool:
        self.stage += 1
        try:
            if self.given is not None:
                self.total([np.zeros(1)])
                for name, (_, put) in self.registered.items():
                    put(self.given[name])
                self.given = None
            together(PeerGroup(self.rank, len(self.cluster.ids), self.total, self.source))
        except LostError:
            self.recovered()
            return False
        self.stage += 1
        return True

    def step(self, _: Any) -> Any:
        """The weight is divided by the learning rate's inverse; on one peer the loss may be noticed in the barrier."""
        assert self.given is None, "a step without a meeting in a new view"
        try:
            size = len(self.cluster.ids)
            asks = float(self.wants) if self.rank == 0 else 0.0
            total, stops = self.total([np.float64(self.step_number + 1.0), np.float64(asks)])
        except LostError:
            self.recovered()
            return self.SKIPPED
        network, place = self.network, self.place
        network.weight.assign_add(float(network.optimizer.learning_rate) * (total / size - network.weight))
        network.statistic.assign_add(1.0 + self.rank)
        place["offset"] += 1
        if place["offset"] == STEPS:
            place["epoch"], place["offset"] = place["epoch"] + 1, 0
        self.stage = 0
        try:
            self.total([np.zeros(2)])
            self.stage = 1
        except LostError:
            self.recovered()
        return stops

    def batches(self, plan: Any, *, described: Any, over: Callable[[], bool], attend: Any) -> Iterator[int]:
        while not over() and self.place["epoch"] < EPOCHS:
            yield self.step_number

    def finish(self, attend: Callable[[], None]) -> None:
        while True:
            attend()
            try:
                self.total([np.zeros(3)])
                return
            except LostError:
                # Where another one has come through it, training is over for all.
                self.recovered()

    def complete_state(self) -> None:
        self.holds = True

    def average_statistics(self) -> None:
        (total,) = self.total([self.network.statistic.numpy()])
        self.network.statistic.assign(total / len(self.cluster.ids))

    def shared_variables(self) -> list[tf.Variable]:
        return self.network.shared

    def agreed_variables(self) -> list[tf.Variable]:
        return self.variables()

    def resumed_file(self, _: str) -> None:
        return None

    def keep_more(self) -> None: ...
    def keep_in_checkpoints(self, *_: Any) -> None: ...
    def count_epochs(self, **_: Any) -> None: ...
    def end_phase(self, *_: Any) -> None: ...
    def abandon(self) -> None: ...


class _Totals:
    """The metrics of a fit: the steps of the epoch."""

    totals: Sequence[Any] = ()

    def numbers(self, _: Any) -> dict[str, Any]:
        return {"loss": tf.constant(0.5, tf.float64)}


def fit_together(
    callbacks: Callable[[int], list[Any]],
    *,
    cuts: Sequence[Cut] = (),
    size: int = 3,
    validates_on: Callable[[int], Any] = lambda peer: np.arange(6.0)[:, None],
) -> dict[Any, Any]:
    """The networks of the peers that came to the end, by their ids, and under "messages" how many were sent."""
    cluster = _Cluster(size, cuts)
    networks = [Network() for _ in range(size)]
    given = [callbacks(peer) for peer in range(size)]

    def run(peer: int) -> bool:
        network = networks[peer]
        loop = _Loop(cluster, peer, network)
        with cluster.changed:
            cluster.loops[peer] = loop
        validation = (validates_on(peer), None, None)
        data = SimpleNamespace(
            plan=SimpleNamespace(epochs=EPOCHS, batch_size=1), steps=STEPS, described={}, validation=validation,
            first_batch_of=lambda epoch: epoch, refuse_other=lambda epoch, coordinators: None,
        )  # fmt: skip
        connection = SimpleNamespace(phase=1)
        parts = arguments(epochs=EPOCHS, verbose=0, callbacks=given[peer], validation_batch_size=1)
        call = FitCall(network, parts, cast(FitData, data), cast(Any, connection))
        loop.wants = wants = tf.Variable(0.0)
        call.outcome = lambda: lambda: b""  # type: ignore[method-assign]
        try:
            fit = FitRun(call, cast(Any, loop), cast(Any, loop), step=loop.step, metrics=_Totals(), asks_to_stop=wants)
            fit._logs = SimpleNamespace(so_far=lambda: {"loss": 0.5})  # type: ignore[assignment]  # a trace is slow
            fit.run()
            cluster.end(peer)
        except KilledError:
            return False
        except BaseException as error:
            cluster.fail(error)
            raise
        return True

    def turn(peer: int) -> bool:
        with cluster.changed:  # one runs at a time, until it waits for the others
            return run(peer)

    with ThreadPoolExecutor(size) as pool:
        ends = list(pool.map(turn, range(size)))
    if cluster.broken is not None:
        raise cluster.broken
    lived: dict[Any, Any] = {peer: networks[peer] for peer, end in enumerate(ends) if end}
    return lived | {"messages": cluster.messages}
