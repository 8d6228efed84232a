"""Checks that a scaling policy settles at the right size, on a modelled cluster with noise, a slow joiner or a knee.

``python -m benchmarks.scaling_settings [--quick] [--jobs N]`` prints two tables and, as its last line, a JSON object.
In it, ``within_bounds`` is true for each bound that holds; the exit code is 1 if one does not.

- Slow joiners: the job starts with 2 peers of at most 12, its throughput is linear in their number, and one of the
  joiners, peer 2 to 7, runs at 0.5 or 0.75 of full speed; another policy replaces stragglers. The job should reach 12
  peers and stay at that size.
- Knees: the job starts with 2 peers of at most 16. By Amdahl's law with a serial share a, n peers have the throughput
  ``n / (1 + a (n - 1))``, so the efficiency falls below the required one at a knee. The job should settle beside it.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import multiprocessing
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table

import kungfu as kf
from kungfu import policies
from kungfu.testing import ClusterModel, PeerSpeeds, Rescaling, SimulatedRun, SlowPeer, Start, run_on_model

LIMIT, START, STEPS, SETTLED_AFTER = 12, 2, 2000, 600
JITTERS, UNITS, SEEDS = (0.0, 0.05, 0.2), (1, 2), (0, 1, 2)
MOST_LATE_CHANGES, MOST_FALSE_REPLACEMENTS = 2, 5  # bounds per run, and for all runs together
LINEAR = {1: 100.0, LIMIT: 100.0 * LIMIT}

KNEE_LIMIT, KNEE_JITTERS, KNEE_SEEDS = 16, (0.05, 0.1), range(10)
KNEES = ((0.05, 0.5), (0.05, 0.6), (0.05, 0.65), (0.1, 0.37), (0.1, 0.47), (0.1, 0.57))  # serial share, efficiency
TOLERANCE, MOST_OUTSIDE = 0.07, 2  # of the efficiency, and the runs of a jitter that may end outside of it
WALK_STEPS = 40 * KNEE_LIMIT  # the steps after which a walk is over


@dataclass(frozen=True)
class Setting:
    """The setting of one simulated run.

    Args:
        slow_peer: The id of the slow joiner.
        speed: The slow joiner's fraction of full speed.
        efficiency: The scaling efficiency that added peers must exceed.
        joining_steps: The steps between a request and the join.
        jitter: The standard deviation of each peer's step time, as a fraction.
        unit: The number of peers added at once.
        seed: The seed of the jitter.
    """

    slow_peer: int
    speed: float
    efficiency: float
    joining_steps: int
    jitter: float
    unit: int
    seed: int


@dataclass(frozen=True)
class Result:
    """The result of a simulated run.

    Args:
        setting: The setting of the run.
        size: The final number of peers.
        late_changes: The changes of size after the first 600 steps, without replacements.
        replacements: The number of replaced peers.
        false_replacements: The number of replaced peers that were not slow.
        seconds: The processor seconds of the run.
    """

    setting: Setting
    size: int
    late_changes: int
    replacements: int
    false_replacements: int
    seconds: float


def settings(*, quick: bool = False) -> list[Setting]:
    """All settings; if ``quick``, a few that fail most often."""
    slow = itertools.product(range(2, 8), (0.5, 0.75), (0.1, 0.5), (2, 30))
    made = [Setting(*one, *rest) for one in slow for rest in itertools.product(JITTERS, UNITS, SEEDS)]
    return [one for one in made if _is_quick(one)] if quick else made


def _is_quick(one: Setting) -> bool:
    return (one.slow_peer, one.speed, one.unit, one.seed) == (4, 0.5, 1, 0) and one.jitter < 0.1


def the_policies(setting: Setting) -> list[kf.Policy]:
    """The scaling policy with its default numbers, and the policy that replaces stragglers."""
    scaling = policies.autoscale(max_peers=LIMIT, efficiency=setting.efficiency, unit=setting.unit)
    return [scaling, policies.replace_stragglers()]


def made(setting: Setting) -> Result:
    """Simulates one run, and returns its result."""
    began = time.process_time()
    slow = SlowPeer(setting.speed, peer=setting.slow_peer)
    model = ClusterModel(
        LINEAR,
        steps=STEPS,
        start=Start(size=START, max_size=LIMIT),
        rescaling=Rescaling(setting.joining_steps),
        speeds=PeerSpeeds(setting.jitter, setting.seed, (slow,)),
    )
    run = run_on_model(the_policies(setting), model)
    late = [step for step, _ in _resizes(run) if step > SETTLED_AFTER]
    # A peer that leaves at a barrier with joiners is replaced by a joiner.
    replaced = [peer for change in run.changes if change.joined for peer in change.left]
    false = [peer for peer in replaced if peer != setting.slow_peer]
    return Result(setting, run.size, len(late), len(replaced), len(false), time.process_time() - began)


def _resizes(run: SimulatedRun) -> list[tuple[int, int]]:
    """The step and the new size of each change of size."""
    sizes = [START, *(one.size for one in run.changes)]
    return [(one.step, one.size) for one, before in zip(run.changes, sizes, strict=False) if one.size != before]


def summarised(results: Sequence[Result]) -> dict[str, float]:
    """The figures of several runs; ``within_one_unit`` is the share that ends within one unit of the limit."""
    near = [one for one in results if LIMIT - one.size <= one.setting.unit]
    return {
        "runs": len(results),
        "within_one_unit": len(near) / len(results),
        "least_size": min(one.size for one in results),
        "most_late_changes": max(one.late_changes for one in results),
        "runs_over_2_late_changes": sum(one.late_changes > MOST_LATE_CHANGES for one in results),
        "replacements": sum(one.replacements for one in results),
        "false_replacements": sum(one.false_replacements for one in results),
    }


def within_bounds(figures: Mapping[str, float]) -> dict[str, bool]:
    """Checks each bound on the figures of the runs; True if the bound holds.

    All runs end within one unit of the limit, no run changes its size more than twice after the first 600 steps, and
    all runs together replace at most 5 peers that were not slow.
    """
    return {
        "final_size": figures["within_one_unit"] == 1,
        "late_changes": figures["most_late_changes"] <= MOST_LATE_CHANGES,
        "false_replacements": figures["false_replacements"] <= MOST_FALSE_REPLACEMENTS,
    }


def table_of(results: Sequence[Result]) -> Table:
    """A table with a row for each jitter and unit."""
    names = [one.name for one in the_policies(results[0].setting)]
    table = Table(title=f"{' beside '.join(names)}: 2 to 12 peers, {STEPS:,} steps", box=SIMPLE_HEAD)
    headings = (
        "jitter",
        "unit",
        "runs",
        "end within one unit of 12",
        "least size",
        "most changes after 600",
        "runs over 2",
    )
    for heading in (*headings, "replaced", "falsely"):
        table.add_column(heading, justify="right")
    for jitter, unit in itertools.product(JITTERS, UNITS):
        rows = [one for one in results if (one.setting.jitter, one.setting.unit) == (jitter, unit)]
        if rows:
            runs, within, *others = summarised(rows).values()
            table.add_row(f"{jitter:.0%}", str(unit), f"{runs:.0f}", f"{within:.1%}", *(f"{one:.0f}" for one in others))
    return table


# ---- knees -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Knee:
    """The setting of one simulated run with a knee: Amdahl's serial share, the required efficiency, jitter and seed."""

    share: float
    efficiency: float
    jitter: float
    seed: int


@dataclass(frozen=True)
class KneeResult:
    """The result of a simulated run with a knee.

    Args:
        knee: The setting of the run.
        size: The final number of peers.
        least_size: The least number of peers after the first 600 steps.
        late_changes: The changes of size after 40 steps for each size up to the limit.
        seconds: The processor seconds of the run.
    """

    knee: Knee
    size: int
    least_size: int
    late_changes: int
    seconds: float

    @property
    def is_within(self) -> bool:
        """True if the last unit has at least the required efficiency, and the next unit at most, within 0.07."""
        true, asked = true_efficiencies(self.knee.share, self.knee.jitter), self.knee.efficiency
        is_large = self.size == KNEE_LIMIT or true[self.size + 1] <= asked + TOLERANCE
        return is_large and (self.size == 1 or true[self.size] >= asked - TOLERANCE)

    @property
    def falls_below_half(self) -> bool:
        """True if the job had less than half of its best size after the first 600 steps."""
        return 2 * self.least_size < best_size(self.knee)


def knees(*, quick: bool = False) -> list[Knee]:
    """All settings with a knee; if ``quick``, one seed at the larger jitter."""
    jitters, seeds = (KNEE_JITTERS[-1:], KNEE_SEEDS[:1]) if quick else (KNEE_JITTERS, KNEE_SEEDS)
    return [Knee(*one, jitter, seed) for jitter in jitters for one in KNEES for seed in seeds]


def amdahl(share: float, size: int) -> float:
    """The samples per second of this many peers with a serial share, if all steps take equally long."""
    return 100.0 * size / (1 + share * (size - 1))


@functools.cache
def true_efficiencies(share: float, jitter: float) -> Mapping[int, float]:
    """The scaling efficiency of the last peer at each size up to one above the limit, with jitter.

    All peers wait for the slowest, so jitter lowers the mean throughput by the factor ``E[1 / max t]``, where each of
    the n peers takes a time t from a normal distribution around 1 that is truncated at 3 standard deviations.
    """
    edges = np.linspace(-3, 3, 6001)
    normal = np.array([math.erf(one / math.sqrt(2)) for one in edges])
    below = (normal - normal[0]) / (normal[-1] - normal[0])
    rates = 1 / (1 + jitter * (edges[1:] + edges[:-1]) / 2)
    means = [amdahl(share, size) * float(np.diff(below**size) @ rates) for size in range(1, KNEE_LIMIT + 2)]
    return {size + 1: (means[size] / means[size - 1] - 1) * size for size in range(1, KNEE_LIMIT + 1)}


def best_size(knee: Knee) -> int:
    """The last size whose last peer has more than the required efficiency, as have all peers before it."""
    true, sizes = true_efficiencies(knee.share, knee.jitter), range(2, KNEE_LIMIT + 1)
    return next((size - 1 for size in sizes if true[size] <= knee.efficiency), KNEE_LIMIT)


def made_beside_knee(knee: Knee) -> KneeResult:
    """Simulates one run with a knee, and returns its result."""
    began = time.process_time()
    model = ClusterModel(
        functools.partial(amdahl, knee.share),
        steps=STEPS,
        start=Start(size=START, max_size=KNEE_LIMIT),
        speeds=PeerSpeeds(knee.jitter, knee.seed),
    )
    run = run_on_model(policies.autoscale(max_peers=KNEE_LIMIT, efficiency=knee.efficiency), model)
    resizes = [(0, START), *_resizes(run)]
    early = [size for step, size in resizes if step <= SETTLED_AFTER]
    late = [size for step, size in resizes if step > SETTLED_AFTER]
    changes = sum(step > WALK_STEPS for step, _ in resizes)
    return KneeResult(knee, run.size, min([early[-1], *late]), changes, time.process_time() - began)


def summarised_knees(results: Sequence[KneeResult]) -> dict[str, float]:
    """The figures of several runs with a knee; runs outside are those of the jitter with most of these runs."""
    outside = [one.knee.jitter for one in results if not one.is_within]
    return {
        "knee_runs": len(results),
        "knees_outside": max((outside.count(one) for one in outside), default=0),
        "below_half": sum(one.falls_below_half for one in results),
        "most_changes_after_walk": max(one.late_changes for one in results),
    }


def within_knee_bounds(figures: Mapping[str, float]) -> dict[str, bool]:
    """Checks each bound on the figures of the runs with a knee; True if the bound holds.

    Of each jitter at most 2 runs end outside of the tolerance, no run falls below half of its best size after step 600,
    and no run changes its size more than twice after 40 steps for each size.
    """
    return {
        "knees": figures["knees_outside"] <= MOST_OUTSIDE,
        "half_of_best": figures["below_half"] == 0,
        "changes_after_walk": figures["most_changes_after_walk"] <= MOST_LATE_CHANGES,
    }


def table_of_knees(results: Sequence[KneeResult]) -> Table:
    """A table with a row for each jitter and knee."""
    table = Table(title=f"autoscale: 2 to {KNEE_LIMIT} peers by Amdahl's law, {STEPS:,} steps", box=SIMPLE_HEAD)
    headings = ("jitter", "serial share", "efficiency", "best size", "final sizes", "within 0.07", "below half")
    for heading in (*headings, f"most changes after {WALK_STEPS}"):
        table.add_column(heading, justify="right")
    for jitter, (share, efficiency) in itertools.product(KNEE_JITTERS, KNEES):
        key = (share, efficiency, jitter)
        rows = [one for one in results if (one.knee.share, one.knee.efficiency, one.knee.jitter) == key]
        if rows:
            found = [
                best_size(rows[0].knee),
                " ".join(map(str, sorted(one.size for one in rows))),
                f"{sum(one.is_within for one in rows)} of {len(rows)}",
                sum(one.falls_below_half for one in rows),
                max(one.late_changes for one in rows),
            ]
            table.add_row(f"{jitter:.0%}", str(share), str(efficiency), *map(str, found))
    return table


def main(words: Sequence[str] | None = None) -> int:
    """Runs all settings, and prints two tables and a JSON object as the last line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few of the settings, in some seconds")
    parser.add_argument("--jobs", "--processes", type=int, default=2, help="processes that run settings at once (2)")
    parser.add_argument("--each", action="store_true", help="one more JSON object for each run, before the tables")
    arguments = parser.parse_args(words)
    began, wanted, beside = time.monotonic(), settings(quick=arguments.quick), knees(quick=arguments.quick)
    with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
        results = list(track(pool.imap(made, wanted, chunksize=4), description="settings", total=len(wanted)))
        runs = pool.imap(made_beside_knee, beside, chunksize=4)
        ended = list(track(runs, description="knees", total=len(beside)))
    every: list[Result | KneeResult] = [*results, *ended]
    if arguments.each:
        for one in every:
            print(json.dumps(asdict(one)))
    Console().print(table_of(results))
    Console().print(table_of_knees(ended))
    per_step = sum(one.seconds for one in every) / len(every) / STEPS
    times = {"wall_s": time.monotonic() - began, "ms_per_step": 1000 * per_step}
    names = [one.name for one in the_policies(wanted[0])]
    figures, knee_figures = summarised(results), summarised_knees(ended)
    bounds = {**within_bounds(figures), **within_knee_bounds(knee_figures)}
    print(json.dumps({"policies": names, **figures, **knee_figures, "within_bounds": bounds, **times}))
    return 0 if all(bounds.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
