"""The savings by replacing stragglers while a job grows: figures 9 and 10 of Or et al., 2020.

A job grows to 8 peers, by one peer every 5 s, and every fourth peer is slow: its steps take 4, 2 or 1.33 times as long
as the others', and all peers wait for it. The job's samples take 100 s of device time without stragglers. The runs with
the policy `replace_stragglers` are real jobs under kungfu-run on 6 hosts with room for 2 peers each, all of them
loopback addresses of this machine: peers, training graph, messages and decisions are real. The device time of a step is
a sleep: 0.15 s by a stated curve, which is linear in the number of peers. The job keeps eight spares that have loaded
TensorFlow, since all peers start on the few cores of one machine, and the work begins when they have loaded.

The table also has the times on a modelled cluster, with joiners that take as long as the real ones did: on a machine
that is busy, or has few cores, the starts of processes dominate.

The runs without the policy, the run without stragglers, and the 100 s are computed from the same curve, with a peer
that joins exactly every 5 s. A short real job of 8 peers, slowed by each factor in turn, shows the error of that.

Prints a table with the paper's figures next to ours, draws ``runs/benchmarks/stragglers.png``, and prints a JSON object
as its last line: for each factor, as in ``reduction_4x``, the share of the time that the policy saves, and
``within_no_stragglers``, the relative excess of the policy's slowest run over a run without stragglers.

Run: ``python -m benchmarks.stragglers [--seconds 100] [--quick]``
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.emulation.curves import Curve
from benchmarks.emulation.jobs import RealRun, Slow, Task, Work, run_job
from kungfu.policy_definition.policy_path import load_policy
from kungfu.testing import ClusterModel, HostSlots, PeerSpeeds, Rescaling, SlowPeer, Start, run_on_model

PICTURE = Path("runs/benchmarks/stragglers.png")
FACTORS = {"4x": 4.0, "2x": 2.0, "1_33x": 4 / 3}
PAPER = {"4x": 0.514, "2x": 0.341, "1_33x": 0.199}
PAPER_WITHIN = 0.125
PEERS, SLOW_EVERY, JOIN_EVERY_S, HOSTS = 8, 4, 5.0, (2,) * 6
LOCAL_BATCH, STEP_S = 15, 0.15
EVERY = 2  # steps between two decisions
SPARES = "8:loaded"
PHASE = 25  # steps of each factor in the short real job


def curve() -> Curve:
    """The stated curve: samples per second, in real time."""
    return Curve("stated: linear", {size: size * LOCAL_BATCH / STEP_S for size in range(1, 2 * PEERS)})


def slowed(seconds: float, factor: float) -> float:
    """The factor by which a step is slower at a given time of a job that keeps its stragglers."""
    # Peers are numbered from 0: the first slow peer joins when the size reaches SLOW_EVERY.
    return factor if size_at(seconds) >= SLOW_EVERY else 1.0


def size_at(seconds: float) -> int:
    """The size, at a given time, of a job that a peer joins exactly every 5 s."""
    return min(PEERS, 1 + int(seconds // JOIN_EVERY_S))


def samples_in(seconds: float, *, factor: float = 1.0) -> float:
    """The samples processed by a given time in a job that keeps its stragglers."""
    moments = [*(JOIN_EVERY_S * n for n in range(PEERS)), seconds]
    table = curve().throughput
    return sum(
        (min(end, seconds) - begin) * table[size_at(begin)] / slowed(begin, factor)
        for begin, end in itertools.pairwise(moments)
        if begin < seconds
    )


def seconds_for(samples: float, *, factor: float = 1.0) -> float:
    """The seconds for given samples in a job that keeps its stragglers, the twin of the run with the policy."""
    grown = JOIN_EVERY_S * (PEERS - 1)
    before = samples_in(grown, factor=factor)
    if samples >= before:
        return grown + (samples - before) * factor / curve().throughput[PEERS]
    low, high = 0.0, grown
    while high - low > 1e-9:  # samples_in is increasing
        middle = (low + high) / 2
        low, high = (middle, high) if samples_in(middle, factor=factor) < samples else (low, middle)
    return high


def task(factor: float, *, samples: int, spares: str = SPARES) -> Task:
    """The job of a run with the policy."""
    told = f"seconds={JOIN_EVERY_S}, max_peers={PEERS}, every={EVERY}"
    policy = f"benchmarks.emulation.policies:grown_without_stragglers({told})"
    work = Work(curve(), samples, LOCAL_BATCH, "local_batch_size")
    return Task(work, 1, PEERS, policy=policy, slow=Slow(SLOW_EVERY, (factor,)), hosts=HOSTS, spares=spares)


def on_model(factor: float, *, samples: int, joining_s: float) -> float:
    """The seconds of the same job on a modelled cluster, with joiners that take ``joining_s``."""
    slow = [SlowPeer(1 / factor, peer=peer) for peer in range(SLOW_EVERY - 1, 4 * PEERS, SLOW_EVERY)]
    model = ClusterModel(
        dict(curve().throughput),
        steps=1_000_000,
        start=Start(size=1, max_size=PEERS, global_batch_size=LOCAL_BATCH, job_samples=samples),
        rescaling=Rescaling(joining_s=joining_s),
        speeds=PeerSpeeds(jitter=0.02, seed=1, slow=slow),
        hosts=HostSlots(HOSTS, joining_speed=0.9),
    )
    return run_on_model(load_policy(task(factor, samples=samples).policy), model).seconds


def twin_errors() -> dict[str, float]:
    """The relative excess of real step times over computed ones, by factor; "none" is without stragglers."""
    # The first phase is the warm-up: 8 new processes trace and load on a few cores.
    factors = {"warm-up": 1.0, "none": 1.0, **FACTORS}
    samples = len(factors) * PHASE * LOCAL_BATCH * PEERS
    slow = Slow(SLOW_EVERY, tuple(factors.values()), PHASE)
    run = run_job(Task(Work(curve(), samples, LOCAL_BATCH, "local_batch_size"), PEERS, PEERS, slow=slow))
    errors = {}
    for place, (name, factor) in list(enumerate(factors.items()))[1:]:
        # The first steps of a phase are omitted: some devices may be a step ahead.
        ends = run.ends[place * PHASE + 4 : (place + 1) * PHASE - 1]
        errors[name] = round((ends[-1] - ends[0]) / (len(ends) - 1) / (STEP_S * factor) - 1, 4)
    return errors


def figures(runs: Mapping[str, RealRun], *, samples: float) -> dict[str, float]:
    """The figures for the JSON object."""
    alone_s = seconds_for(samples)
    made = {
        f"reduction_{name}": round(1 - run.seconds / seconds_for(samples, factor=FACTORS[name]), 4)
        for name, run in runs.items()
    }
    return made | {"within_no_stragglers": round(max(run.seconds for run in runs.values()) / alone_s - 1, 4)}


def lives_of_slow_peers(run: RealRun) -> list[tuple[int, float, float]]:
    """The slow peers of the job: the id, and the seconds of training at which each joined and left."""
    origin = next(one["time"] for one in run.events if one["event"] == "view")
    lives: dict[int, tuple[float, float]] = {}
    for event in run.events:
        if event["event"] == "view":
            for peer in event["peers"]:
                lives[peer] = (lives.get(peer, (event["time"] - origin, 0.0))[0], float("inf"))
            for peer in set(lives) - set(event["peers"]):
                lives[peer] = (lives[peer][0], min(lives[peer][1], event["time"] - origin))
    return [
        (peer, begin, min(end, run.seconds)) for peer, (begin, end) in sorted(lives.items())
        if peer % SLOW_EVERY == SLOW_EVERY - 1
    ]  # fmt: skip


def table(runs: Mapping[str, RealRun], *, samples: float) -> Table:
    """A table with a row for each factor."""
    alone_s = seconds_for(samples)
    title = f"8 peers, every fourth one slow, one joins every {JOIN_EVERY_S:g} s; without stragglers {alone_s:.0f} s"
    made = Table(title=title, box=SIMPLE_HEAD)
    headings = ("slowed", "they stay", "replaced (real)", "on a model", "saved", "paper", "over none", "paper")
    for heading in (*headings, "they were there for", "joiners took"):
        made.add_column(heading, justify="right", no_wrap=True)
    for name, run in runs.items():
        stays_s = seconds_for(samples, factor=FACTORS[name])
        saved = (f"{1 - run.seconds / stays_s:.1%}", f"{PAPER[name]:.1%}")
        over = (f"{run.seconds / alone_s - 1:+.1%}", f"to {PAPER_WITHIN:+.1%}")
        lives = ", ".join(f"{end - begin:.0f} s" for _, begin, end in lives_of_slow_peers(run))
        took_s = 0.0 if math.isnan(run.joining_s) else run.joining_s
        model_s = on_model(FACTORS[name], samples=round(samples), joining_s=took_s)
        times = (f"{one:.1f} s" for one in (stays_s, run.seconds, model_s))
        made.add_row(f"{FACTORS[name]:.3g} times", *times, *saved, *over, lives, f"{run.joining_s:.1f} s")
    return made


def drawn(runs: Mapping[str, RealRun], *, samples: float) -> Figure:
    """Draws figures 9 and 10: throughput over time with the stragglers' spans, and the completion times."""
    figure = Figure(figsize=(11, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.5, 1.0))
    for color, (name, run) in zip(("#b3261e", "#d9730d", "#1f6fb4"), runs.items(), strict=False):
        ends = [0.0, *run.ends]
        speeds = [
            size * LOCAL_BATCH / (end - begin) for size, begin, end in zip(run.sizes, ends, run.ends, strict=False)
        ]
        left.plot(run.ends, speeds, color=color, linewidth=0.8, label=f"{FACTORS[name]:.3g} times")
    for _, begin, end in lives_of_slow_peers(next(iter(runs.values()))):
        left.axvspan(begin, end, color="#b3261e", alpha=0.12)
    left.set(xlabel="seconds", ylabel="samples / s", ylim=(0, 1.3 * curve().throughput[PEERS]))
    left.set_title("real jobs; shaded: a straggler of the first is there")
    left.legend(fontsize=8)
    places, width = range(len(runs)), 0.27
    bars = (
        ("stragglers stay (computed)", [seconds_for(samples, factor=FACTORS[name]) for name in runs], "#8a8f98"),
        ("replaced (real job)", [run.seconds for run in runs.values()], "#1f6fb4"),
        ("no stragglers (computed)", [seconds_for(samples)] * len(runs), "#2b8a3e"),
    )
    for shift, (label, heights, color) in zip((-width, 0.0, width), bars, strict=True):
        right.bar([place + shift for place in places], heights, width, label=label, color=color)
    right.set(ylabel="seconds until complete", xlabel="slowed", xticks=list(places))
    right.set_xticklabels([f"{FACTORS[name]:.3g} times" for name in runs])
    right.legend(fontsize=8)
    return figure


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=100.0, help="device time without stragglers (100)")
    parser.add_argument("--quick", action="store_true", help="one factor, no short job, no spares")
    given = parser.parse_args(words)
    if not 1 <= given.seconds <= 3600:
        parser.error(f"--seconds {given.seconds:g}: takes 1 to 3600 seconds")
    return given


def main(words: Sequence[str] | None = None) -> int:
    """Runs all jobs, prints the table and draws the figures."""
    given = arguments(words)
    console, before, begun = Console(width=140), os.getloadavg()[0], time.monotonic()
    console.print(f"Real jobs; the {STEP_S:g} s that a device takes for a step (curve {curve().name}) are a sleep.")
    samples = round(samples_in(given.seconds))
    errors = {} if given.quick else twin_errors()
    for name, error in errors.items():
        console.print(f"a real step of 8 peers, slowed {name}: {error:+.1%} of the curve's", highlight=False)
    runs = {}
    for name, factor in list(FACTORS.items())[: 1 if given.quick else None]:
        console.print(f"stragglers slowed {factor:.3g} times", highlight=False)
        runs[name] = run_job(task(factor, samples=samples, spares="0" if given.quick else SPARES))
    console.print(table(runs, samples=samples))
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    drawn(runs, samples=samples).savefig(PICTURE)
    console.print(f"picture  {PICTURE}")
    load = [round(before, 2), round(os.getloadavg()[0], 2)]
    others = {"twin_errors": errors, "wall_s": round(time.monotonic() - begun, 1), "load": load}
    print(json.dumps(figures(runs, samples=samples) | others))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
