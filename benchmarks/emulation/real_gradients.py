"""Training with real gradients on emulated peers: the policies are real, the seconds of a step are added up.

Each peer of the modelled cluster (`kungfu.testing`) computes the gradient of its own share of a batch, one after the
other in this process, and plain SGD takes a step along their mean. The norms of these gradients enter the compiled
policies, whose decisions set the peers, the batch and the learning rate of later steps, as in a job. With averages of
models each peer takes steps along its own gradients instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.emulation.characters import Array, CharacterModel, Samples, SourceText
from kungfu import Policy, control
from kungfu.compiler import CompiledPolicies, compile_policies, fired_rules
from kungfu.compiler.replay import Replay
from kungfu.runtime.core.view import spread
from kungfu.testing import ClusterModel, Start
from kungfu.testing.simulated_barrier import SimulatedBarrier
from kungfu.testing.simulated_job import SimulatedJob, agreed_sources, local_sources, stepped
from kungfu.testing.simulated_run import without_held

_MODEL = CharacterModel()
_SMOOTHED = 3  # successive judgements of a model, of which the mean counts


@dataclass(frozen=True)
class Devices:
    """The emulated seconds of a step, all of which is busy time: a part for each step, sample of a peer, and peer."""

    step_s: float = 0.01
    sample_s: float = 0.0001
    peer_s: float = 0.0

    def seconds(self, share: float, *, size: int) -> float:
        """The seconds of a step in which a peer of ``size`` has this many samples."""
        return self.step_s + self.sample_s * share + self.peer_s * size


@dataclass(frozen=True)
class EmulatedTraining:
    """A training job.

    Args:
        start: The peers, batch and learning rate at the start, and the samples of the job; with 0 samples it has no
            end of its own.
        policies: The policies of the job.
        devices: The seconds of a step.
        rate_factor: The program's own schedule: a factor on the learning rate, by the samples done.
        judged_s: Device seconds between two judgements on the held-out samples.
        model: The model that is trained.
        average_every: The steps from one average of the peers' models to the next; 0 for gradients in each step.
    """

    start: Start
    policies: Sequence[Policy] = ()
    devices: Devices = Devices()
    rate_factor: Callable[[int], float] = lambda samples: 1.0
    judged_s: float = 0.25
    model: CharacterModel = _MODEL
    average_every: int = 0


@dataclass
class LearningCurve:
    """The judgements of a model in training, each with the device seconds, steps and samples until then.

    Attributes:
        changes: The step, peers and batch at the start, and after each change of the peers or the batch.
        weights: The weights at the end.
    """

    seconds: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    changes: list[tuple[int, int, int]] = field(default_factory=list)
    weights: Array = field(default_factory=lambda: np.zeros(0, np.float32))

    def at_loss(self, target: float) -> tuple[float, float]:
        """The device seconds and steps at which the mean loss of three judgements first is at most ``target``.

        Seconds and steps are means too, and interpolated between two judgements; NaN if the loss was never reached.
        """
        losses, seconds, steps = (_smoothed(one) for one in (self.losses, self.seconds, self.steps))
        reached = np.flatnonzero(losses <= target)
        if not len(reached):
            return math.nan, math.nan
        last = int(reached[0])
        first = max(last - 1, 0)
        fall = losses[first] - losses[last]
        part = (losses[first] - target) / fall if fall > 0 else 1.0
        at_s, at_step = (float(one[first] + part * (one[last] - one[first])) for one in (seconds, steps))
        return at_s, at_step


def _smoothed(values: Sequence[float]) -> Array:
    return np.convolve(values, np.full(_SMOOTHED, 1 / _SMOOTHED), "valid") if len(values) >= _SMOOTHED else np.zeros(0)


def train(
    training: EmulatedTraining,
    *,
    seed: int,
    text: SourceText,
    is_done: Callable[[LearningCurve], bool] = lambda curve: False,
) -> LearningCurve:
    """Trains until the job's samples are used up or, after a judgement, ``is_done`` is true.

    The seed determines the first weights and the samples. A job whose samples are used up is judged once more. Models
    that are averaged are judged right after an average.
    """
    model, every, window = training.model, training.average_every, LocalModels()
    plan = compile_policies(training.policies, sync=control.average_models(every=every) if every else "gradients")
    # The devices say how long a step takes, not the throughput of the modelled cluster.
    cluster = ClusterModel({1: 1.0}, steps=1_000_000, start=training.start)
    job = SimulatedJob.started(cluster, max_global_batch=plan.max_global_batch, average_every=every)
    barrier = SimulatedBarrier(job, Replay(plan, size=job.size))
    weights, generator = model.started(seed), np.random.default_rng([seed, 1])
    held_out, curve, due_s = text.held_out_samples(context=model.context), LearningCurve(), 0.0
    while not job.is_over:
        if job.clocks.total_s >= due_s and not window.models:
            _judge(curve, job, model.loss_and_accuracy(weights, held_out))
            due_s = training.judged_s * (1 + job.clocks.total_s // training.judged_s)
            if is_done(curve):
                return curve
        setting = (job.size, job.samples)
        if not curve.changes or setting != curve.changes[-1][1:]:
            curve.changes.append((job.step, *setting))
        drawn = text.drawn(job.samples, context=model.context, generator=generator)
        shares = spread(job.samples, job.size)
        rate = np.float32(job.learning_rate * training.rate_factor(job.samples_done))
        busy, norms = [training.devices.seconds(share, size=job.size) for share in shares], list[float]()
        if every:
            window.step(model, weights, drawn, shares, rate=rate)
            if not job.is_synchronising:
                stepped(job, busy)
                barrier.foresee()
                continue
            weights, mean_norm = window.averaged(), math.nan
        else:
            # Where no policy reads norms, the gradient of all samples at once is the same mean, and quicker.
            mean, norms = _mean_gradient(model, weights, drawn, shares if plan.gradient_reductions else [len(drawn)])
            weights -= rate * mean
            mean_norm = float(mean @ mean)
        _decide(plan, barrier, busy=busy, norms=norms, mean_norm=mean_norm)
    _judge(curve, job, model.loss_and_accuracy(weights, held_out))
    curve.weights = weights
    return curve


@dataclass
class LocalModels:
    """The models of the peers since their last average, none right after it, and the samples of each peer since."""

    models: list[Array] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)

    def step(
        self, model: CharacterModel, average: Array, drawn: Samples, shares: Sequence[int], *, rate: np.float32
    ) -> None:
        """Has each peer take a step along the gradient of its own share, the first one from the last average."""
        if not self.models:
            self.models, self.samples = [average.copy() for _ in shares], [0] * len(shares)
        own, begin = np.empty_like(average), 0
        for peer, share in enumerate(shares):
            if share:
                model.gradient(self.models[peer], drawn[begin : begin + share], into=own)
                self.models[peer] -= rate * own
            self.samples[peer] += share
            begin += share

    def averaged(self) -> Array:
        """The mean of the models, each weighted by its peer's samples; begins the next window."""
        mean = np.average(self.models, axis=0, weights=self.samples).astype(np.float32)
        self.models.clear()
        return mean


def _judge(curve: LearningCurve, job: SimulatedJob, judged: tuple[float, float]) -> None:
    curve.seconds.append(job.clocks.total_s)
    curve.steps.append(job.step - 1)
    curve.samples.append(job.samples_done)
    curve.losses.append(judged[0])
    curve.accuracies.append(judged[1])


def _mean_gradient(
    model: CharacterModel, weights: Array, drawn: Samples, shares: Sequence[int]
) -> tuple[Array, list[float]]:
    """The mean gradient over all samples, and the squared norm of the gradient of each share; 0 for an empty share."""
    mean, own, norms, begin = np.zeros_like(weights), np.zeros_like(weights), [], 0
    for share in shares:
        if share:
            model.gradient(weights, drawn[begin : begin + share], into=own)
            mean += own * np.float32(share / len(drawn))
        norms.append(float(own @ own) if share else 0.0)
        begin += share
    return mean, norms


def _decide(
    plan: CompiledPolicies,
    barrier: SimulatedBarrier,
    *,
    busy: Sequence[float],
    norms: Sequence[float],
    mean_norm: float,
) -> None:
    """Completes a step of the modelled job: the policies see the squared norms of the real gradients."""
    job = barrier.job
    local = local_sources(job, busy)
    if plan.gradient_reductions:
        local = [{**one, "norm_squared(grads)": norm} for one, norm in zip(local, norms, strict=True)]
    agreed = {**agreed_sources(job), "norm_squared(mean_grads)": mean_norm}
    outcome = barrier.replay.step(local, agreed)
    fired = list(without_held(fired_rules(plan, outcome, step=job.step)))
    stepped(job, busy)
    barrier.hold([one for one in fired if one.mode == "acting"], fractions=next(iter(outcome.fractions), ()))
