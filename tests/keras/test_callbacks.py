"""Which callbacks run where, and with whose state."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

from kungfu.errors import UsageError
from kungfu.keras.callbacks import JobCallbacks, pack, unpack
from tests.keras.fitting import compiled, network


class Counting(keras.callbacks.Callback):
    """Keeps plain values, and a file that is none."""

    def __init__(self, told: list[str]) -> None:
        super().__init__()
        self.epochs, self.best, self._handle = 0, None, object()
        self._tell = told.append

    def on_train_begin(self, logs: Any = None) -> None:
        self._tell("train")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._tell(f"epoch {epoch}")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.epochs += 1
        self.best = np.float64(logs["loss"])


def callbacks(*given: Any) -> JobCallbacks:
    return JobCallbacks(given, compiled(network()), verbose=0, params={"epochs": 3, "steps": 2})


def test_plain_values_arrive_as_they_were():
    value = {
        "nothing": None, "flag": True, "number": 1.5, "text": "é", "none": float("nan"), "list": [1, (2, [3])],
        "array": np.arange(6, dtype=np.float32).reshape(2, 3), "scalar": np.float64(2.0),
        "dict": {"dict": [], "array": {}},
    }  # fmt: skip
    found = unpack(pack(value))
    assert np.isnan(found.pop("none"))
    value.pop("none")
    np.testing.assert_array_equal(found.pop("array"), value.pop("array"))
    assert found == value
    assert isinstance(found["scalar"], np.float64)


def test_a_joiner_goes_on_with_what_the_leaders_callbacks_keep():
    leader, joiner = [Counting([]), keras.callbacks.EarlyStopping()], [Counting([]), keras.callbacks.EarlyStopping()]
    one, other = callbacks(*leader), callbacks(*joiner)
    one.enter(leads=True, epoch=0)
    one.epoch_ends(0, {"loss": 0.5, "val_loss": 0.25})
    one.epoch_begins(1)
    other.enter(leads=False, epoch=1)
    handle, kept = joiner[0]._handle, unpack(pack(one.kept()))
    other.take(kept)
    assert (joiner[0].epochs, joiner[0].best) == (1, 0.5)
    assert joiner[1].best == 0.25
    assert joiner[0]._handle is handle, "what is not plain stays a peer's own"
    history = other.running.callbacks[-1]
    assert (history.epoch, history.history) == ([0], {"loss": [0.5], "val_loss": [0.25]})


def test_callbacks_are_told_once_however_often_a_peer_enters_a_view():
    told: list[str] = []
    one = callbacks(Counting(told))
    for epoch in (0, 0, 1, 1):
        one.enter(leads=False, epoch=epoch)
    assert told == ["train", "epoch 0", "epoch 1"]


def test_writers_run_on_the_leader_and_the_next_one_writes_on(tmp_path):
    path = tmp_path / "log.csv"
    first, second = (callbacks(keras.callbacks.CSVLogger(path)) for _ in range(2))
    first.enter(leads=True, epoch=0)
    second.enter(leads=False, epoch=0)
    for epoch, leader in ((0, first), (1, second)):
        if leader is second:
            first.end({})  # it is gone
            second.enter(leads=True, epoch=1)
        for one in {first, second} if leader is first else {second}:
            one.epoch_ends(epoch, {"loss": 1.0 - epoch})
            if one is not leader:
                one.take(unpack(pack(leader.kept_by_writers())))
                one.epoch_begins(epoch + 1)
    second.end({})
    rows = path.read_text().split()
    assert rows == ["epoch,loss,val_loss", "0,1.0,NA", "1,0.0,NA"]


def test_another_list_on_one_peer_is_an_error_that_names_both():
    one, other = callbacks(Counting([])), callbacks(Counting([]), keras.callbacks.TerminateOnNaN())
    with pytest.raises(UsageError, match=r"\['Counting', 'TerminateOnNaN', 'History'\] on this peer, and \["):
        other.take(unpack(pack(one.kept())))


def test_a_list_of_callbacks_that_keras_made_is_refused():
    with pytest.raises(UsageError, match="give a plain list"):
        callbacks(keras.callbacks.CallbackList([]))
