"""Jobs whose peers average their models: weights equal those of NumPy, and every sample is accounted for."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kungfu.cli.main import main
from tests.jobs.harness import Ended, ran
from tests.jobs.programs.local_steps import FEATURES, KEPT_EVERY, LESS, LESS_AFTER, MOMENTUM, RATE, SAMPLES, data

EVERY, LOCAL_BATCH = 5, 4


@dataclass(frozen=True)
class Done:
    """A step of one peer, as the peer has written it."""

    step: int
    samples: list[int]
    weights: list[float]
    momenta: list[float]


@dataclass
class Peer:
    """A peer of the twin: its model, and its samples since the last average."""

    weights: np.ndarray
    momenta: np.ndarray
    window: int = 0

    def trains(self, samples: list[int]) -> None:
        """Descends along its own gradient, as Keras' SGD does."""
        x, y, _ = data()
        x, y = x[samples].astype(np.float64), y[samples, 0].astype(np.float64)
        gradient = 2 * (x @ self.weights - y) @ x / len(x)
        self.momenta = MOMENTUM * self.momenta - RATE * gradient
        self.weights = self.weights + self.momenta
        self.window += len(samples)


@dataclass
class Twin:
    """The job in NumPy: it is told who trains on what, and when a peer is lost."""

    peers: dict[int, Peer] = field(default_factory=dict)
    epoch: int = 0
    offset: int = 0
    averaged_at: int = 0
    every: int = EVERY
    handed: int = 0  # samples of the steps since the last average, over all peers
    samples: int = SAMPLES  # of an epoch

    def averages_now(self, peers: list[int]) -> int:
        """Gives these peers the mean of their models; the samples that are in no average."""
        total = sum(self.peers[one].window for one in peers)
        parts = [(self.peers[one], self.peers[one].window / total) for one in peers]
        weights = sum(peer.weights * part for peer, part in parts)
        momenta = sum(peer.momenta * part for peer, part in parts)
        self.peers = {one: Peer(weights.copy(), momenta.copy()) for one in peers}
        lost, self.handed = self.handed - total, 0
        return lost

    def steps(self, step: int, batch: int, done: dict[int, Done]) -> bool:
        """A step of these peers; true if it ended with an average."""
        batch = min(batch, self.samples - self.offset)
        for peer, one in done.items():
            self.peers[peer].trains(one.samples) if one.samples else None
        self.handed += batch
        self.offset += batch
        ends = self.offset >= self.samples
        if ends:
            self.epoch, self.offset = self.epoch + 1, 0
        if not ends and step - self.averaged_at < self.every:
            return False
        self.averaged_at = step
        assert self.averages_now([*done]) == 0, "all that trained are in the average"
        return True


def lines_by_step(ended: Ended, results) -> dict[int, dict[int, Done]]:
    """What the peers have done, by step and peer."""
    found: dict[int, dict[int, Done]] = {}
    for path in sorted(results.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            one = Done(*json.loads(line))
            assert int(path.stem) not in found.setdefault(one.step, {}), "each step is done once"
            found[one.step][int(path.stem)] = one
    return found


def test_weights_after_each_average_are_numpys_with_a_join_a_leave_and_a_kill(tmp_path, capsys):
    results = tmp_path / "results"
    arguments = ["--results", results, "--every", EVERY]
    options = ("-np", 2, "--max", 3, "--failures", 0)
    ended = ran(tmp_path, *options, program="local_steps.py", arguments=arguments)
    assert ended.sizes == [2, 3, 2, 1]
    (often,) = (one for one in ended.all_of("set") if one["what"] == "averaging interval")
    assert often["to"] == LESS
    assert often["step"] > LESS_AFTER
    grown, shrunk = ended.all_of("rescale")
    (recovered,) = ended.all_of("recovered")
    changes = [shrunk, recovered, grown]  # a loss keeps the batch of all peers, a leave that of each
    assert [one["step"] for one in changes] == sorted((one["step"] for one in changes), reverse=True)
    steps = lines_by_step(ended, results)
    start = weights_of(model_at_start())
    twin = Twin({one: Peer(start.copy(), np.zeros(FEATURES)) for one in (0, 1)})
    seen: list[list[int]] = [[]]
    averages: dict[int, np.ndarray] = {}
    lost = 0
    for step in range(1, max(steps) + 1):
        done = steps[step]
        if step - 1 == recovered["step"]:
            lost = twin.averages_now([*done])
            twin.averaged_at = step - 1
        batch = next((one["global_batch_size"] for one in changes if one["step"] < step), 2 * LOCAL_BATCH)
        for one in done.keys() - twin.peers.keys():
            assert twin.averaged_at == step - 1, "a peer joins behind an average"
            twin.peers[one] = Peer(twin.peers[0].weights.copy(), twin.peers[0].momenta.copy())
        seen[-1] += [sample for one in done.values() for sample in one.samples]
        epoch = twin.epoch
        is_average = twin.steps(step, batch, done)
        if step == often["step"]:
            assert is_average, "a rule is evaluated in a step that averages"
            twin.every = LESS
        for peer, one in done.items():
            np.testing.assert_allclose(one.weights, twin.peers[peer].weights, rtol=2e-5, atol=1e-6)
            np.testing.assert_allclose(one.momenta, twin.peers[peer].momenta, rtol=2e-5, atol=1e-6)
        if is_average:
            assert len({tuple(one.weights + one.momenta) for one in done.values()}) == 1, "one model, bit for bit"
            averages[step] = twin.peers[0].weights.copy()
        if twin.epoch > epoch:
            seen.append([])
    assert recovered["lost_samples"] == lost
    assert 0 < lost <= EVERY * LOCAL_BATCH
    # Each epoch hands out each sample once: what nobody wrote was handed to the peer that had died.
    missing = sum(SAMPLES - len(one) for one in seen[:-1])
    assert all(len(set(one)) == len(one) for one in seen)
    assert missing <= lost
    assert len(averages) > 10
    # Checkpoints were due between two averages, and hold the next one.
    written = ended.all_of("checkpoint")
    assert any(one["step"] % KEPT_EVERY for one in written)
    kept = [one for one in written if Path(one["path"]).exists()]
    assert kept
    for one in kept:
        np.testing.assert_allclose(weights_in(Path(one["path"])), averages[one["step"]], rtol=2e-5, atol=1e-6)
    assert all(one["step"] in steps for one in ended.metrics)
    capsys.readouterr()
    assert main(["replay", str(ended.folder)]) == 0
    assert "the replay decides as the run did" in capsys.readouterr().out


def model_at_start() -> Any:
    """The model with the weights that Keras draws under the program's seed."""
    import keras

    keras.utils.set_random_seed(0)
    return keras.Sequential([keras.Input((FEATURES,)), keras.layers.Dense(1, use_bias=False)])


def weights_of(model: Any) -> np.ndarray:
    return np.asarray(model.weights[0], np.float64).ravel()


def weights_in(checkpoint: Path) -> np.ndarray:
    """The weights that a checkpoint holds, as any program of TensorFlow reads them."""
    import tensorflow as tf

    model = model_at_start()
    tf.train.Checkpoint(model=model).read(str(checkpoint / "state")).expect_partial()
    return weights_of(model)
