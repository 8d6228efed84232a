"""Peers that are lost at any message of a ``fit``: the others go on as if nobody had been lost."""

from __future__ import annotations

import csv
import random
from collections import Counter
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from tests.keras.fit_cluster import Cut, NobodyHoldsError, fit_together
from tests.soak import SOAK


class Moving(keras.callbacks.Callback):
    """Moves everything by what it was, so that a call too many shows; what it is told is plain, and in ``called``."""

    def __init__(self, called: list[str]) -> None:
        super().__init__()
        self.told: list[str] = []
        self.total = 0.0
        self._call = called.append

    def _tell(self, what: str, *, rate: float = 1.0, weight: float = 0.0, statistic: float = 0.0) -> None:
        self.told.append(what)
        self._call(what)
        self.total = 2 * self.total + 1
        network = self.model
        network.optimizer.learning_rate = float(network.optimizer.learning_rate) * rate
        network.weight.assign_add(weight)
        network.statistic.assign_add(statistic)

    def on_train_begin(self, logs: Any = None) -> None:
        self._tell("train", weight=0.5)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._tell(f"epoch {epoch}", rate=0.5)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._tell(f"batch {batch}", rate=0.75)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._tell(f"batch {batch} done", rate=1.25)

    def on_test_begin(self, logs: Any = None) -> None:
        self._tell("test", weight=1.0)

    def on_test_end(self, logs: Any = None) -> None:
        self._tell(f"test done {sorted(logs)}", weight=-0.75)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs["added"] = float(epoch)
        self._tell(f"epoch {epoch} done {sorted(logs)}", rate=1.5, weight=0.25, statistic=0.5)

    def on_train_end(self, logs: Any = None) -> None:
        self._tell("train done", weight=0.125)


def found(folder: Path, *cuts: Cut, size: int = 3, **given: Any) -> dict[str, Any]:
    """What each peer that lived has come to, and the files."""
    folder.mkdir()
    called: dict[int, list[str]] = {}
    moving: dict[int, Moving] = {}
    loggers = [keras.callbacks.CSVLogger(folder / "log.csv") for _ in range(size)]

    def callbacks(peer: int) -> list[Any]:
        moving[peer] = Moving(called.setdefault(peer, []))
        return [
            moving[peer],
            loggers[peer],
            keras.callbacks.ModelCheckpoint(folder / "{epoch}.weights.h5", save_weights_only=True),
        ]

    try:
        ended = fit_together(callbacks, cuts=cuts, size=size, **given)
    finally:
        for logger in loggers:
            if logger.csv_file is not None:  # of a peer that was lost it is open still
                logger.csv_file.close()
    messages, peers = ended.pop("messages"), {}
    for peer, network in ended.items():
        weights = [float(one) for one in network.shared]
        peers[peer] = {
            "weights": weights, "told": moving[peer].told, "total": moving[peer].total, "called": called[peer],
            "history": network.history.history, "stops": network.stop_training,
        }  # fmt: skip
    with (folder / "log.csv").open() as file:
        rows = list(csv.reader(file))
    files = {path.name: path.read_text() for path in sorted(folder.glob("*.h5"))}
    return {"messages": messages, "peers": peers, "rows": rows, "files": files}


def assert_as_whole(one: dict[str, Any], whole: dict[str, Any], *cuts: Cut) -> None:
    """Those who are left have what all have where nobody is lost, and so have the files."""
    expected, dead = whole["peers"][0], {cut.dies for cut in cuts}
    assert one["peers"].keys() == whole["peers"].keys() - dead
    for peer in one["peers"].values():
        np.testing.assert_allclose(peer.pop("weights"), expected["weights"], rtol=1e-12)
        assert peer["history"].keys() == expected["history"].keys()
        for name, values in peer.pop("history").items():
            np.testing.assert_allclose(values, expected["history"][name], rtol=1e-12, err_msg=name)
        assert peer == {what: expected[what] for what in peer}
    assert one["files"].keys() == whole["files"].keys()
    for name, text in one["files"].items():
        assert float(text) == pytest.approx(float(whole["files"][name]), rel=1e-12)
    for row, other in zip(one["rows"], whole["rows"], strict=True):
        assert row[:3] == other[:3], "each epoch is logged once, with what a callback has added"


def heard_by(cut: int, others: tuple[int, int]) -> tuple[int, ...]:
    """Of the message that is cut: nobody, one of the two, or both hear."""
    return ((), others[:1], others[1:], others)[cut % 4]


def test_rank_0_is_lost_over_messages_from_the_beginning_of_a_fit_to_its_end(tmp_path):
    whole = found(tmp_path / "whole")
    assert whole["peers"][0] == whole["peers"][1] == whole["peers"][2]
    for place, message in enumerate(range(2, whole["messages"], 7)):
        cut = Cut(message, 0, heard_by(place, (1, 2)))
        assert_as_whole(found(tmp_path / f"{message}", cut), whole, cut)


def test_validation_in_another_order_on_a_peer_is_not_shared_which_is_said_once(tmp_path, capsys):
    shared = found(tmp_path / "shared")
    assert capsys.readouterr().err == ""
    apart = found(tmp_path / "apart", validates_on=lambda peer: np.roll(np.arange(6.0), peer)[:, None])
    assert capsys.readouterr().err.count("the validation of model.fit() is not shared among the peers") == 1
    for name, values in shared["peers"][0]["history"].items():
        for peer in apart["peers"].values():
            np.testing.assert_allclose(peer["history"][name], values, rtol=1e-12, err_msg=name)


def test_callbacks_of_several_steps_hear_only_of_batches_that_exist(tmp_path, monkeypatch):
    """Callbacks of several steps hear only of batches that exist, also if the last steps are fewer."""
    monkeypatch.setattr("tests.keras.fit_cluster.STEPS", 3)
    monkeypatch.setattr("tests.keras.fit_cluster.STEPS_PER_EXECUTION", 2)
    whole = found(tmp_path / "whole")
    assert "batch 2 done" in whole["peers"][0]["told"]
    # Over the first messages of the end of the first epoch.
    for message in range(13, 17):
        cut = Cut(message, 0, (1,))
        assert_as_whole(found(tmp_path / f"{message}", cut), whole, cut)


class Stopping(keras.callbacks.Callback):
    """Wants training to stop where it is called by this name, on some peers."""

    def __init__(self, hook: str, *, stops: bool) -> None:
        super().__init__()
        self._stops = lambda name: stops and name == hook  # what is plain would be rank 0's

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.model.stop_training = self.model.stop_training or self._stops("batch")

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.stop_training = self.model.stop_training or self._stops("epoch")


@pytest.mark.parametrize("hook", ["batch", "epoch"])
@pytest.mark.parametrize("peers", [(1,), (0,), (0, 1)])
def test_stop_training_on_a_rank_other_than_0_alone_is_told(capsys, hook, peers):
    ended = fit_together(lambda peer: [Stopping(hook, stops=peer in peers)], size=2)
    is_told = "a callback has set model.stop_training on this peer, and not on rank 0" in capsys.readouterr().err
    assert is_told == (peers == (1,))
    assert [ended[peer].history.epoch for peer in (0, 1)] == ([[0, 1]] * 2 if is_told else [[0]] * 2)


def test_two_peers_are_lost_at_the_beginning_of_a_fit(tmp_path):
    """Two peers are lost at the beginning of a fit of which the callbacks of one peer have heard."""
    whole = found(tmp_path / "whole", size=4)
    cuts = Cut(1, 1, (2,)), Cut(2, 0, (2, 3))
    assert_as_whole(found(tmp_path / "lost", *cuts, size=4), whole, *cuts)


@SOAK
@pytest.mark.parametrize("dies", [0, 1, 2])
def test_a_peer_is_lost_over_any_message_whoever_hears_of_it(tmp_path, dies):
    whole = found(tmp_path / "whole")
    others = ((1, 2), (0, 2), (0, 1))[dies]
    for message in range(whole["messages"]):
        for hears in range(4):
            cut = Cut(message, dies, heard_by(hears, others))
            assert_as_whole(found(tmp_path / f"{message} {hears}", cut), whole, cut)


@SOAK
def test_two_peers_are_lost_one_soon_after_the_other(tmp_path):
    """Two peers are lost one soon after the other, and the others continue, or no peer holds the state."""
    draw, whole, ends = random.Random(7), found(tmp_path / "whole", size=4), Counter[str]()
    for number in range(200):
        first, second = draw.sample(range(4), 2)
        message, others = draw.randrange(whole["messages"]), sorted({*range(4)} - {first, second})
        heard = tuple(one for one in (*others, second) if draw.random() < 0.5)
        again = tuple(one for one in others if draw.random() < 0.5)
        cuts = Cut(message, first, heard), Cut(message + draw.randrange(1, 16), second, again)
        try:
            one = found(tmp_path / f"{number}", *cuts, size=4)
        except NobodyHoldsError:
            ends["nobody holds it"] += 1
            continue
        ends["goes on"] += 1
        lost = [cut for cut in cuts if cut.dies not in one["peers"]]  # the fit may end before the second one
        assert_as_whole(one, whole, *lost)
    assert ends["goes on"] > 150, ends
