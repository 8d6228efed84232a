"""What events, trace, metrics, heartbeats and stamps cost a run without changes: a step with them over one without.

One job of two peers runs the same model (about a million weights, no policy) in three ways by turns, in blocks of 50
steps. *full* is as a user runs it: every batch stamped and its stamp checked, every step on the tape, in
``trace.jsonl`` and ``metrics.jsonl``, the deadlines of waits following the steps. *bare* is the same compiled step over
the same kind of attachment, fed by the same loader (order, rows gathered ahead in its thread, tensors), with all that
taken out. *unfed* is bare on one batch that stays: what a loader costs at all is bare over unfed.

A block counts by the mean seconds of its steps, from the first batch drawn until all that its steps told is with the
agent, and is divided by its neighbour. The processor's time is that of rank 0. Heartbeats beat in all: what a peer does
while nobody trains is measured apart, as the fraction of a processor that it takes, and added.

Prints a table, and as last line a JSON object: ``overhead`` is full over bare minus 1 plus ``background``; ``spread``
is half the distance between the lower and the upper third of the blocks; ``processor_overhead`` is full over bare in
the processor's time; ``loader`` is bare over unfed minus 1.

Run: ``python -m benchmarks.runtime_overhead [--rounds 60] [--samples 576]``
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from benchmarks.policy_overhead import FEATURES, beside, build, marked, measured_by_peers, ratio

BLOCK, LABELS, TURNS = 50, 10, 14
APART_S, IDLE_S, DEADLINE_S = 0.1, 3.0, 900.0


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; ``--peer`` is how the benchmark starts its own peers."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=60, help=f"blocks of {BLOCK} steps of each kind (60)")
    parser.add_argument("--samples", type=int, default=576, help="of a step on each peer (576, about 20 ms)")
    parser.add_argument("--peer", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(words)


# ---- what a peer does ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Unstamped:
    """Of a run without stamps: none is put, and every step is given the same one, that nothing compares."""

    nothing: Any

    def put(self, tensors: Sequence[Any], stamp: Any) -> None:
        """The loader's."""

    def of(self, tensors: Sequence[Any]) -> Any:
        """The step's."""
        return self.nothing


def stripped(first: Any, model: Any, optimizer: Any, *, name: str, batches: Callable[[Any], Iterator[Any]]) -> Any:
    """The step of another run in the same job, without stamps and records, made and traced here; and its batches."""
    from kungfu.training import loop
    from kungfu.training.graph.step import CompiledStep
    from kungfu.training.graph.tape import Tape

    class Unchecked(CompiledStep):
        def _step(self, stamp: Any, *tensors: Any) -> list[Any]:
            return self._told(self._run(stamp, tensors))

    run = beside(first, [], name=name)
    run._loop._chronicle_step = lambda account: None
    run._loop.barrier.pace = SimpleNamespace(stepped=lambda: None, entered=lambda: None)
    run._loop.stamps = Unstamped(run._loop.stamps.of([]))
    step, own = marked(run, model, optimizer), batches(run)
    with mock.patch.object(loop, "CompiledStep", Unchecked), mock.patch.object(Tape, "write"):
        step(*next(own))
    return step, own


def block(step: Callable[..., object], batches: Iterator[Any], *, flush: Callable[[], None]) -> tuple[float, float]:
    """The mean seconds of a step over a block, and those of the processor."""
    began, started = time.process_time(), time.perf_counter()
    for batch in itertools.islice(batches, BLOCK):
        step(*batch)
    flush()
    return (time.perf_counter() - started) / BLOCK, (time.process_time() - began) / BLOCK


def background() -> float:
    """The fraction of a processor that this peer takes while nobody trains."""
    began, started = time.process_time(), time.perf_counter()
    time.sleep(IDLE_S)
    return (time.process_time() - began) / (time.perf_counter() - started)


def kinds(
    training: Any, model: Any, optimizer: Any, *, samples: int
) -> dict[str, tuple[Callable[..., object], Iterator[Any]]]:
    """The steps that are compared, each with its batches."""
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
    """What one peer does; rank 0 writes down what it measured."""
    import kungfu as kf

    model, optimizer = build()
    training = kf.attach(model, optimizer)
    compared = kinds(training, model, optimizer, samples=given.samples)
    membership: Any = training._loop.barrier.equipment.membership
    flush = membership._agency._flush
    told: dict[str, Any] = {clock: {name: [] for name in compared} for clock in ("seconds", "processor")}
    for number in range(given.rounds + 1):
        for name in sorted(compared, reverse=number % 2 == 1):
            for clock, took in zip(told.values(), block(*compared[name], flush=flush), strict=True):
                clock[name].append(took)
            time.sleep(APART_S)  # until the other peer is done with its block too
    told["background"] = background()
    if training.rank == 0:
        given.peer.write_text(json.dumps(told))
    training.finish()


# ---- what the launcher does ----------------------------------------------------------------------------------------


def main() -> None:
    """Starts the job, and tells what it measured."""
    given = arguments()
    if given.peer is not None:
        measure(given)
        return
    before = os.getloadavg()[0]
    measured = measured_by_peers("benchmarks.runtime_overhead", given, deadline_s=DEADLINE_S)
    tell(measured, load=[round(before, 2), round(os.getloadavg()[0], 2)])


def tell(measured: dict[str, Any], *, load: Sequence[float]) -> None:
    """The table, and the figures as JSON."""
    seconds, processor = (
        {name: blocks[1:] for name, blocks in measured[clock].items()} for clock in ("seconds", "processor")
    )
    print(f"2 peers, {len(seconds['bare'])} blocks of {BLOCK} steps of each kind")
    for name in ("unfed", "bare", "full"):
        wall, busy = (1e3 * statistics.median(clock[name]) for clock in (seconds, processor))
        print(f"{name:>10}: {wall:7.2f} ms a step, {busy:7.2f} ms of processor time on rank 0, batches included")
    ratios = {}
    for name, over, under in (("loader", "bare", "unfed"), ("step", "full", "bare")):
        for clock, blocks in (("seconds", seconds), ("processor", processor)):
            ratios[name, clock] = paired, spread = ratio(blocks[over], blocks[under])
            print(f"{name:>10}: {100 * paired:+.2f} % (+- {100 * spread:.2f} %) of {clock}, {over} over {under}")
    print(f"background: {100 * measured['background']:.3f} % of a processor while nobody trains")
    paired, spread = ratios["step", "seconds"]
    figures = {
        "overhead": paired + measured["background"],
        "step_overhead": paired,
        "spread": spread,
        "background": measured["background"],
        "processor_overhead": ratios["step", "processor"][0],
        "loader": ratios["loader", "seconds"][0],
        "loader_processor": ratios["loader", "processor"][0],
    }
    step_ms = round(1e3 * statistics.median(seconds["bare"]), 3)
    print(json.dumps({name: round(value, 5) for name, value in figures.items()} | {"step_ms": step_ms, "load": load}))


if __name__ == "__main__":
    main()
