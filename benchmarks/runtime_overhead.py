"""What events, trace, metrics, heartbeats and stamps cost a run without changes: a step with them over one without.

One job of two peers runs two steps of the same model (about a million weights, no policy) by turns, in blocks of 25:
*full*, as a user runs it: batches with their stamps checked, every step recorded in ``trace.jsonl`` and
``metrics.jsonl``, the deadlines of waits following the steps; and *bare*, the same compiled step over the same
attachment and the same order of samples with all that taken out. Drawing a batch is not counted in either. Each block
counts by the mean of its steps and is divided by its neighbour; a pause behind it lets what is on its way be written,
outside of the seconds but inside of the processor's time. Heartbeats beat in both: what a peer does while nobody trains
is measured apart, as the fraction of a processor that it takes, and added.

Prints a table, and as last line a JSON object: ``overhead`` is full over bare minus 1 plus ``background``;
``processor_overhead`` is that of the processor's time on rank 0, which alone writes metrics.

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
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from benchmarks.policy_overhead import FEATURES, beside, build, marked, measured_by_peers, ratio

BLOCK, LABELS = 25, 10
DRAIN_S, IDLE_S, DEADLINE_S = 0.3, 3.0, 900.0


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; ``--peer`` is how the benchmark starts its own peers."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=60, help=f"blocks of {BLOCK} steps of each kind (60)")
    parser.add_argument("--samples", type=int, default=576, help="of a step on each peer (576, about 20 ms)")
    parser.add_argument("--peer", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args(words)


# ---- what a peer does ----------------------------------------------------------------------------------------------


def stripped(first: Any, model: Any, optimizer: Any, *, batch: Sequence[Any]) -> Callable[..., Any]:
    """The step of another run in the same job, without stamps and records; made and traced here."""
    from kungfu.training import loop
    from kungfu.training.graph.step import CompiledStep

    class Unstamped(CompiledStep):
        def _step(self, stamp: Any, *tensors: Any) -> list[Any]:
            return self._run(stamp, tensors)

    run = beside(first, [], name="bare")
    run._loop._chronicle_step = lambda code: None
    run._loop.barrier.pace = SimpleNamespace(stepped=lambda: None, entered=lambda: None)
    step = marked(run, model, optimizer)
    with mock.patch.object(loop, "CompiledStep", Unstamped):
        step(*batch)
    return step


def plain_batches(data: Sequence[Any], *, batch_size: int, rank: int, size: int) -> Iterator[Any]:
    """This peer's slices in the loader's order, without stamps."""
    import tensorflow as tf

    from kungfu.runtime.deciding.data import Position, cut

    samples = len(data[0])
    for number in itertools.count():
        epoch, turn = divmod(number, samples // batch_size)
        place = Position(epoch, turn * batch_size)
        taken = cut(place, samples=samples, seed=0, global_batch_size=batch_size, size=size, rank=rank)
        yield tuple(tf.convert_to_tensor(array[taken]) for array in data)


def block(step: Callable[..., object], batches: Iterator[Any]) -> float:
    """The mean seconds of a step over a block; drawing the batches is not counted."""
    seconds = 0.0
    for batch in itertools.islice(batches, BLOCK):
        started = time.perf_counter()
        step(*batch)
        seconds += time.perf_counter() - started
    return seconds / BLOCK


def background() -> float:
    """The fraction of a processor that this peer takes while nobody trains."""
    began, started = time.process_time(), time.perf_counter()
    time.sleep(IDLE_S)
    return (time.process_time() - began) / (time.perf_counter() - started)


def measure(given: argparse.Namespace) -> None:
    """What one peer does; rank 0 writes down what it measured."""
    import numpy as np

    import kungfu as kf

    model, optimizer = build()
    training = kf.attach(model, optimizer)
    rng, batch_size = np.random.default_rng(0), 2 * given.samples
    data = rng.normal(size=(14 * batch_size, FEATURES)).astype(np.float32), rng.integers(0, LABELS, 14 * batch_size)
    batches = training.batches(data, batch_size=batch_size, epochs=10**6, seed=0)
    full = marked(training, model, optimizer)
    full(*next(batches))
    plain = plain_batches(data, batch_size=batch_size, rank=training.rank, size=training.size)
    bare = stripped(training, model, optimizer, batch=next(plain))
    kinds = {"full": (full, batches), "bare": (bare, plain)}
    told: dict[str, Any] = {clock: {name: [] for name in kinds} for clock in ("seconds", "processor")}
    for number in range(given.rounds + 1):
        for name in sorted(kinds, reverse=number % 2 == 1):
            began = time.process_time()
            told["seconds"][name].append(block(*kinds[name]))
            time.sleep(DRAIN_S)
            told["processor"][name].append((time.process_time() - began) / BLOCK)
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
    for name in ("bare", "full"):
        wall, busy = (1e3 * statistics.median(clock[name]) for clock in (seconds, processor))
        print(
            f"{name:>10}: {wall:7.2f} ms a step, {busy:7.2f} ms of processor time on rank 0, drawing batches included"
        )
    paired, spread = ratio(seconds["full"], seconds["bare"])
    busy, busy_spread = ratio(processor["full"], processor["bare"])
    print(f"      step: {100 * paired:+.2f} % (+- {100 * spread:.2f} %), full over bare")
    print(f" processor: {100 * busy:+.2f} % (+- {100 * busy_spread:.2f} %), full over bare")
    print(f"background: {100 * measured['background']:.3f} % of a processor while nobody trains")
    figures = {
        "overhead": paired + measured["background"],
        "step_overhead": paired,
        "spread": spread,
        "background": measured["background"],
        "processor_overhead": busy,
    }
    step_ms = round(1e3 * statistics.median(seconds["bare"]), 3)
    print(json.dumps({name: round(value, 5) for name, value in figures.items()} | {"step_ms": step_ms, "load": load}))


if __name__ == "__main__":
    main()
