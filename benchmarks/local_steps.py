"""Measures what averages of models every H steps save in time and cost in accuracy, against gradients in each step.

A small language model of characters trains on Python's own source text, with plain SGD at a learning rate of 0.8 and
batches of 256 samples on 8 peers: with gradients in each step, and with averages of models every 1, 4 and 16 steps.

- Real: the text, the model, and the gradients, models and averages of the peers.
- Emulated: the peers are modelled in one process. The time of a step, 10 ms + 0.1 ms for each sample of a peer, is
  added up, not slept. So is the time of a synchronisation, the message of a step's gradients or an average of models:
  1 ms, and the least time in which a ring of 8 peers sends the 122 kB of the model, if each peer has a link of
  1 Gbit/s, 100 Mbit/s or 10 Mbit/s. On links without cost, synchronising takes no time.
- Checked: for each way, a real job of 3 peers under kungfu-run trains on the samples of an emulated run, in its order.
  The benchmark fails if the real weights at the end differ from the emulated ones by more than a thousandth of the
  distance from the first weights, or if the job has synchronised more or fewer times.

Prints two tables, the accuracy and time of the whole job and the time to a held-out loss of 1.95 nats (the mean of
three judgements), and as its last line a JSON object. ``faster``: the fraction of the time to the loss that averages
save, by link and H; negative if gradients are faster. Errors are standard errors over the seeds.

Of 0.2, 0.4, 0.8 and 1.2, the learning rate is the best one for gradients and for each H, on another seed than those of
the figures.

Run: ``python -m benchmarks.local_steps [--seeds 5] [--steps 3200] [--loss 1.95] [--jobs 2]``
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.adaptive_batch import mean_and_error, rounded
from benchmarks.elasticity.jobs import awaited, started
from benchmarks.emulation.characters import Array, CharacterModel, source_text
from benchmarks.emulation.real_gradients import Devices, EmulatedTraining, LearningCurve, train
from benchmarks.emulation.ring import bound_s
from kungfu.testing import Start

PEERS, BATCH, RATE, STEPS, LOSS = 8, 256, 0.8, 3200, 1.95
GRADIENTS = 0  # in place of a number of steps between two averages
EVERY = (GRADIENTS, 1, 4, 16)
DEVICES = Devices()
LINKS_MBIT = {"no cost": math.inf, "1 Gbit/s": 1000.0, "100 Mbit/s": 100.0, "10 Mbit/s": 10.0}
LEAST_MESSAGE_S = 0.001
# The real jobs: three peers have unlike shares, and the last window is shorter than the others.
REAL_PEERS, REAL_BATCH, REAL_STEPS, REAL_SEED = 3, 64, 40, 0
MOST_DISTANCE, REAL_DEADLINE_S = 1e-3, 600.0


@dataclass(frozen=True)
class Run:
    """An emulated run, with an average of models every ``every`` steps, to its last sample."""

    every: int
    seed: int
    curve: LearningCurve


@dataclass(frozen=True)
class RealRun:
    """A real job beside its emulated twin.

    Args:
        every: The steps from one average of models to the next; 0 for gradients in each step.
        distance: The distance of the weights at the end, over that of the emulated ones from the first weights.
        messages: The number of synchronisations.
    """

    every: int
    distance: float
    messages: int


def name_of(every: int) -> str:
    """The name of a way to synchronise."""
    return "gradients" if every == GRADIENTS else f"H = {every}"


def training(every: int, *, steps: int, peers: int = PEERS, batch: int = BATCH) -> EmulatedTraining:
    """The job of ``steps`` steps that synchronises in a way."""
    start = Start(size=peers, global_batch_size=batch, learning_rate=RATE, job_samples=steps * batch)
    return EmulatedTraining(start, devices=DEVICES, average_every=every)


def run(task: tuple[int, int, int]) -> Run:
    """Trains with a seed to the end."""
    every, seed, steps = task
    return Run(every, seed, train(training(every, steps=steps), seed=seed, text=source_text()))


# ---- the time of a synchronisation -----------------------------------------------------------------------------------


def message_s(mbit: float) -> float:
    """The emulated seconds of a synchronisation over links of ``mbit`` Mbit/s; 0 if the links are infinitely fast."""
    if math.isinf(mbit):
        return 0.0
    megabytes = 4e-6 * sum(map(math.prod, CharacterModel().shapes))
    return LEAST_MESSAGE_S + bound_s(PEERS, crossings=1, megabytes=megabytes, mbit=mbit)


def seconds(steps: float, *, every: int, mbit: float) -> float:
    """The device seconds of this many steps with their synchronisations.

    >>> round(seconds(1000, every=4, mbit=100.0) - seconds(1000, every=4, mbit=math.inf), 2)
    4.51
    """
    return steps * DEVICES.seconds(BATCH / PEERS, size=PEERS) + steps / max(every, 1) * message_s(mbit)


# ---- the real jobs ---------------------------------------------------------------------------------------------------


def real_run(every: int) -> RealRun:
    """Runs a real job on the samples of an emulated run, and compares their weights.

    Raises:
        SystemExit: The job failed, or differs from the emulated run.
    """
    told = training(every, steps=REAL_STEPS, peers=REAL_PEERS, batch=REAL_BATCH)
    emulated = train(told, seed=REAL_SEED, text=source_text()).weights
    options = {"seed": REAL_SEED, "steps": REAL_STEPS, "batch": REAL_BATCH, "rate": RATE, "every": every}
    with started(_launcher, program="emulation.characters_worker", options=options) as job:
        awaited(job.has_ended, what=f"the end of the job ({job.console})", deadline_s=REAL_DEADLINE_S)
        weights = np.load(job.folder / "weights.npy")
        messages = len((job.folder / "log" / "metrics.jsonl").read_text().splitlines())
    found = RealRun(every, distance(weights, emulated), messages)
    expected = math.ceil(REAL_STEPS / max(every, 1))
    if found.distance > MOST_DISTANCE or messages != expected:
        raise SystemExit(
            f"{name_of(every)}: the weights of the real job differ from the emulated ones by {found.distance:.2e} of "
            f"the distance that these have moved, where {MOST_DISTANCE:g} is the limit; the job has synchronised "
            f"{messages} times, and {expected} times are right"
        )
    return found


def distance(weights: Array, emulated: Array) -> float:
    """The distance of weights from the emulated ones, over the distance of the latter from the first weights."""
    first = CharacterModel().started(REAL_SEED)
    return float(np.linalg.norm(weights - emulated) / np.linalg.norm(emulated - first))


def _launcher(folder: Path) -> Sequence[object]:
    told = ["-np", REAL_PEERS, "--heartbeat", 60, "--attachment", "local", "--logdir", folder / "log"]
    return [sys.executable, "-m", "kungfu.cli.run", *told]


# ---- figures ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Summary:
    """The runs of one way: accuracy and loss at the end, and the steps to the loss by seed (NaN if not reached)."""

    every: int
    accuracies: list[float]
    losses: list[float]
    steps_to_loss: list[float]

    def to_loss_s(self, mbit: float) -> list[float]:
        """The device seconds to the loss, by seed."""
        return [seconds(steps, every=self.every, mbit=mbit) for steps in self.steps_to_loss]


def summaries(runs: Sequence[Run], *, loss: float) -> list[Summary]:
    """The runs of each way, in the order of `EVERY` and of the seeds."""
    ordered = sorted(runs, key=lambda one: one.seed)
    found = []
    for every in EVERY:
        curves = [one.curve for one in ordered if one.every == every]
        ends = [one.accuracies[-1] for one in curves], [one.losses[-1] for one in curves]
        found.append(Summary(every, *ends, [one.at_loss(loss)[1] for one in curves]))
    return found


def savings(found: Sequence[Summary], *, mbit: float) -> dict[str, tuple[float, float]]:
    """The fraction of the time to the loss that each H saves against gradients, with its error, by name."""
    gradients = found[0].to_loss_s(mbit)
    saved = {}
    for one in found[1:]:
        ratios = [1 - own / other for own, other in zip(one.to_loss_s(mbit), gradients, strict=True)]
        saved[name_of(one.every)] = mean_and_error(ratios)
    return saved


def figures(found: Sequence[Summary], *, steps: int) -> dict[str, object]:
    """The figures for the JSON object; a figure is ``None`` if a run has not reached the loss."""

    def by_link(every: int, count: float) -> Mapping[str, float | None]:
        return {link: rounded(seconds(count, every=every, mbit=mbit)) for link, mbit in LINKS_MBIT.items()}

    ways: dict[str, object] = {}
    for one in found:
        (accuracy, accuracy_error), (loss, loss_error) = map(mean_and_error, (one.accuracies, one.losses))
        reached, reached_error = mean_and_error(one.steps_to_loss)
        ways[name_of(one.every)] = {
            "accuracy": rounded(accuracy, digits=5),
            "accuracy_error": rounded(accuracy_error, digits=5),
            "loss": rounded(loss, digits=4),
            "loss_error": rounded(loss_error, digits=4),
            "steps_to_loss": rounded(reached),
            "steps_to_loss_error": rounded(reached_error),
            "job_s": by_link(one.every, steps),
            "to_loss_s": by_link(one.every, reached),
        }
    saved = {link: savings(found, mbit=mbit) for link, mbit in LINKS_MBIT.items()}
    return {
        "ways": ways,
        "faster": {link: {name: rounded(one) for name, (one, _) in each.items()} for link, each in saved.items()},
        "faster_error": {link: {name: rounded(one) for name, (_, one) in each.items()} for link, each in saved.items()},
        "message_s": {link: rounded(message_s(mbit), digits=5) for link, mbit in LINKS_MBIT.items()},
        "seeds": len(found[0].accuracies),
    }


def tables_of(found: Sequence[Summary], *, steps: int, loss: float) -> tuple[Table, Table]:
    """A table of the whole jobs, and a table of the times to the loss."""
    seeds, ways = len(found[0].accuracies), ("synchronised by", "accuracy at the end", "loss at the end")
    whole = Table(title=f"{steps} steps of {BATCH} samples on {PEERS} emulated peers, {seeds} seeds", box=SIMPLE_HEAD)
    reach = Table(title=f"device seconds to a held-out loss of {loss:g}, over those with gradients", box=SIMPLE_HEAD)
    for table, headings in ((whole, ways), (reach, ("synchronised by", "steps"))):
        for heading in (*headings, *LINKS_MBIT):
            table.add_column(heading, justify="left" if heading == headings[0] else "right", no_wrap=True)
    for one in found:
        (accuracy, accuracy_error), (end, end_error) = map(mean_and_error, (one.accuracies, one.losses))
        times = [f"{seconds(steps, every=one.every, mbit=mbit):.1f} s" for mbit in LINKS_MBIT.values()]
        ends = f"{accuracy:.2%} ± {accuracy_error:.2%}", f"{end:.3f} ± {end_error:.3f}"
        whole.add_row(name_of(one.every), *ends, *times)
        reached, error = mean_and_error(one.steps_to_loss)
        cells = []
        for mbit in LINKS_MBIT.values():
            mean, gradients = (mean_and_error(way.to_loss_s(mbit))[0] for way in (one, found[0]))
            cells.append("-" if math.isnan(mean) else f"{mean:.1f} s, {mean / gradients:.2f}")
        steps_told = "not reached" if math.isnan(reached) else f"{reached:.0f} ± {error:.0f}"
        reach.add_row(name_of(one.every), steps_told, *cells)
    return whole, reach


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5, help="the runs of each way (5)")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"the steps of each run ({STEPS})")
    parser.add_argument("--loss", type=float, default=LOSS, help=f"the held-out loss to be reached, in nats ({LOSS})")
    parser.add_argument("--jobs", type=int, default=2, help="processes that train at once, each with one thread (2)")
    given = parser.parse_args(words)
    for name, least, most in (("seeds", 1, 100), ("steps", 100, 100_000), ("loss", 1.5, 3.5), ("jobs", 1, 64)):
        if not least <= getattr(given, name) <= most:
            parser.error(f"--{name} {getattr(given, name):g}: takes {least:g} to {most:g}")
    return given


def main(words: Sequence[str] | None = None) -> int:
    """Runs the real jobs and all emulated runs, and prints the tables and the figures."""
    given = arguments(words)
    console, began, before = Console(width=140), time.monotonic(), os.getloadavg()[0]
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # of the processes that train
    console.print("Gradients and models are real; peers are modelled, and the time of steps and messages is added up.")
    real = []
    for every in EVERY:
        real.append(real_run(every))
        told = f"real weights within {real[-1].distance:.1e} of the emulated ones, {real[-1].messages} synchronisations"
        console.print(f"{name_of(every)}, {REAL_PEERS} processes, {REAL_STEPS} steps: {told}", highlight=False)
    tasks = [(every, seed, given.steps) for seed in range(given.seeds) for every in EVERY]
    runs: list[Run] = []
    with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
        for one in pool.imap(run, tasks):
            at = f"{one.curve.accuracies[-1]:.2%}, loss {one.curve.losses[-1]:.3f}"
            steps = one.curve.at_loss(given.loss)[1]
            reached = f"{given.loss:g} not reached" if math.isnan(steps) else f"{given.loss:g} after {steps:.0f} steps"
            console.print(f"{name_of(one.every)}, seed {one.seed}: {at}; {reached}", highlight=False)
            runs.append(one)
    found = summaries(runs, loss=given.loss)
    for table in tables_of(found, steps=given.steps, loss=given.loss):
        console.print(table)
    told_figures = figures(found, steps=given.steps)
    checked = {name_of(one.every): {"distance": one.distance, "messages": one.messages} for one in real}
    load = [round(before, 2), round(os.getloadavg()[0], 2)]
    told_figures |= {"loss": given.loss, "steps": given.steps, "real": checked}
    print(json.dumps(told_figures | {"wall_s": round(time.monotonic() - began, 1), "load": load}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
