"""The cost of events, trace, metrics, heartbeats and stamps in steps without changes: a step with over one without.

One job of two peers runs the same model (about a million weights, no policy) in three ways, which alternate step by
step. *full* is a user's run: every batch stamped and its stamp checked, every step on the tape, in ``trace.jsonl`` and
``metrics.jsonl``, the deadlines of waits adapted to the steps. *bare* is the same compiled step over the same kind of
attachment, fed by the same loader (order, rows gathered ahead in its thread, tensors), without all of these. *unfed* is
bare on one constant batch: bare over unfed is the cost of a loader.

In some jobs the processor computes the steps; in others a device does, and the processor only waits for its end
(emulated by a sleep and a small batch).

A step's time is from the drawing of its batch to its end, and is divided by the other step of its round; their order is
random in each round. Two equal steps of a process differ by a percent, depending on their memory addresses: so several
jobs are run, and the mean of their medians counts. Work outside the training thread (lines written and sent,
heartbeats, servers; the agent's share for one peer) is measured during consecutive full steps, as processor time per
second. It is added in full, as if no processor were idle.

With ``--watched`` further jobs are run with all observers: ``kungfu-run --tensorboard``, ``--metrics-port`` with a
scrape each second, and ``--page`` with a browser that receives every update. The cost of these processes is a part of
``watched_overhead`` and ``watched_device_overhead``, which are otherwise computed like those without ``watched_``.

Prints a table, and as its last line a JSON object: ``overhead`` is ``step_overhead``, full over bare minus 1, plus
``beside``, for a processor's step, and ``device_overhead`` for a device's; ``uncertainty`` is the standard error of
``step_overhead`` over the jobs; ``loader`` is bare over unfed minus 1.

Run: ``python -m benchmarks.runtime_overhead [--jobs 8] [--rounds 200] [--samples 576] [--device-ms 18]
[--watched]``
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import re
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import psutil

from benchmarks.elasticity.work import device
from benchmarks.policy_overhead import FEATURES, beside, build, marked, measured_by_peers
from benchmarks.watched_job import WATCHED, Watching

LABELS, TURNS = 10, 14
SMALL = 8  # samples of an emulated device's step
# Rounds that do not count: TensorFlow assumes that each op is expensive, and runs it in another thread, until its
# ninetieth run or so. And the number of consecutive full steps.
WARM_UP, ALONE = 120, 500
DEADLINE_S = 900.0
# The prefixes of the names of native threads that are not TensorFlow's.
BESIDE = ("kungfu", "grpc", "event_engine", "lifeguard", "resolver")
# The modules of an agent's processes other than peers.
_ASIDE = re.compile(r"kungfu\.cli\.(page|export)\.")


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the command line; ``--peer`` is for the benchmark's own peers."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=8, help="of each sort of step (8)")
    parser.add_argument("--rounds", type=int, default=200, help="steps of each kind in a job (200)")
    parser.add_argument("--samples", type=int, default=576, help="of a step on each peer (576, about 20 ms)")
    parser.add_argument("--device-ms", type=float, default=18.0, help="emulated device time of a step (18)")
    parser.add_argument("--watched", action="store_true", help="jobs with page, metrics, TensorBoard too")
    parser.add_argument("--peer", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(words)


# ---- a peer ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Unstamped:
    """A replacement for stamps of batches: stores none, and gives every step the same stamp."""

    nothing: Any

    def put(self, tensors: Sequence[Any], stamp: Any) -> None:
        """Does nothing: no stamp is stored."""

    def of(self, tensors: Sequence[Any]) -> Any:
        """The stamp of every batch."""
        return self.nothing


def stripped(first: Any, model: Any, optimizer: Any, *, name: str, batches: Callable[[Any], Iterator[Any]]) -> Any:
    """Traces the step of another run in the same job, without stamps and records; returns it with its batches."""
    from kungfu.training.graph.step_record import StepRecord
    from kungfu.training.loop.step_calls import StepCalls
    from kungfu.training.loop.training import Training

    untimed: Any = SimpleNamespace(stepped=lambda **_: None, entered=lambda: None)
    run: Any = Training(StepCalls(replace(beside(first, [], name=name)._run, timer=untimed)))
    run._calls.step_log.log = lambda report: []
    run._calls.stamps = Unstamped(run._calls.stamps.of([]))
    step, own = marked(run, model, optimizer), batches(run)
    with mock.patch.object(StepRecord, "write"):
        step(*next(own))
    return step, own


def seconds_of(step: Callable[..., object], batches: Iterator[Any], *, device_s: float) -> float:
    """The seconds of the next step, including its batch."""
    started = time.perf_counter()
    batch = next(batches)
    if device_s:
        device(device_s)
    step(*batch)
    return time.perf_counter() - started


def of_this_peer() -> float:
    """The processor seconds of this process so far, without the program's and TensorFlow's threads."""
    python = {one.native_id: one.name for one in threading.enumerate()}
    training = {number for number, name in python.items() if name in ("MainThread", "kungfu-loader")}
    took = 0.0
    for task in Path("/proc/self/task").iterdir():
        number = int(task.name)
        if number not in training and (number in python or (task / "comm").read_text().startswith(BESIDE)):
            took += processor_s(task)
    return took


def processor_s(task: Path) -> float:
    """The processor seconds of a thread, read from its folder in /proc."""
    return int((task / "schedstat").read_text().split()[0]) / 1e9


def of_the_agent() -> float:
    """The processor seconds of the agent and its child processes so far, without peers."""
    agent = psutil.Process(os.getppid())
    aside = [one.pid for one in agent.children(recursive=True) if any(_ASIDE.match(word) for word in one.cmdline())]
    tasks = (task for pid in (agent.pid, *aside) for task in Path(f"/proc/{pid}/task").iterdir())
    return sum(processor_s(task) for task in tasks)


def share_beside(step: Callable[[], object], *, peers: int) -> float:
    """The fraction of a processor used outside of training, during consecutive full steps."""

    def beside() -> float:
        return of_this_peer() + of_the_agent() / peers

    before, started = beside(), time.perf_counter()
    for _ in range(ALONE):
        step()
    return (beside() - before) / (time.perf_counter() - started)


def kinds(
    training: Any, model: Any, optimizer: Any, *, samples: int
) -> dict[str, tuple[Callable[..., object], Iterator[Any]]]:
    """The compared steps by name, each with its batches."""
    import numpy as np
    import tensorflow as tf

    rng, batch_size = np.random.default_rng(0), 2 * samples
    data = (
        rng.normal(size=(TURNS * batch_size, FEATURES)).astype(np.float32),
        rng.integers(0, LABELS, TURNS * batch_size),
    )

    def loaded(run: Any) -> Iterator[Any]:
        batches: Iterator[Any] = run.batches(data, batch_size=batch_size, epochs=10**6, seed=0)
        return batches

    def kept(run: Any) -> Iterator[Any]:
        return itertools.repeat(tuple(tf.convert_to_tensor(array[:samples]) for array in data))

    batches, full = loaded(training), marked(training, model, optimizer)
    full(*next(batches))
    bare = stripped(training, model, optimizer, name="bare", batches=loaded)
    return {
        "full": (full, batches),
        "bare": bare,
        "unfed": stripped(training, model, optimizer, name="unfed", batches=kept),
    }


def measure(given: argparse.Namespace) -> None:
    """Runs one peer; rank 0 records its measurements."""
    import kungfu as kf

    model, optimizer = build()
    training = kf.attach(model, optimizer)
    compared = kinds(training, model, optimizer, samples=given.samples)
    steps = {name: partial(seconds_of, *of, device_s=given.device_ms / 1e3) for name, of in compared.items()}
    order = random.Random(0)  # equal on both peers
    seconds: dict[str, list[float]] = {name: [] for name in compared}
    for number in range(WARM_UP + given.rounds):
        for name in order.sample(sorted(compared), len(compared)):
            took = steps[name]()
            if number >= WARM_UP:
                seconds[name].append(took)
    beside = share_beside(steps["full"], peers=training.size)
    if training.rank == 0:
        given.peer.write_text(json.dumps({"seconds": seconds, "beside": beside}))
    training.finish()


# ---- the launcher ----------------------------------------------------------------------------------------------------


def main() -> None:
    """Starts the jobs, and prints the measurements."""
    given = arguments()
    if given.peer is not None:
        measure(given)
        return
    before = os.getloadavg()[0]
    steps = {"": (given.samples, 0.0), "device_": (SMALL, given.device_ms)}
    figures: dict[str, Any] = {}
    for watched in ("", "watched_")[: 1 + given.watched]:
        for prefix, (samples, device_ms) in steps.items():
            how = f"a device's, emulated by a sleep of {device_ms:g} ms" if device_ms else "the processor's"
            seen = ", with page, metrics and TensorBoard" if watched else ""
            print(f"steps are {how}; {given.jobs} jobs of 2 peers{seen}, {given.rounds} rounds of a step of each kind")
            options = {"rounds": given.rounds, "samples": samples, "device-ms": device_ms}
            jobs = [of_a_job(options, is_watched=bool(watched)) for _ in range(given.jobs)]
            figures |= {f"{watched}{prefix}{name}": round(value, 5) for name, value in summary(jobs).items()}
    load = [round(one, 2) for one in (before, os.getloadavg()[0])]
    print(json.dumps(figures | {"load": load}))


def of_a_job(options: dict[str, Any], *, is_watched: bool) -> dict[str, float]:
    """Runs a job, and returns its figures; for a watched job, including its observers' cost."""
    measured_in = partial(measured_by_peers, "benchmarks.runtime_overhead", options, deadline_s=DEADLINE_S)
    if not is_watched:
        measured = measured_in()
        return told(measured["seconds"], measured["beside"])
    seen: list[Watching] = []

    def watching(console: Path) -> Watching:
        seen.append(Watching(console))
        return seen[-1]

    with tempfile.TemporaryDirectory() as board:
        measured = measured_in(options=(*WATCHED, "--tensorboard", board), watching=watching)
    looked = {"scrapes": seen[0].scrapes, "updates": seen[0].updates}
    if not all(looked.values()):
        raise SystemExit(f"a job that was to be watched was not: {looked}")
    return told(measured["seconds"], measured["beside"]) | looked


def told(seconds: dict[str, list[float]], beside: float) -> dict[str, float]:
    """Prints a line of the table, and returns the figures of a job."""
    median_ms = {kind: 1e3 * statistics.median(one) for kind, one in seconds.items()}
    step, loader = over(seconds["full"], seconds["bare"]), over(seconds["bare"], seconds["unfed"])
    for kind in ("unfed", "bare", "full"):
        print(f"  {kind} {median_ms[kind]:6.2f} ms", end="")
    print(f" | loader {100 * loader:+5.2f} %, step {100 * step:+5.2f} %, beside {100 * beside:+5.2f} %", flush=True)
    return {"step_overhead": step, "beside": beside, "loader": loader, "step_ms": median_ms["bare"]}


def over(one: Sequence[float], other: Sequence[float]) -> float:
    """The median over rounds of ``one / other - 1``."""
    return statistics.median(mine / yours - 1 for mine, yours in zip(one, other, strict=True))


def summary(jobs: Sequence[dict[str, float]]) -> dict[str, float]:
    """The means of the figures over jobs."""
    means = {name: statistics.fmean(job[name] for job in jobs) for name in jobs[0]}
    within = statistics.stdev(job["step_overhead"] for job in jobs) / len(jobs) ** 0.5 if len(jobs) > 1 else 0.0
    overhead = means["step_overhead"] + means["beside"]
    print(f"overhead {100 * overhead:+.2f} % (+- {100 * within:.2f} %): step and beside", flush=True)
    return {"overhead": overhead, "uncertainty": within, **means}


if __name__ == "__main__":
    main()
