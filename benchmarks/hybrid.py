"""Checks that peers which double with the batch train faster than a fixed batch and than fixed peers: table IV of 003.

Xie et al. (*Elan: Towards Generic and Efficient Elastic Training for Deep Learning*, section VI-B) train ResNet-50 for
90 epochs with a batch that doubles every 30 epochs, from 512 to 2048, and compare 16 to 64 workers with the fixed batch
on 16 workers and with the same batches on 64 workers. Here, at an eighth of the size, a small language model of
characters trains on Python's own source text, whose epochs are 4096 samples drawn at random:

- *small*: 64 samples on 2 peers;
- *large*: 64, 128 and 256 samples on 8 peers, with a learning rate that doubles with the batch over 100 steps;
- *elastic*: 64 samples on 2 peers, 128 on 4 and 256 on 8, by the policies `schedule` and `hybrid_scaling`; the table of
  `hybrid_scaling` is that of the emulated devices.

As in the paper, the program's own schedule divides the learning rate of all three by 10 every 30 epochs.

- Real: the text, the model, its gradients and plain SGD; the policies, and their decisions by the code of real
  barriers.
- Emulated: the peers are modelled in one process. The time of a step, 10 ms + 0.1 ms for each sample of a peer + 1 ms
  for each peer, is added up, not slept; a change of the peers stops all of them for 0.1 s. Joiners are ready two steps
  after the request: in the paper their start of minutes overlaps with hours of training.

The *target* is the mean accuracy of *small* on held-out files after its last epoch, minus one standard error over the
seeds; the time of each job is that at which its mean accuracy over the seeds first is at least the target. Prints a
table and, as its last line, a JSON object: ``below_small`` and ``below_large``, the fractions by which *elastic* is
faster, with the standard errors that come from leaving out each seed in turn.

Run: ``python -m benchmarks.hybrid [--seeds 10] [--jobs 2]``
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import kungfu as kf
from benchmarks.adaptive_batch import mean_and_error, rounded
from benchmarks.emulation.characters import source_text
from benchmarks.emulation.real_gradients import Devices, EmulatedTraining, LearningCurve, train
from kungfu.control import Rule
from kungfu.policies import hybrid_scaling, schedule
from kungfu.signal import TrainingSignals
from kungfu.testing import Start

BATCHES, SIZES = (64, 128, 256), (2, 4, 8)
PHASE_EPOCHS, EPOCH_SAMPLES, RATE, RAMP_STEPS = 30, 4096, 0.5, 100
PHASE_SAMPLES = PHASE_EPOCHS * EPOCH_SAMPLES
JOBS = ("small", "large", "elastic")
DEVICES = Devices(peer_s=0.001)
BOUNDS = {"below_small": 0.2, "below_large": 0.05}
PAPER = "20 to 22 % below 512 samples on 16 workers, 25 to 26 % below 512 to 2048 on 64"


@dataclass(frozen=True)
class Run:
    """The run of a job ("small", "large" or "elastic") with a seed."""

    job: str
    seed: int
    curve: LearningCurve


def first_steps() -> tuple[int, ...]:
    """The number of the first step of the second phase, and of the third."""
    second = 1 + PHASE_SAMPLES // BATCHES[0]
    return second, second + PHASE_SAMPLES // BATCHES[1]


def optimal_peers() -> dict[int, int]:
    """For each batch the number of peers with which its step takes least time on the emulated devices."""
    sizes = range(1, 2 * SIZES[-1] + 1)
    return {batch: min(sizes, key=lambda size: DEVICES.seconds(batch / size, size=size)) for batch in BATCHES}


@kf.policy
def doubling_batch(training: TrainingSignals) -> tuple[Rule, Rule]:
    """Doubles the batch and the learning rate at the steps at which the second and the third phase begin."""
    second, third = (step - 1 for step in first_steps())  # the barrier of the next step carries the request out
    batch = kf.ops.where(training.step >= second, BATCHES[1] * 1.0, BATCHES[0])
    batch = kf.ops.where(training.step >= third, BATCHES[2], batch)
    always = kf.control.always()
    rate = RATE * batch / BATCHES[0]
    return always.set_global_batch_size(batch), always.set_learning_rate(rate, over_steps=RAMP_STEPS)


def training(job: str) -> EmulatedTraining:
    """A job: its start and policies."""
    sizes = schedule(dict(zip(first_steps(), SIZES[1:], strict=True)), keep="global_batch_size")
    policies: Mapping[str, list[kf.Policy]] = {
        "small": [],
        "large": [doubling_batch()],
        "elastic": [sizes, hybrid_scaling(optimal_peers(), over_steps=RAMP_STEPS)],
    }
    start = Start(
        size=SIZES[-1] if job == "large" else SIZES[0],
        max_size=SIZES[-1],
        global_batch_size=BATCHES[0],
        learning_rate=RATE,
        epoch_samples=EPOCH_SAMPLES,
        job_samples=len(BATCHES) * PHASE_SAMPLES,
    )
    return EmulatedTraining(start, policies[job], DEVICES, rate_factor=rate_factor)


def rate_factor(samples: int) -> float:
    """The factor on the learning rate by the program's own schedule: a tenth every 30 epochs."""
    return 0.1 ** (samples // PHASE_SAMPLES)


def run(task: tuple[str, int]) -> Run:
    """Trains a job with a seed to its end."""
    job, seed = task
    return Run(job, seed, train(training(job), seed=seed, text=source_text()))


def times_to_target(runs: Sequence[Run]) -> tuple[float, dict[str, float]]:
    """The target accuracy, and by job the device seconds to it; NaN for a job that does not reach it.

    All runs of a job are judged at the same device seconds, since their steps take equally long.
    """
    accuracy, error = mean_and_error([one.curve.accuracies[-1] for one in runs if one.job == "small"])
    target, seconds = accuracy - error, {}
    for job in JOBS:
        curves = [one.curve for one in runs if one.job == job]
        reached = np.flatnonzero(np.mean([one.accuracies for one in curves], axis=0) >= target)
        seconds[job] = curves[0].seconds[reached[0]] if len(reached) else math.nan
    return target, seconds


def savings(runs: Sequence[Run]) -> dict[str, float]:
    """The fractions by which the elastic job is faster to the target than the others."""
    _, seconds = times_to_target(runs)
    return {f"below_{job}": 1 - seconds["elastic"] / seconds[job] for job in ("small", "large")}


def figures(runs: Sequence[Run]) -> dict[str, object]:
    """The figures for the JSON object; a saving is ``None`` if a job did not reach the target."""
    target, seconds = times_to_target(runs)
    saved, seeds = savings(runs), sorted({one.seed for one in runs})
    rest = [savings([one for one in runs if one.seed != seed]) for seed in seeds] if len(seeds) > 2 else []
    errors = {name: jackknife_error([one[name] for one in rest]) for name in saved}
    ends = {job: mean_and_error([one.curve.accuracies[-1] for one in runs if one.job == job]) for job in JOBS}
    return {
        **{name: rounded(value) for name, value in saved.items()},
        **{f"{name}_error": rounded(value) for name, value in errors.items()},
        "target_accuracy": round(target, 5),
        "seconds": {job: rounded(value) for job, value in seconds.items()},
        "accuracy": {job: round(mean, 5) for job, (mean, _) in ends.items()},
        "accuracy_error": {job: round(error, 5) for job, (_, error) in ends.items()},
        "seeds": len(seeds),
        "within_bounds": {name: value >= BOUNDS[name] for name, value in saved.items()},
    }


def jackknife_error(values: Sequence[float]) -> float:
    """The standard error of a figure, from its values without each seed in turn; NaN without values."""
    return math.sqrt((len(values) - 1) * statistics.pvariance(values)) if values else math.nan


def table_of(runs: Sequence[Run]) -> Table:
    """A table with a row for each job."""
    target, seconds = times_to_target(runs)
    table = Table(title=f"device seconds to an accuracy of {target:.2%} on held-out files", box=SIMPLE_HEAD)
    for heading in ("job", "peers and batches", "accuracy at the end", "whole job", "to the target", "elastic saves"):
        table.add_column(heading, justify="left" if heading in ("job", "peers and batches") else "right", no_wrap=True)
    for job in JOBS:
        curves = [one.curve for one in runs if one.job == job]
        accuracy, error = mean_and_error([one.accuracies[-1] for one in curves])
        # The last step of an epoch may have fewer samples.
        settings = ", ".join(dict.fromkeys(f"{batch} on {size}" for _, size, batch in curves[0].changes))
        whole = statistics.mean(one.seconds[-1] for one in curves)
        saved = "" if job == "elastic" else f"{1 - seconds['elastic'] / seconds[job]:.1%}"
        table.add_row(job, settings, f"{accuracy:.2%} ± {error:.2%}", f"{whole:.1f}", f"{seconds[job]:.1f}", saved)
    return table


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=10, help="the runs of each job, at least 2 (10)")
    parser.add_argument("--jobs", type=int, default=2, help="processes that train at once, each with one thread (2)")
    given = parser.parse_args(words)
    for name, least, most in (("seeds", 2, 100), ("jobs", 1, 64)):
        if not least <= getattr(given, name) <= most:
            parser.error(f"--{name} {getattr(given, name)}: takes {least} to {most}")
    return given


def main(words: Sequence[str] | None = None) -> int:
    """Trains all jobs, and prints the table and the figures."""
    given = arguments(words)
    console, began, before = Console(width=140), time.monotonic(), os.getloadavg()[0]
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # of the processes that train
    console.print("Gradients and policies are real; peers are modelled, and their device time is added up, not slept.")
    tasks = [(job, seed) for seed in range(given.seeds) for job in JOBS]
    runs: list[Run] = []
    with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
        for one in pool.imap(run, tasks):
            accuracy, seconds = one.curve.accuracies[-1], one.curve.seconds[-1]
            console.print(f"{one.job}, seed {one.seed}: {accuracy:.2%} after {seconds:.1f} s", highlight=False)
            runs.append(one)
    console.print(table_of(runs))
    console.print(f"the paper, to three accuracies: {PAPER}", highlight=False)
    found = figures(runs)
    load = [round(before, 2), round(os.getloadavg()[0], 2)]
    print(json.dumps(found | {"wall_s": round(time.monotonic() - began, 1), "load": load}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
