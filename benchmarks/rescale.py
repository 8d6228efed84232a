"""The stop of training when a worker joins or leaves: kungfu, Horovod Elastic, and a restart.

All systems train the same state: a small trained network, and ballast that is not trained, in total 100 MB of float32,
of which each step writes a 25th; the device time of a step is emulated by a sleep. Each system changes from 2 workers
to 3 and back several times. The stop is the longest gap between the ends of two consecutive steps of a worker that
survives the change (of the job, for a restart), within five steps of the change, minus the worker's median gap; the
figure is the median over the repetitions. kungfu's stop includes the comparison of digests of the whole state.

Prints a table, and as its last line a JSON object: stops in seconds, the ratios of the others' join stop to ours, and
the load of the machine (the mean number of running processes in the last minute) before and after.

``--growth`` measures kungfu by the bytes of state and by the number of peers instead: a table, a plot in
``runs/benchmarks/rescale-growth.png``, and the same as JSON.

Run: ``python -m benchmarks.rescale [--growth] [--rounds 5] [--megabytes 100] [--device-ms 40]``
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.elasticity.growth import measure_growth
from benchmarks.elasticity.systems import Measured, Task, by_horovod, by_kungfu, by_restart

SYSTEMS = {"kungfu": by_kungfu, "Horovod Elastic": by_horovod, "checkpoint and restart": by_restart}


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--growth", action="store_true", help="kungfu by bytes and by peers, with a plot")
    parser.add_argument("--rounds", type=int, default=5, help="joins and leaves of each system (5)")
    parser.add_argument("--megabytes", type=float, default=100.0, help="of float32 state (100)")
    parser.add_argument("--device-ms", type=float, default=40.0, help="emulated device time of a step (40)")
    return parser.parse_args(words)


def figures(measured: Mapping[str, Measured]) -> dict[str, float]:
    """The stops of all systems, and the ratios of the others' stops to kungfu's."""
    ours, theirs, restart = (measured[name] for name in SYSTEMS)
    return {
        "join_stop_s": ours.join_stop_s,
        "leave_stop_s": ours.leave_stop_s,
        "horovod_join_stop_s": theirs.join_stop_s,
        "horovod_leave_stop_s": theirs.leave_stop_s,
        "restart_join_stop_s": restart.join_stop_s,
        "restart_leave_stop_s": restart.leave_stop_s,
        "join_ratio_horovod": theirs.join_stop_s / ours.join_stop_s,
        "join_ratio_restart": restart.join_stop_s / ours.join_stop_s,
        "leave_ratio_horovod": theirs.leave_stop_s / ours.leave_stop_s,
        "leave_ratio_restart": restart.leave_stop_s / ours.leave_stop_s,
        "step_s": ours.step_s,
    }


def table(measured: Mapping[str, Measured], *, low: int) -> Table:
    """A table with a row for each system: the median, shortest and longest stop."""
    made = Table(box=SIMPLE_HEAD, padding=(0, 1), collapse_padding=True)
    made.add_column("stop, seconds")
    for heading in (f"{low} -> {low + 1}", "from, to", f"{low + 1} -> {low}", "from, to", "step, ms"):
        made.add_column(heading, justify="right", no_wrap=True)
    for name, one in measured.items():
        cells = [cell for stops in (one.join_s, one.leave_s) for cell in _told(stops)]
        made.add_row(name, *cells, f"{1e3 * one.step_s:.1f}")
    return made


def parts_told(measured: Measured) -> str:
    """The parts of a stop's time from kungfu's record, as text."""
    lines = []
    for kind, parts in measured.parts.items():
        told = ", ".join(f"{name.removesuffix('_s')} {1e3 * seconds:.1f} ms" for name, seconds in parts.items())
        lines.append(f"a {kind}, by kungfu's record: {told}")
    return "\n".join(lines)


def main() -> None:
    """Measures each system in turn, and prints the results."""
    given = arguments()
    console, before = Console(), os.getloadavg()[0]
    print(f"The {given.device_ms:g} ms that a step takes on a device are emulated by a sleep.", flush=True)
    if given.growth:
        growth = measure_growth(console, rounds=given.rounds, device_s=given.device_ms / 1e3)
        print(json.dumps({"growth": growth, "load": [round(before, 2), round(os.getloadavg()[0], 2)]}))
        return
    task = Task(2, given.megabytes, given.device_ms / 1e3, given.rounds)
    measured = {}
    for name, system in SYSTEMS.items():
        console.print(f"{name}: {task.rounds} joins and leaves with {task.megabytes:g} MB", highlight=False)
        measured[name] = system(task)
    console.print(table(measured, low=task.low))
    console.print(parts_told(measured["kungfu"]), highlight=False)
    rounded = {name: round(value, 4) for name, value in figures(measured).items()}
    load = [round(before, 2), round(os.getloadavg()[0], 2)]
    print(json.dumps({**rounded, "megabytes": task.megabytes, "rounds": task.rounds, "load": load}))


def _told(stops: Sequence[float]) -> tuple[str, str]:
    middle = statistics.median(stops)
    return f"{middle:.3f}", f"{min(stops):.3f} to {max(stops):.3f}"


if __name__ == "__main__":
    main()
