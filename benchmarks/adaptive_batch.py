"""Checks that a batch which follows the gradient noise scale trains as fast as the best fixed batch: figure 2 of 002.

A small language model of characters trains on Python's own source text until its loss on held-out files is 1.95 nats,
the mean of three judgements 0.25 s apart. Mai et al. (*Adaptive Distributed Training of Deep Learning Models*) compare
an adaptive batch with two fixed ones; here all powers of two from 16 to 1024 are compared, on the same 16 peers.

- Real: the text, the model, its gradients and plain SGD; each peer's own gradient, whose norms the compiled policy
  reads; the policy `gns_batch(grow="batch")` and its decisions, by the code of real barriers.
- Emulated: the peers are modelled in one process, and the time of a step, 10 ms + 0.1 ms for each sample of a peer, is
  added up, not slept. Neither the policy nor a new batch takes device time.

One rule sets the learning rate of all runs: 0.1 at a batch of 32, in proportion to the batch, at most 1. The *two-phase
schedule* is a bound that no policy knows in advance: of all pairs of batches with one change between them, the four
are trained that would be the fastest by the curves of the fixed batches, and the fastest of these four counts.

Prints a table and, as its last line, a JSON object: ``over_best_static``, the device time of the adaptive run over that
of the best fixed batch, and ``faster_than_start_batch``, the fraction of the time saved against a fixed batch of 32,
from which the adaptive run starts. Errors are standard errors over the seeds.

The numbers of the policy were chosen on other seeds than those of the figures.

Run: ``python -m benchmarks.adaptive_batch [--seeds 5] [--loss 1.95] [--jobs 2]``
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import multiprocessing
import os
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import kungfu as kf
from benchmarks.emulation.characters import source_text
from benchmarks.emulation.real_gradients import EmulatedTraining, LearningCurve, train
from kungfu.control import Rule
from kungfu.policies import gns_batch
from kungfu.signal import TrainingSignals
from kungfu.testing import Start

PEERS, START_BATCH, MOST_BATCH, LOSS = 16, 32, 1024, 1.95
BATCHES = (16, 32, 64, 128, 256, 512, 1024)
RATE_AT_START, MOST_RATE = 0.1, 1.0
EVERY = 10  # steps between two decisions of the adaptive run
TWO_PHASE_RUNS = 4
LONGEST_S = 1000.0  # device seconds after which a run counts as failed
BOUNDS = {"over_best_static": 1.15, "faster_than_start_batch": 0.25}


@dataclass(frozen=True)
class Way:
    """A way to choose the batch: fixed, of two phases, or adaptive.

    Args:
        batch: The batch at the start.
        then: The batch of the second phase, 0 without one.
        after_steps: The steps of the first phase.
        is_adaptive: True if the batch follows the noise scale.
    """

    batch: int
    then: int = 0
    after_steps: int = 0
    is_adaptive: bool = False

    @property
    def name(self) -> str:
        """The name in the table."""
        if self.is_adaptive:
            return f"adaptive, from {self.batch}"
        return f"{self.batch}, {self.then} after {self.after_steps} steps" if self.then else str(self.batch)

    @property
    def policies(self) -> list[kf.Policy]:
        """The policies of the job."""
        if self.is_adaptive:
            return [gns_batch(grow="batch", max_batch=MOST_BATCH, every=EVERY), linear_rate()]
        return [second_phase(self.then, after_steps=self.after_steps), linear_rate()] if self.then else []


@dataclass(frozen=True)
class Run:
    """The run of a way with a seed: its learning curve until the loss, and the device seconds and steps for it."""

    way: Way
    seed: int
    curve: LearningCurve
    seconds: float
    steps: float


def rate_for(batch: float) -> float:
    """The learning rate of a batch, for all runs."""
    return min(RATE_AT_START * batch / START_BATCH, MOST_RATE)


@kf.policy
def linear_rate(training: TrainingSignals) -> Rule:
    """Sets the learning rate that belongs to the present batch, as `rate_for` does."""
    rate = kf.ops.minimum(RATE_AT_START * training.global_batch_size / START_BATCH, MOST_RATE)
    return kf.control.always().set_learning_rate(rate)


@kf.policy
def second_phase(training: TrainingSignals, batch: int, *, after_steps: int) -> Rule:
    """Sets another batch once, after so many steps."""
    return kf.control.always().when(training.step >= after_steps).set_global_batch_size(batch)


def run(task: tuple[Way, int, float]) -> Run:
    """Trains in a way, with a seed, to a loss."""
    way, seed, loss = task
    start = Start(size=PEERS, max_size=PEERS, global_batch_size=way.batch, learning_rate=rate_for(way.batch))
    curve = train(
        EmulatedTraining(start, way.policies),
        seed=seed,
        text=source_text(),
        is_done=lambda curve: math.isfinite(curve.at_loss(loss)[0]) or curve.seconds[-1] > LONGEST_S,
    )
    return Run(way, seed, curve, *curve.at_loss(loss))


def two_phase_ways(runs: Iterable[Run], *, loss: float) -> list[Way]:
    """The schedules of two phases that would be fastest if only the loss at the change mattered to the second phase.

    With the mean seconds ``t(b, x)`` of the runs with the fixed batch b to the loss x, a change from b to c at the loss
    x ends after ``t(b, x) + t(c, loss) - t(c, x)``.
    """
    fixed: dict[int, list[LearningCurve]] = {}
    for one in runs:
        fixed.setdefault(one.way.batch, []).append(one.curve)
    least = max(min(curve.losses[0] for curve in curves) for curves in fixed.values())
    levels = [loss + (least - loss) * 0.7**place for place in range(1, 13)]

    def reached(batch: int, level: float) -> tuple[float, float]:
        each = [curve.at_loss(level) for curve in fixed[batch]]
        return statistics.mean(seconds for seconds, _ in each), statistics.mean(steps for _, steps in each)

    at = {(batch, level): reached(batch, level) for batch in fixed for level in (*levels, loss)}

    found = []
    for first, then in itertools.permutations(fixed, 2):
        ends = {level: at[first, level][0] + at[then, loss][0] - at[then, level][0] for level in levels}
        level = min(ends, key=ends.__getitem__)
        found.append((ends[level], Way(first, then, round(at[first, level][1]))))
    return [way for _, way in sorted(found, key=lambda one: one[0])[:TWO_PHASE_RUNS]]


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and its standard error; NaN with one value, or with one that is NaN."""
    if any(map(math.isnan, values)):
        return math.nan, math.nan
    spread = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return statistics.mean(values), spread


def figures(runs: Sequence[Run]) -> dict[str, object]:
    """The figures for the JSON object, of runs of the same seeds in all ways."""
    by_way = grouped(runs)
    mean = {way: mean_and_error([one.seconds for one in own])[0] for way, own in by_way.items()}
    adaptive = next(way for way in by_way if way.is_adaptive)
    fixed = [way for way in by_way if not way.is_adaptive and not way.then]
    best, start = min(fixed, key=mean.__getitem__), next(way for way in fixed if way.batch == START_BATCH)
    bound = min((way for way in by_way if way.then), key=mean.__getitem__)

    def ratio(other: Way) -> tuple[float, float]:
        pairs = zip(by_way[adaptive], by_way[other], strict=True)
        return mean[adaptive] / mean[other], mean_and_error([one.seconds / another.seconds for one, another in pairs])[
            1
        ]

    over_best, over_best_error = ratio(best)
    over_start, over_start_error = ratio(start)
    over_bound, over_bound_error = ratio(bound)
    steps = min(one.steps for one in by_way[start])
    return {
        "over_best_static": rounded(over_best),
        "over_best_static_error": rounded(over_best_error),
        "faster_than_start_batch": rounded(1 - over_start),
        "faster_than_start_batch_error": rounded(over_start_error),
        "over_two_phase": rounded(over_bound),
        "over_two_phase_error": rounded(over_bound_error),
        "best_static": best.batch,
        "two_phase": [bound.batch, bound.then, bound.after_steps],
        "least_steps_at_start_batch": round(steps),
        "seconds": {way.name: rounded(seconds) for way, seconds in mean.items()},
        "seeds": len(by_way[adaptive]),
        "within_bounds": {
            "over_best_static": over_best <= BOUNDS["over_best_static"],
            "faster_than_start_batch": 1 - over_start >= BOUNDS["faster_than_start_batch"],
        },
    }


def rounded(value: float, *, digits: int = 3) -> float | None:
    """The value to so many digits after the point, for JSON; ``None`` if it is unknown."""
    return round(value, digits) if math.isfinite(value) else None


def grouped(runs: Sequence[Run]) -> Mapping[Way, list[Run]]:
    """The runs of each way, in the order of their seeds."""
    found: dict[Way, list[Run]] = {}
    for one in sorted(runs, key=lambda one: one.seed):
        found.setdefault(one.way, []).append(one)
    return found


def table_of(runs: Sequence[Run]) -> Table:
    """A table with a row for each way."""
    by_way = grouped(runs)
    fixed = [way for way in by_way if not way.is_adaptive and not way.then]
    best = min(statistics.mean(one.seconds for one in by_way[way]) for way in fixed)
    table = Table(
        title=f"to a held-out loss, on {PEERS} emulated peers, {len(by_way[fixed[0]])} seeds", box=SIMPLE_HEAD
    )
    for heading in ("batch", "device seconds", "over the best fixed", "steps", "thousand samples", "last batches"):
        table.add_column(heading, justify="left" if heading == "batch" else "right", no_wrap=True)
    order = sorted(by_way, key=lambda way: (way.is_adaptive, way.then > 0, way.batch))
    for way in order:
        own = by_way[way]
        seconds, error = mean_and_error([one.seconds for one in own])
        steps = statistics.mean(one.steps for one in own)
        samples = statistics.mean(one.curve.samples[-1] for one in own) / 1000
        last = " ".join(str(one.curve.changes[-1][2]) for one in own)
        table.add_row(
            way.name, f"{seconds:.2f} ± {error:.2f}", f"{seconds / best:.3f}", f"{steps:.0f}", f"{samples:.0f}", last
        )
    return table


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=5, help="the runs of each way (5)")
    parser.add_argument("--loss", type=float, default=LOSS, help=f"the held-out loss to be reached, in nats ({LOSS})")
    parser.add_argument("--jobs", type=int, default=2, help="processes that train at once, each with one thread (2)")
    given = parser.parse_args(words)
    for name, least, most in (("seeds", 1, 100), ("loss", 1.8, 3.5), ("jobs", 1, 64)):
        if not least <= getattr(given, name) <= most:
            parser.error(f"--{name} {getattr(given, name):g}: takes {least:g} to {most:g}")
    return given


def main(words: Sequence[str] | None = None) -> int:
    """Trains in all ways, and prints the table and the figures."""
    given = arguments(words)
    console, began, before = Console(width=140), time.monotonic(), os.getloadavg()[0]
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # of the processes that train
    seeds = range(given.seeds)
    ways = [Way(START_BATCH, is_adaptive=True), *(Way(batch) for batch in BATCHES)]
    console.print("Gradients and policies are real; peers are modelled, and their device time is added up, not slept.")
    runs: list[Run] = []
    with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
        for schedules in (False, True):
            if schedules:
                ways = two_phase_ways([one for one in runs if not one.way.is_adaptive], loss=given.loss)
            for one in pool.imap_unordered(run, [(way, seed, given.loss) for seed in seeds for way in ways]):
                if math.isnan(one.seconds):
                    raise SystemExit(
                        f"{one.way.name}, seed {one.seed}: the loss is {one.curve.losses[-1]:.3f} after "
                        f"{one.curve.seconds[-1]:.0f} device seconds, and {given.loss:g} was not reached"
                    )
                batches = " ".join(f"{batch}@{step}" for step, _, batch in one.curve.changes)
                console.print(
                    f"{one.way.name}, seed {one.seed}: {one.seconds:.2f} s, {one.steps:.0f} steps; {batches}",
                    highlight=False,
                )
                runs.append(one)
    console.print(table_of(runs))
    found = figures(runs)
    load = [round(before, 2), round(os.getloadavg()[0], 2)]
    print(json.dumps(found | {"loss": given.loss, "wall_s": round(time.monotonic() - began, 1), "load": load}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
