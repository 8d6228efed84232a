"""``fit`` in jobs whose peers average their models: weights and History equal those of NumPy doing the same."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kungfu.runtime.core.sample_slices import Position, slice_indices
from tests.jobs.harness import job_results, lines_of
from tests.jobs.programs.keras_local_steps import BATCH, HELD_OUT, KEPT_EVERY, PER_EPOCH, READ, SEED, SHRINKS
from tests.jobs.programs.local_steps import FEATURES, LESS, SAMPLES, data
from tests.jobs.test_local_steps import EVERY, Done, Peer, Twin, model_at_start, weights_of
from tests.keras.fitting import float64
from tests.soak import SOAK

close = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-12)


@dataclass
class FitTwin(Twin):
    """A ``fit`` in NumPy: the sums of an epoch's metrics are what the peers have held until an average."""

    totals: np.ndarray = field(default_factory=lambda: np.zeros(3))  # samples, squares, absolute errors
    held: dict[int, np.ndarray] = field(default_factory=lambda: defaultdict(lambda: np.zeros(3)))
    history: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    saved: list[np.ndarray] = field(default_factory=list)  # the weights at the end of each epoch

    def averages_now(self, peers: list[int]) -> int:
        lost = super().averages_now(peers)
        self.totals += sum(self.held.pop(one) for one in peers if one in self.held)
        self.held.clear()  # what lost peers have held is in no metric
        return lost

    def ends_epoch(self) -> None:
        """The numbers of the epoch, and of the average on what is held out; then a callback changes the weights."""
        model = next(iter(self.peers.values())).weights
        apart, (samples, squares, off) = errors(model, np.arange(HELD_OUT)), self.totals
        found = {"loss": squares / samples, "mae": off / samples}
        found |= {"val_loss": (apart**2).mean(), "val_mae": abs(apart).mean()}
        for name, value in found.items():
            self.history[name].append(value)
        self.saved.append(model.copy())
        self.totals = np.zeros(3)
        for peer in self.peers.values():
            peer.weights = peer.weights * SHRINKS

    def adds_up(self, samples: Mapping[int, np.ndarray]) -> None:
        """Holds the errors of the coming step, which each peer makes before its update."""
        for one, own in samples.items():
            apart = errors(self.peers[one].weights, own)
            self.held[one] = self.held[one] + [len(own), (apart**2).sum(), abs(apart).sum()]


def errors(weights: np.ndarray, samples: np.ndarray) -> np.ndarray:
    """What a model is off by on these samples."""
    x, y, _ = data()
    return x[samples].astype(np.float64) @ weights - y[samples, 0].astype(np.float64)


def written_steps(folder: Path, fit: int) -> dict[int, dict[int, list[Any]]]:
    """What the peers have come to in a fit, by step and peer: weights and momenta."""
    found: dict[int, dict[int, list[Any]]] = defaultdict(dict)
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            number, step, *rest = json.loads(line)
            if number == fit:
                assert int(path.stem) not in found[step], "each step is done once"
                found[step][int(path.stem)] = rest
    return found


def slices(twin: FitTwin, peers: Collection[int], *, batch: int, seed: int | None) -> dict[int, np.ndarray]:
    """The samples of each peer in a step; without a seed the data are read through once, over all epochs."""
    place, given = Position(twin.epoch, twin.offset), {"samples": twin.samples, "seed": seed}
    given |= {"global_batch_size": batch, "size": len(peers)}
    found = {one: slice_indices(place, **given, rank=rank) for rank, one in enumerate(sorted(peers))}
    return found if seed is not None else {one: own + twin.epoch * twin.samples for one, own in found.items()}


@pytest.mark.parametrize("dies", [1, pytest.param(0, marks=SOAK)])
def test_weights_and_history_are_numpys_with_a_join_a_leave_and_a_kill(tmp_path, dies):
    options, results = ("-np", 2, "--max", 3, "--failures", 0), tmp_path / "results"
    ended, found = job_results("keras_local_steps.py", tmp_path, *options, every=EVERY, dies=dies)
    assert ended.sizes == [2, 2, 3, 2, 1], "of both fits"
    grown, shrunk = ended.all_of("rescale")
    (recovered,) = ended.all_of("recovered")
    (often,) = (one for one in ended.all_of("set") if one["what"] == "averaging interval")
    changes = sorted((grown, shrunk, recovered), key=lambda one: -one["step"])
    with float64():
        start = weights_of(model_at_start())
    peers = {one: Peer(start.copy(), np.zeros(FEATURES)) for one in (0, 1)}
    lost = 0
    for number, samples in enumerate((PER_EPOCH * BATCH, SAMPLES)):
        steps = written_steps(results, number)
        twin = FitTwin(peers, averaged_at=min(steps) - 1, samples=samples)
        for step, done in sorted(steps.items()):
            batch = next((one["global_batch_size"] for one in changes if one["step"] < step), BATCH)
            if number and step - 1 == recovered["step"]:
                lost, twin.averaged_at = twin.averages_now([*done]), step - 1
            for one in done.keys() - twin.peers.keys():
                assert twin.averaged_at == step - 1, "a peer joins behind an average"
                twin.peers[one] = replace(next(iter(twin.peers.values())))
            twin.peers = {one: twin.peers[one] for one in done}
            own, epoch = slices(twin, done, batch=batch, seed=SEED if number else None), twin.epoch
            twin.adds_up(own)
            twin.steps(step, batch, {one: Done(step, [*own[one]], *kept) for one, kept in done.items()})
            if number and step == often["step"]:
                assert twin.averaged_at == step, "a rule is evaluated in a step that averages"
                twin.every = LESS
            for one, (weights, momenta) in done.items():
                close(weights, twin.peers[one].weights, err_msg=f"step {step}")
                close(momenta, twin.peers[one].momenta)
            if twin.epoch > epoch:
                twin.ends_epoch()
        # The data have ended, or a callback has ended training, in the middle of an epoch and of a window.
        if number == 0:
            assert (len(steps), twin.averaged_at) == (READ, PER_EPOCH)
            twin.averages_now([*twin.peers])
        assert twin.offset > 0
        assert twin.handed == 0
        twin.ends_epoch()
        peers = twin.peers
        histories = [one["histories"][number] for one in found.values() if len(one["histories"]) > number]
        assert len(histories) == (2, 1)[number], "the joiner has passed through the first fit, and left in the other"
        for history in histories:
            assert history.keys() == twin.history.keys()
            for name, values in twin.history.items():
                close(history[name], values, err_msg=f"{name} of fit {number}")
        for epoch, weights in enumerate(twin.saved, start=1):
            close(saved_weights(results / f"{number}-{epoch}.weights.h5"), weights)
    assert recovered["lost_samples"] == lost
    assert 0 < lost <= EVERY * 8
    assert found[1 - dies]["traces"] == 1
    assert "model.fit() ends before its last epoch" in ended.output
    assert "a callback has set model.stop_training on this peer, and not on rank 0" not in ended.output


@SOAK
def test_a_resumed_or_restarted_fit_has_the_history_of_one_that_was_not_interrupted(tmp_path):
    kept, given = tmp_path / "kept", {"every": EVERY, "epochs": 3}
    folders = [tmp_path / name for name in ("whole", "resumed", "restarted")]
    options = (("--checkpoints", kept), ("--resume", kept), ("--restarts", 2))
    found = []
    for folder, more in zip(folders, options, strict=True):
        folder.mkdir()
        crash = {"crash": READ + 30} if folder.name == "restarted" else {}
        found.append(job_results("keras_local_steps.py", folder, "-np", 2, *more, **given, **crash))
    (whole, expected), (resumed, results), (restarted, again) = found
    (written,) = whole.all_of("checkpoint")
    steps = READ + 3 * -(-SAMPLES // BATCH)
    assert KEPT_EVERY <= written["step"] < steps
    assert (written["step"] - READ) % -(-SAMPLES // BATCH), "in the middle of an epoch"
    assert resumed.metrics[0]["step"] > written["step"]
    assert len(lines_of(folders[1] / "results" / "0.jsonl")) == steps - written["step"], "nothing is done again"
    (start,) = restarted.all_of("restarted")
    assert (start["step"], start["steps_again"] > 0) == (written["step"], True)
    assert again.keys() == {2, 3}
    for one in (*results.values(), *again.values()):
        for mine, other in zip(one["histories"], expected[0]["histories"], strict=True):
            assert mine.keys() == other.keys()
            for name, values in other.items():
                close(mine[name], values, err_msg=name)


def saved_weights(path: Path) -> np.ndarray:
    """The weights that a ModelCheckpoint has written."""
    with float64():
        model = model_at_start()
        model.load_weights(path)
        return weights_of(model)
