"""The time of a job under `utility`, by a peer's price and the job's worth: figure 8 of Or et al., 2020.

The curve is stated: Amdahl's law with a serial share of 0.1 up to 8 peers. A minute of the paper takes a second here,
so a price per hour becomes one per minute. A job begins with 4 peers and would take 60 s with 8. Its worth decreases
linearly, or ends at a deadline of 80 s; it is high or low, and a peer costs from $0.01 to $10 per hour.

Every case runs on a modelled cluster. The four corners (each worth, low, at the lowest and at the highest price) also
run as real jobs under kungfu-run: peers, training graph, messages and decisions are real, and the device time of a step
is a sleep by the same curve. The model's joiners take as long as the joiners of the real jobs did.

Prints tables with the paper's figures next to ours, draws ``runs/benchmarks/utility.png``, and prints a JSON object as
its last line: for each worth the ratio of a job's times at the highest and the lowest price (``linear_low_ratio``,
``step_low_ratio``, ...), and the differences of the real corners from the model.

Run: ``python -m benchmarks.utility [--quick]``
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.emulation.curves import Curve, amdahl
from benchmarks.emulation.jobs import RealRun, Task, Work, checked, run_job
from kungfu.policy_definition.policy_path import load_policy
from kungfu.testing import ClusterModel, PeerSpeeds, Rescaling, Start, run_on_model
from kungfu.testing.simulated_run import SimulatedRun

PICTURE = Path("runs/benchmarks/utility.png")
START, MOST, SERIAL, BATCH = 4, 8, 0.1, 64
FASTEST_S, TARGET_S, ZERO_AT_S = 60.0, 80.0, 300.0
STEP_S = 0.15  # device time of a step at the initial size
FASTER = 60.0  # a minute of the paper in a second
PRICES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
VALUES = {("linear", "low"): 20.0, ("linear", "high"): 10_000.0, ("step", "low"): 1.0, ("step", "high"): 10_000.0}
JOINING_S = 6.0  # of the model's joiners, if no real joiner was measured
PAPER = {
    "linear_low": "2.5 times",
    "step_low": "2 times",
    "linear_high": "all within 50 min, the fastest",
    "step_high": "all at the target of 60 min",
}


@dataclass(frozen=True)
class Case:
    """A case of the figure: a worth, and a price.

    Args:
        worth: "linear" or "step".
        level: "low" or "high".
        price: The price of a peer for an hour of the paper, dollars.
    """

    worth: str
    level: str
    price: float

    @property
    def name(self) -> str:
        """The name of the case's line in the figure."""
        return f"{self.worth}_{self.level}"

    @property
    def policy(self) -> str:
        """The argument of ``kungfu-run --policy``."""
        value, price = VALUES[self.worth, self.level], self.price * FASTER
        falls = f"zero_at_s={ZERO_AT_S}" if self.worth == "linear" else f"target_s={TARGET_S}"
        told = f"value={value}, {falls}, price_per_hour={price:g}, max_peers={MOST}"
        return f"benchmarks.emulation.policies:{self.worth}_utility({told})"


def curve() -> Curve:
    """The stated curve: samples per second, in real time."""
    first = BATCH / STEP_S / amdahl(1.0, serial=SERIAL, most=MOST).throughput[START]
    return amdahl(first, serial=SERIAL, most=MOST)


def samples() -> int:
    """The samples of the whole job."""
    return round(FASTEST_S * curve().throughput[MOST])


def cases(prices: Sequence[float] = PRICES) -> list[Case]:
    """The cases of the figure at the given prices, by default all."""
    return [Case(worth, level, price) for worth, level in VALUES for price in prices]


def corners() -> list[Case]:
    """The cases that also run as real jobs."""
    return [one for one in cases() if one.level == "low" and one.price in (PRICES[0], PRICES[-1])]


def on_model(case: Case, *, joining_s: float = JOINING_S) -> SimulatedRun:
    """Runs a case on the modelled cluster."""
    model = ClusterModel(
        dict(curve().throughput),
        steps=100_000,
        start=Start(size=START, max_size=MOST, global_batch_size=BATCH, job_samples=samples()),
        rescaling=Rescaling(joining_s=joining_s),
        speeds=PeerSpeeds(jitter=0.02, seed=1),
    )
    return run_on_model(load_policy(case.policy), model)


def as_job(case: Case) -> RealRun:
    """Runs a case as a real job."""
    return run_job(_task(case.policy))


def _task(policy: str = "", *, start: int = START) -> Task:
    return Task(Work(curve(), samples(), BATCH), start, MOST, policy=policy)


def joining_s(runs: Sequence[RealRun]) -> float:
    """The median seconds from start to readiness of the joiners in several jobs."""
    seconds = [one.joining_s for one in runs if not math.isnan(one.joining_s)]
    return statistics.median(seconds) if seconds else JOINING_S


def ratios(modelled: Mapping[Case, SimulatedRun]) -> dict[str, float]:
    """The ratio of a job's times at the highest and at the lowest price, for each worth."""
    names = dict.fromkeys(one.name for one in modelled)
    seconds = {(one.name, one.price): run.seconds for one, run in modelled.items()}
    return {f"{name}_ratio": round(seconds[name, PRICES[-1]] / seconds[name, PRICES[0]], 3) for name in names}


def figures(modelled: Mapping[Case, SimulatedRun], real: Mapping[Case, RealRun]) -> dict[str, object]:
    """The figures for the JSON object."""
    made: dict[str, object] = {**ratios(modelled)}
    if real:
        off = {one: abs(run.seconds / modelled[one].seconds - 1) for one, run in real.items()}
        seconds = {(one.worth, one.price): run.seconds for one, run in real.items()}
        made |= {
            "worst_corner_size_difference": max(abs(run.size - modelled[one].size) for one, run in real.items()),
            "worst_corner_time_difference": round(max(off.values()), 3),
            "real_linear_low_ratio": round(seconds["linear", PRICES[-1]] / seconds["linear", PRICES[0]], 3),
            "real_step_low_ratio": round(seconds["step", PRICES[-1]] / seconds["step", PRICES[0]], 3),
        }
    return made


def model_table(modelled: Mapping[Case, SimulatedRun]) -> Table:
    """A table with a row for each line of the figure."""
    title = (
        "seconds until complete (peers at the end), on the model, by $ per peer and hour; 1 s is a minute of the paper"
    )
    table = Table(title=title, box=SIMPLE_HEAD)
    table.add_column("worth")
    for price in dict.fromkeys(one.price for one in modelled):
        table.add_column(f"${price:g}", justify="right", no_wrap=True)
    table.add_column("highest / lowest", justify="right")
    table.add_column("paper")
    for name, ratio in ratios(modelled).items():
        line = name.removesuffix("_ratio")
        runs = [run for one, run in modelled.items() if one.name == line]
        worth, level = line.split("_")
        told = f"{worth}, ${VALUES[worth, level]:g}"
        table.add_row(told, *(f"{run.seconds:.0f} ({run.size})" for run in runs), f"{ratio:.2f}", PAPER[line])
    return table


def corner_table(modelled: Mapping[Case, SimulatedRun], real: Mapping[Case, RealRun]) -> Table:
    """A table with a row for each real job."""
    table = Table(title="the corners as real jobs beside the model", box=SIMPLE_HEAD)
    for heading in ("worth", "$ per hour", "peers at the end", "model", "seconds", "model", "sizes", "whole wall time"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one, run in real.items():
        model = modelled[one]
        sizes = " ".join(str(size) for size in _changes(run))
        told = (f"{run.seconds:.1f}", f"{model.seconds:.1f}", sizes, f"{run.wall_s:.0f} s")
        table.add_row(one.worth, f"{one.price:g}", str(run.size), str(model.size), *told)
    return table


def _changes(run: RealRun) -> list[int]:
    return [size for size, before in zip(run.sizes, (0, *run.sizes), strict=False) if size != before]


def drawn(modelled: Mapping[Case, SimulatedRun], real: Mapping[Case, RealRun]) -> Figure:
    """Draws figure 8: completion time over price, with a panel for each worth."""
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    for axes, worth in zip(figure.subplots(1, 2, sharey=True), ("linear", "step"), strict=True):
        for level, color in (("low", "#d9730d"), ("high", "#1f6fb4")):
            line = [
                (one.price, run.seconds) for one, run in modelled.items() if (one.worth, one.level) == (worth, level)
            ]
            axes.plot(*zip(*line, strict=True), "o-", color=color, label=f"${VALUES[worth, level]:g}, model")
        points = [(one.price, run.seconds) for one, run in real.items() if one.worth == worth]
        if points:
            axes.plot(*zip(*points, strict=True), "k*", markersize=11, label=f"${VALUES[worth, 'low']:g}, real job")
        if worth == "step":
            axes.axhline(TARGET_S, color="black", linestyle=":", linewidth=1, label="target")
        axes.axhline(FASTEST_S, color="#8a8f98", linestyle="--", linewidth=1, label=f"{MOST} peers from the start")
        axes.set(xscale="log", xlabel="$ per peer and hour", title=f"{worth} worth", ylim=(0, None))
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.axes[0].set_ylabel("seconds until complete")
    return figure


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--quick", action="store_true", help="the lowest and the highest price on the model, no real job"
    )
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Runs all cases, prints the tables and draws the figure."""
    given = arguments(words)
    console, before, begun = Console(width=140), os.getloadavg()[0], time.monotonic()
    console.print(f"curve: {curve().name}; real jobs emulate the time of a device by a sleep", highlight=False)
    real: dict[Case, RealRun] = {}
    twins: dict[str, float] = {}
    for one in () if given.quick else corners():
        console.print(f"real job: {one.worth} worth, ${one.price:g}", highlight=False)
        real[one] = as_job(one)
    for size in () if given.quick else (START, MOST):
        twins[str(size)] = round(checked(_task(start=size)), 3)
        console.print(
            f"real steps with {size} peers that stay take {twins[str(size)]:+.1%} of the curve's", highlight=False
        )
    took_s = joining_s(list(real.values()))
    prices = PRICES[:: len(PRICES) - 1] if given.quick else PRICES
    modelled = {one: on_model(one, joining_s=took_s) for one in cases(prices)}
    console.print(model_table(modelled))
    if real:
        console.print(corner_table(modelled, real))
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    drawn(modelled, real).savefig(PICTURE)
    console.print(f"picture  {PICTURE}")
    load = [round(before, 2), round(os.getloadavg()[0], 2)]
    others = {"joining_s": round(took_s, 2), "twin_errors": twins, "wall_s": round(time.monotonic() - begun, 1)}
    print(json.dumps({**figures(modelled, real), **others, "load": load}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
