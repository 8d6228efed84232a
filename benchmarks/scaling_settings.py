"""Checks that a scaling policy settles at the right size, on a modelled cluster with noise and a slow joiner.

``python -m benchmarks.scaling_settings [--quick] [--jobs N]`` prints a table and, as its last line, a JSON object. In
it, ``within_bounds`` is true for each bound that holds; the exit code is 1 if one does not. The job starts with 2 peers
of at most 12, its throughput is linear in their number, and one of the joiners, peer 2 to 7, runs at 0.5 or 0.75 of
full speed; another policy replaces stragglers. The job should reach 12 peers and stay at that size.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table

import kungfu as kf
from kungfu import policies
from kungfu.testing import ClusterModel, PeerSpeeds, Rescaling, SlowPeer, Start, run_on_model

LIMIT, START, STEPS, SETTLED_AFTER = 12, 2, 2000, 600
JITTERS, UNITS, SEEDS = (0.0, 0.05, 0.2), (1, 2), (0, 1, 2)
MOST_LATE_CHANGES, MOST_FALSE_REPLACEMENTS = 2, 5  # bounds per run, and for all runs together
LINEAR = {1: 100.0, LIMIT: 100.0 * LIMIT}


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
    sizes = [START, *(one.size for one in run.changes)]
    late = [
        change for change, before in zip(run.changes, sizes, strict=False)
        if change.size != before and change.step > SETTLED_AFTER
    ]  # fmt: skip
    # A peer that leaves at a barrier with joiners is replaced by a joiner.
    replaced = [peer for change in run.changes if change.joined for peer in change.left]
    false = [peer for peer in replaced if peer != setting.slow_peer]
    return Result(setting, run.size, len(late), len(replaced), len(false), time.process_time() - began)


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


def main(words: Sequence[str] | None = None) -> int:
    """Runs all settings, and prints a table and a JSON object as the last line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few of the settings, in some seconds")
    parser.add_argument("--jobs", "--processes", type=int, default=2, help="processes that run settings at once (2)")
    parser.add_argument("--each", action="store_true", help="one more JSON object for each run, before the table")
    arguments = parser.parse_args(words)
    began, wanted = time.monotonic(), settings(quick=arguments.quick)
    with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
        results = list(track(pool.imap(made, wanted, chunksize=4), description="settings", total=len(wanted)))
    if arguments.each:
        for one in results:
            print(json.dumps(asdict(one)))
    Console().print(table_of(results))
    per_step = sum(one.seconds for one in results) / len(results) / STEPS
    times = {"wall_s": time.monotonic() - began, "ms_per_step": 1000 * per_step}
    names = [one.name for one in the_policies(wanted[0])]
    figures = summarised(results)
    bounds = within_bounds(figures)
    print(json.dumps({"policies": names, **figures, "within_bounds": bounds, **times}))
    return 0 if all(bounds.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
