"""Jobs whose peers average their models: weights equal those of NumPy, and every sample is accounted for."""

from __future__ import annotations

import json
import math
import signal
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kungfu.cli.main import main
from kungfu.runtime.core.sample_slices import Position
from kungfu.training.data.sampler import SerialSampler, StepSlice
from tests.jobs.harness import Ended, lines_of, ran, started, started_on_hosts
from tests.jobs.programs.local_steps import (
    FEATURES,
    KEPT_EVERY,
    LESS,
    LESS_AFTER,
    MOMENTUM,
    RATE,
    SAMPLES,
    SEED,
    data,
)
from tests.soak import SOAK

EVERY, LOCAL_BATCH = 5, 4
HOROVOD = pytest.mark.skipif(find_spec("horovod") is None, reason="horovod is not installed")


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

    def model(self) -> Peer:
        """A copy of the model that all peers hold right after an average."""
        one = next(iter(self.peers.values()))
        return Peer(one.weights.copy(), one.momenta.copy())

    def averages_now(self, peers: list[int]) -> int:
        """Gives these peers the mean of their models; the samples that are in no average."""
        total = sum(self.peers[one].window for one in peers)
        if total == 0:  # right after an average
            self.peers, lost, self.handed = {one: self.peers[one] for one in peers}, self.handed, 0
            return lost
        parts = [(self.peers[one], self.peers[one].window / total) for one in peers]
        weights = sum(peer.weights * part for peer, part in parts)
        momenta = sum(peer.momenta * part for peer, part in parts)
        self.peers = {one: Peer(weights.copy(), momenta.copy()) for one in peers}
        lost, self.handed = self.handed - total, 0
        return lost

    def ends_window(self, step: int, batch: int) -> bool:
        """True if a step ends with an average."""
        return self.offset + batch >= self.samples or step - self.averaged_at >= self.every

    def steps(self, step: int, batch: int, done: dict[int, Done]) -> bool:
        """A step of these peers; true if it ended with an average."""
        batch = min(batch, self.samples - self.offset)
        for peer, one in done.items():
            self.peers[peer].trains(one.samples) if one.samples else None
        ends = self.ends_window(step, batch)
        self.handed += batch
        self.offset += batch
        if self.offset >= self.samples:
            self.epoch, self.offset = self.epoch + 1, 0
        if not ends:
            return False
        self.averaged_at = step
        assert self.averages_now([*done]) == 0, "all that trained are in the average"
        return True


def lines_by_step(ended: Ended, results) -> dict[int, dict[int, Done]]:
    """What the peers have done, by step and peer, without what a restart has undone."""
    found: dict[int, dict[int, Done]] = {}
    for path in sorted(results.glob("*.jsonl")):
        later = (one["step"] for one in ended.all_of("restarted") if int(path.stem) < one["first_peer"])
        undone = min(later, default=math.inf)
        for line in path.read_text().splitlines():
            one = Done(*json.loads(line))
            if one.step > undone:
                continue
            assert int(path.stem) not in found.setdefault(one.step, {}), "each step is done once"
            found[one.step][int(path.stem)] = one
    return found


@dataclass
class History:
    """A job as it was in NumPy.

    Attributes:
        averages: The weights after each step that averaged.
        lost: For each loss of peers, the samples that are in no average.
        seen: For each epoch, the samples that the peers have trained on.
    """

    averages: dict[int, np.ndarray] = field(default_factory=dict)
    lost: list[int] = field(default_factory=list)
    seen: list[list[int]] = field(default_factory=lambda: [[]])


def followed(ended: Ended, results: Path) -> History:
    """Does in NumPy what the job has done, as its record and its peers say; all weights must be equal.

    Each epoch hands out each sample once, and all samples are in an average but those that a loss has cost.
    """
    steps, history = lines_by_step(ended, results), History()
    recovered = {one["step"]: one for one in ended.all_of("recovered")}
    # A loss keeps the batch of all peers, a leave that of each.
    changes = [one for one in ended.events if one["event"] in ("rescale", "recovered")]
    intervals = {one["step"]: one["to"] for one in ended.all_of("set") if one["what"] == "averaging interval"}
    start = weights_of(model_at_start())
    twin = Twin({one: Peer(start.copy(), np.zeros(FEATURES)) for one in steps[1]})
    for step in range(1, max(steps) + 1):
        done = steps[step]
        if step - 1 in recovered:
            history.lost.append(twin.averages_now([*done]))
            twin.averaged_at = step - 1
            assert recovered[step - 1].get("lost_samples", 0) == history.lost[-1]
        before = (one["global_batch_size"] for one in reversed(changes) if one["step"] < step)
        batch = next(before, 2 * LOCAL_BATCH)
        for one in done.keys() - twin.peers.keys():
            assert twin.averaged_at == step - 1, "a peer joins behind an average"
            twin.peers[one] = twin.model()
        if step in recovered and twin.ends_window(step, batch):
            # A peer that died in the barrier behind the average has written nothing of its last step.
            done = {**unwritten(ended, recovered[step], Position(twin.epoch, twin.offset), batch), **done}
        history.seen[-1] += [sample for one in done.values() for sample in one.samples]
        epoch, is_average = twin.epoch, twin.steps(step, batch, done)
        if step in intervals:
            assert is_average, "a rule is evaluated in a step that averages"
            twin.every = int(intervals[step])
        for peer, one in steps[step].items():
            np.testing.assert_allclose(one.weights, twin.peers[peer].weights, rtol=2e-5, atol=1e-6)
            np.testing.assert_allclose(one.momenta, twin.peers[peer].momenta, rtol=2e-5, atol=1e-6)
        if is_average:
            assert len({tuple(one.weights + one.momenta) for one in steps[step].values()}) == 1, (
                "one model, bit for bit"
            )
            history.averages[step] = twin.model().weights
        if twin.epoch > epoch:
            history.seen.append([])
    assert len(history.lost) == len(recovered)
    # What nobody wrote was handed to a peer that had died.
    assert all(len(set(one)) == len(one) for one in history.seen)
    assert sum(SAMPLES - len(one) for one in history.seen[:-1]) <= sum(history.lost)
    assert len(history.averages) > 10
    # A checkpoint that was due between two averages holds the next one.
    kept = [one for one in ended.all_of("checkpoint") if Path(one["path"]).exists()]
    assert kept
    for one in kept:
        np.testing.assert_allclose(weights_in(Path(one["path"])), history.averages[one["step"]], rtol=2e-5, atol=1e-6)
    assert all(one["step"] in steps for one in ended.metrics)
    return history


def unwritten(ended: Ended, loss: dict[str, Any], here: Position, batch: int) -> dict[int, Done]:
    """The step here of the peers that were lost after it, by their ids: the samples that were cut for them."""
    until = ended.events.index(loss)
    (*_, view) = [
        one["peers"] for one in ended.events[:until] if one["event"] == "view" and one["version"] < loss["view"]
    ]
    cut = (StepSlice(here, 0, len(view), rank, batch) for rank in range(len(view)))
    samples = {peer: SerialSampler(SAMPLES, SEED).indices(one).tolist() for peer, one in zip(view, cut, strict=True)}
    return {int(peer): Done(0, samples[int(peer)], [], []) for peer in loss["lost"]}


@pytest.mark.parametrize("attachment", ["local", pytest.param("horovod", marks=[HOROVOD, SOAK])])
def test_weights_after_each_average_are_numpys_with_a_join_a_leave_and_a_kill(tmp_path, capsys, attachment):
    results = tmp_path / "results"
    arguments = ["--results", results, "--every", EVERY]
    options = ("-np", 2, "--max", 3, "--failures", 0, "--attachment", attachment)
    ended = ran(tmp_path, *options, program="local_steps.py", arguments=arguments)
    assert ended.sizes == [2, 3, 2, 1]
    (often,) = (one for one in ended.all_of("set") if one["what"] == "averaging interval")
    assert often["to"] == LESS
    assert often["step"] > LESS_AFTER
    (lost,) = followed(ended, results).lost
    assert 0 < lost <= EVERY * LOCAL_BATCH
    assert any(one["step"] % KEPT_EVERY for one in ended.all_of("checkpoint"))
    capsys.readouterr()
    assert main(["replay", str(ended.folder)]) == 0
    assert "the replay decides as the run did" in capsys.readouterr().out


STEERED = ("--steered", 1, "--every", EVERY)


def test_a_notice_and_kills_within_an_average_and_in_the_barrier_behind_it(tmp_path):
    """A peer with notice leaves behind an average. Another one is killed when the others have done their own steps."""
    results = tmp_path / "results"
    options = ("-np", 4, "--min", 1, "--preemptions", 0, "--failures", 0)
    with started(tmp_path, *options, program="local_steps.py", arguments=["--results", results, *STEERED]) as job:
        job.steps(3)
        job.signal(signal.SIGTERM, peer=1)
        job.event("rescale", to=3)
        (results / "average-2").touch()
        job.event("recovered", to=2)
        (results / "barrier-3").touch()
        job.event("recovered", to=1)
        job.steps(len(lines_of(job.folder / "metrics.jsonl")) + 5)
        (results / "hurry").touch()
        ended = job.end()
    assert ended.sizes == [4, 3, 2, 1]
    assert [one["left"] for one in ended.all_of("rescale")] == [[1]]
    within, behind = followed(ended, results).lost
    assert 0 < within <= EVERY * LOCAL_BATCH
    assert behind == 0, "all peers have that average"
    # Of the interrupted step, all that the survivors had done is undone.
    assert [one["redone"] for one in ended.all_of("recovered")] == [0, 0]


@SOAK
def test_a_job_that_loses_all_peers_between_two_averages_goes_on_from_its_checkpoint(tmp_path):
    results = tmp_path / "results"
    arguments = ["--results", results, *STEERED]
    with started(tmp_path, "-np", 2, "--restarts", 2, program="local_steps.py", arguments=arguments) as job:
        kept = job.event("checkpoint")["step"]
        job.seen(lambda: len(lines_of(results / "0.jsonl")) > kept + EVERY + 1, what="steps", deadline_s=180.0)
        for peer in (0, 1):
            job.signal(signal.SIGKILL, peer=peer)
        again = job.event("restarted")
        steps = results / f"{again['first_peer']}.jsonl"
        job.seen(lambda: len(lines_of(steps)) > 4 * KEPT_EVERY, what="steps", deadline_s=180.0)
        (results / "hurry").touch()
        ended = job.end()
    assert again["step"] >= kept
    assert again["steps_again"] > 0
    assert ended.sizes == [2, 2]
    assert followed(ended, results).lost == []


@SOAK
@pytest.mark.parametrize("attachment", ["local", pytest.param("horovod", marks=HOROVOD)])
def test_hosts_come_to_one_average_though_one_is_killed_and_the_leader_leaves(tmp_path, attachment):
    results, slots = tmp_path / "results", (1, 1, 2)
    options = ("-np", 3, "--heartbeat", 4, "--deadline", 20, "--failures", 100, "--attachment", attachment)
    given = {"program": "local_steps.py", "arguments": ["--results", results, *STEERED]}
    with started_on_hosts(tmp_path, *options, slots=slots, **given) as hosts:
        job = hosts[2]
        job.steps(3)
        hosts[1].signal(signal.SIGKILL)
        job.event("recovered", to=2)
        again = job.event("rescale", to=3)
        hosts[0].signal(signal.SIGTERM)
        job.event("host left", host=0)
        job.steps(len(lines_of(job.folder / "metrics.jsonl")) + 5)
        (results / "hurry").touch()
        left, _, ended = hosts.ends()
    assert (left.code, ended.code) == (0, 0), left.output + ended.output
    assert again["joined"] == [3]
    assert ended.sizes == [3, 2, 3, 2]
    (lost,) = followed(ended, results).lost
    assert 0 <= lost <= EVERY * LOCAL_BATCH


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
