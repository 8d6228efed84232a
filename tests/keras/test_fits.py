"""Several fits of a job of one peer, a peer that comes after them, and what ``attach`` gives."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kungfu as kf
from kungfu.errors import UsageError
from kungfu.runtime.api import StandaloneMembership
from kungfu.training.loop.job_connection import JobConnection
from tests.keras.fitting import assert_same_variables, compiled, fit_again, float64, in_job, network, plainly, points

pytestmark = pytest.mark.slow


class Late(StandaloneMembership):
    """A peer that comes when so many fits are over, of which another one knows what they came to."""

    def __init__(self, other: JobConnection, over: int) -> None:
        super().__init__()
        self.has_joined, self._other, self._over = False, other, over

    def phases_over(self) -> int:
        return self._over

    def fetch_phase(self, number: int) -> bytes:
        return self._other.membership.past_phases.packed(number)


def connected(monkeypatch: Any) -> JobConnection:
    """The connection of this process from here on."""
    connection = JobConnection(None)
    monkeypatch.setattr(import_module("kungfu.keras.attach_model"), "connect", lambda: connection)
    return connection


def fits(fit: Any, **given: Any) -> tuple[Any, list[dict[str, list[float]]]]:
    """Freeze, fit, unfreeze, compile, fit."""
    (x, y), model = points(), network()
    told = {"batch_size": 16, **given}
    histories = []
    for frozen in (True, False):
        model.layers[0].trainable = not frozen
        compiled(model)
        histories.append(fit(model, x, y, epochs=2, **told).history)
    return model, histories


@cache
def trained_before() -> tuple[JobConnection, Any, list[dict[str, list[float]]]]:
    """A job that has done its fits, with which that by Keras and peers that come late are compared; in float64."""
    with pytest.MonkeyPatch.context() as monkeypatch, float64():
        connection = connected(monkeypatch)
        return connection, *fits(in_job)


def test_fits_of_a_model_that_is_compiled_anew_are_as_by_keras() -> None:
    connection, mine, histories = trained_before()
    assert connection.phase == 2
    assert mine.fit.attached.handle.step_number == 16
    with float64():
        plain, expected = fits(plainly)
    for one, other in zip(histories, expected, strict=True):
        np.testing.assert_allclose(one["loss"], other["loss"], rtol=1e-8)
    assert_same_variables(mine.weights, plain.weights, relative=1e-8, absolute=1e-12)


def test_a_peer_that_comes_late_passes_through_the_fits_that_are_over(monkeypatch) -> None:
    first, trained, histories = trained_before()
    late = connected(monkeypatch)
    late.membership = Late(first, over=2)
    with float64():
        passed, its = fits(in_job)
    assert its == histories
    assert_same_variables(passed.weights, trained.weights)
    assert passed.optimizer.iterations == trained.optimizer.iterations
    handle = passed.fit.attached.handle
    assert (handle.rank, handle.epoch) == (None, 2)
    assert late.membership.past_phases.numbers() == (1, 2), "others may ask it in their turn"


def test_a_peer_that_comes_late_receives_the_result_of_evaluate(monkeypatch):

    def scores(model: Any, *more: Any) -> list[Any]:
        (x, y), told = points(), {"batch_size": 16, "verbose": 0}
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
        given = [(x, y, told), (x[:20], y[:20], told), (data, None, {"verbose": 0, "return_dict": True}), *more]
        return [model.evaluate(x, y, **told) for x, y, told in given]

    first, trained, _ = trained_before()
    found = scores(trained)
    plain = keras.Model.evaluate(trained, *points(), batch_size=16, verbose=0)
    assert found[0] == pytest.approx(plain, rel=1e-6)
    told = trained.fit.attached.evaluations.results()
    assert [one[0][0] for one in told] == [4, 2, 4], "batches"
    monkeypatch.setitem(told[1][1], "loss", 42.0)  # which no peer computes
    connected(monkeypatch).membership = Late(first, over=2)
    with float64():
        passed, _ = fits(in_job)
        x, y = points()
        its = scores(passed, (x[:30], y[:30], {"verbose": 0}))
    assert its[:3] == [found[0], 42.0, found[2]]
    assert its[3] == pytest.approx(keras.Model.evaluate(trained, x[:30], y[:30], verbose=0), rel=1e-6)


def test_a_fit_that_is_called_otherwise_on_a_peer_that_comes_late_is_refused(monkeypatch) -> None:
    first, *_ = trained_before()
    connected(monkeypatch).membership = Late(first, over=2)
    with (
        float64(),
        pytest.raises(UsageError, match="has batches of 10 on this peer, and batches of 16 on those that have done"),
    ):
        fits(in_job, batch_size=10)


def test_after_a_fit_that_an_error_has_ended_there_is_no_other_one(monkeypatch) -> None:
    connected(monkeypatch)
    (x, y), model = points(), compiled(network())
    failing = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: {}["of the user's"])
    with pytest.raises(KeyError):
        in_job(model, x, y, callbacks=[failing])
    with pytest.raises(UsageError, match="after one that an error has ended on this peer"):
        in_job(model, x, y)


# ---- the handle ------------------------------------------------------------------------------------------------------


def test_the_handle_ends_a_fit_and_registers_for_each_of_them(monkeypatch) -> None:
    connected(monkeypatch)
    (x, y), model = points(), compiled(network())
    handle, best, attached = kf.keras.attach(model), {"steps": 0}, model.fit.attached
    attached.is_fitting = True  # as under kungfu-run
    handle.register("best", lambda: best, best.update)
    handle.feed("price", 3.0)

    def stop(batch: int, logs: Any) -> None:
        best["steps"] = handle.step_number
        if batch == 1:
            handle.stop("seen enough")

    stopping = keras.callbacks.LambdaCallback(on_train_batch_end=stop)
    for fit in (1, 2):
        history = fit_again(model, x, y, batch_size=10, epochs=4, shuffle=True, callbacks=[stopping])
        assert (history.epoch, handle.epoch, handle.stopped) == ([0], 1, True)
        assert handle.step_number == 3 * fit
        assert "best" in attached.calls.run.registry.of("shared")


def test_alone_without_policies_the_handle_stops_keras_own_fit() -> None:
    (x, y), model = points(), compiled(network())
    handle = kf.keras.attach(model)
    assert (handle.rank, handle.size, handle.step_number, handle.epoch) == (0, 1, 0, 0)
    stop = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: handle.stop() if epoch == 1 else None)
    history = model.fit(x, y, batch_size=10, epochs=9, initial_epoch=0, verbose=0, callbacks=[stop])
    assert history.epoch == [0, 1]
    assert (handle.step_number, handle.epoch) == (10, 2)
    handle.publish("nothing", 1.0)  # outside of a step nothing comes of it
