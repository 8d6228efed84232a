"""Which callbacks run where, and with whose state; and their logs, computed when a callback looks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.framework_internals import restored_epoch
from kungfu.keras.callbacks import JobCallbacks
from kungfu.keras.metrics import JobLogs
from kungfu.keras.plain_values import pack, unpack
from kungfu.runtime.api import CheckpointSettings
from tests.keras.fitting import assert_same_variables, compiled, network, run_under_kungfu


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


def enter(one: JobCallbacks, *, leads: bool, epoch: int | None) -> None:
    """What its peer does with it in a new view, in this epoch."""
    one.begin()
    if leads:
        one.lead(takes_over=one.epoch >= 0)
    if epoch is not None and epoch > one.epoch:
        one.epoch_begins(epoch)


def test_a_joiner_goes_on_with_what_the_leaders_callbacks_keep():
    coordinator, joiner = ([Counting([]), keras.callbacks.EarlyStopping(restore_best_weights=True)] for _ in range(2))
    one, other = callbacks(*coordinator), callbacks(*joiner)
    enter(one, leads=True, epoch=0)
    one.epoch_ends(0, {"loss": 0.5, "val_loss": 0.25})
    one.epoch_begins(1)
    enter(other, leads=False, epoch=1)
    handle, kept = joiner[0]._handle, unpack(pack(one.kept()))
    other.adopt(kept, where="on rank 0")
    assert (joiner[0].epochs, joiner[0].best) == (1, 0.5)
    assert (joiner[1].best, joiner[1].best_epoch) == (0.25, 0)
    assert_same_variables(joiner[1].best_weights, coordinator[1].best_weights)
    assert joiner[0]._handle is handle, "what is not plain stays a peer's own"
    history = other.running.callbacks[-1]
    assert (history.epoch, history.history) == ([0], {"loss": [0.5], "val_loss": [0.25]})


@pytest.mark.parametrize("epochs", [0, 1])
def test_of_a_log_what_was_written_after_the_checkpoint_is_written_again(tmp_path, epochs):
    path = tmp_path / "log.csv"
    before, after = (callbacks(keras.callbacks.CSVLogger(path, append=append)) for append in (False, True))
    enter(before, leads=True, epoch=0)
    kept = []
    for epoch in range(3):
        kept.append(pack(before.kept()))
        before.epoch_ends(epoch, {"loss": 1.0})
    enter(after, leads=True, epoch=epochs)
    after.resume(unpack(kept[epochs]))
    for epoch in range(epochs, 3):
        after.epoch_ends(epoch, {"loss": 1.0})
    after.running.on_train_end({})
    before.running.on_train_end({})
    assert [line.split(",")[0] for line in path.read_text().splitlines()] == ["epoch", "0", "1", "2"]


def test_writers_run_on_the_coordinator_and_the_next_one_writes_on(tmp_path):
    path = tmp_path / "log.csv"
    first, second = (callbacks(keras.callbacks.CSVLogger(path)) for _ in range(2))
    enter(first, leads=True, epoch=0)
    enter(second, leads=False, epoch=0)
    for epoch, coordinator in ((0, first), (1, second)):
        if coordinator is second:
            first.running.on_train_end({})  # it is gone
            enter(second, leads=True, epoch=1)
        for one in (first, second) if coordinator is first else (second,):
            one.epoch_ends(epoch, {"loss": 1.0 - epoch})
            if one is not coordinator:
                one.adopt(unpack(pack(coordinator.kept())), where="on rank 0")
                one.epoch_begins(epoch + 1)
    second.running.on_train_end({})
    rows = path.read_text().split()
    assert rows == ["epoch,loss,val_loss", "0,1.0,NA", "1,0.0,NA"]


class Rank1:
    """The group of a peer of rank 0 that receives the state of rank 1."""

    rank = 0

    def __init__(self, theirs: JobCallbacks) -> None:
        self._theirs = theirs

    def from_rank(self, rank: int, content: bytes) -> bytes:
        return pack({"types": self._theirs.kept()["types"], "sums": [], "written": -1})


def test_another_list_on_one_peer_is_an_error_that_names_both():
    one, other = callbacks(Counting([])), callbacks(Counting([]), keras.callbacks.TerminateOnNaN())
    message = r"\['Counting', 'TerminateOnNaN', 'History'\] on this peer, and \['Counting', 'History'\] on rank 1: give"
    with pytest.raises(UsageError, match=message):
        other.agree(Rank1(one), "all", rank=1, written=-1)


def test_a_backup_is_restored_when_training_begins_and_not_when_the_lead_passes_on(tmp_path):
    def made() -> tuple[JobCallbacks, Any]:
        model = compiled(network())
        model.optimizer.build(model.trainable_variables)
        backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
        return JobCallbacks([backup], model, verbose=0, params={"epochs": 3, "steps": 2}), model

    (first, wrote), (next_coordinator, trained), (again, restored) = made(), made(), made()
    enter(first, leads=True, epoch=0)
    first.epoch_ends(0, {"loss": 0.5})
    enter(next_coordinator, leads=False, epoch=0)
    trained.set_weights([one + 1 for one in trained.get_weights()])
    later = [np.asarray(one) for one in trained.weights]
    enter(next_coordinator, leads=True, epoch=1)
    assert_same_variables(trained.weights, later)
    restored.set_weights([one + 1 for one in restored.get_weights()])
    enter(again, leads=True, epoch=None)
    assert_same_variables(restored.weights, wrote.weights)
    assert restored_epoch(restored) == 1


def test_what_a_callback_keeps_and_cannot_give_is_named_once_by_the_first_rank_0(capsys):
    class Keeping(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.file, self.number, self.function = object(), 1, print
            self.metric = keras.metrics.Mean()

    for leads in (False, True):
        one = callbacks(Keeping(), keras.callbacks.EarlyStopping("loss"))
        enter(one, leads=leads, epoch=0)
        said = capsys.readouterr().err
        assert said.count("the callback Keeping keeps in file (object), metric (Mean) what a peer that joins") == leads
        assert said.count("kungfu:") == leads
    enter(one, leads=True, epoch=1)
    assert not capsys.readouterr().err


def test_lists_within_the_list_are_callbacks_too():
    told: list[str] = []
    one = callbacks([Counting(told), [Counting(told)]])
    enter(one, leads=False, epoch=0)
    assert told == ["train", "train", "epoch 0", "epoch 0"]


@pytest.mark.parametrize(("option", "value"), [("resume", "a"), ("restarts", 2)])
def test_a_backup_is_refused_where_the_job_is_resumed_from_a_checkpoint(monkeypatch, tmp_path, option, value):
    run_under_kungfu(monkeypatch, checkpoints=CheckpointSettings(**{option: value}))
    with pytest.raises(UsageError, match=f"under kungfu-run --{option}: both say where training begins"):
        callbacks(keras.callbacks.BackupAndRestore(tmp_path))


class Counted:
    """Metrics with two totals."""

    def __init__(self) -> None:
        self.totals = [tf.Variable(6.0), tf.Variable([2.0, 4.0])]
        self.traces = 0

    def numbers(self, totals: Sequence[Any]) -> dict[str, Any]:
        self.traces += 1
        return {"mean": totals[0] / totals[1][0], "last": totals[1][1]}


def test_a_program_of_many_fits_is_not_warned_of_traces_and_each_fit_has_one(caplog, monkeypatch):
    monkeypatch.setattr(tf.get_logger(), "handlers", [caplog.handler])
    for _ in range(8):
        metrics = Counted()
        logs = JobLogs(metrics.totals, metrics.numbers)
        untouched = logs.so_far()
        assert metrics.traces == 0, "nobody has looked"
        assert logs.so_far() == {"mean": 3.0, "last": 4.0}
        metrics.totals[0].assign(8.0)
        assert logs.so_far()["mean"] == 4.0
        assert untouched["mean"] == 3.0, "as it was then"
        assert metrics.traces == 1
    assert caplog.messages == []
