"""The cost of a killed worker of three for the others, under kungfu and under Horovod Elastic.

A worker is killed (SIGKILL) in the middle of its training. Recovery is the time from the kill to the end of the
survivors' next step, in a job of two. The stop is the time from the end of their last step to the end of that step,
minus a median step: detection and regrouping, like ``stop_s`` of ``recovered`` in ``events.jsonl``. Lost steps are the
steps that a survivor began or finished and the job did not keep, including the one in flight. The worst survivor
counts; the seconds are medians over the repetitions, the steps maxima. Under kungfu a follower is killed in some jobs,
and rank 0, the coordinator, in others. The training is that of ``benchmarks.rescale``; Horovod Elastic commits its
state every 10 steps. On two cores, recovery and stop must be below 2 s under kungfu, with at most one step lost.

Prints a table, and as its last line a JSON object.

Run: ``python -m benchmarks.failure [--rounds 3] [--megabytes 100] [--device-ms 40]``
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Callable, Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.elasticity.failures import SIZE, killed_under_horovod, killed_under_kungfu
from benchmarks.elasticity.stops import Recovery


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="jobs of each kind, each with one kill (3)")
    parser.add_argument("--megabytes", type=float, default=100.0, help="of float32 state (100)")
    parser.add_argument("--device-ms", type=float, default=40.0, help="emulated device time of a step (40)")
    return parser.parse_args(words)


def figures(measured: Mapping[str, Sequence[Recovery]]) -> dict[str, float]:
    """The seconds and steps of each kind of kill, and the ratios of Horovod's to kungfu's."""
    told: dict[str, float] = {}
    for suffix, kills in measured.items():
        told[f"{suffix}recovery_s"] = round(statistics.median(one.seconds for one in kills), 4)
        told[f"{suffix}stop_s"] = round(statistics.median(one.stop_s for one in kills), 4)
        told[f"{suffix}steps_lost"] = max(one.steps_lost for one in kills)
    return told | {"recovery_ratio_horovod": round(told["horovod_recovery_s"] / told["recovery_s"], 2)}


def table(measured: Mapping[str, Sequence[Recovery]], names: Mapping[str, str]) -> Table:
    """A table with a row for each kind of kill."""
    made = Table(box=SIMPLE_HEAD, padding=(0, 1), collapse_padding=True)
    made.add_column(f"one of {SIZE} is killed")
    for heading in ("recovery, s", "from, to", "stop, s", "steps lost"):
        made.add_column(heading, justify="right", no_wrap=True)
    for suffix, kills in measured.items():
        seconds = [one.seconds for one in kills]
        spread = f"{min(seconds):.2f} to {max(seconds):.2f}"
        stop = f"{statistics.median(one.stop_s for one in kills):.2f}"
        lost = ", ".join(str(one.steps_lost) for one in kills)
        made.add_row(names[suffix], f"{statistics.median(seconds):.2f}", spread, stop, lost)
    return made


def main() -> None:
    """Kills a worker in each of several jobs, and prints the results."""
    given = arguments()
    console, before = Console(), os.getloadavg()[0]
    print(f"The {given.device_ms:g} ms that a step takes on a device are emulated by a sleep.", flush=True)
    options: dict[str, object] = {"megabytes": given.megabytes, "device-s": given.device_ms / 1e3}
    kinds: dict[str, tuple[str, Callable[[], Recovery]]] = {
        "": ("kungfu, a follower", lambda: killed_under_kungfu(rank=SIZE - 1, options=options)),
        "leader_": ("kungfu, rank 0", lambda: killed_under_kungfu(rank=0, options=options)),
        "horovod_": ("Horovod Elastic", lambda: killed_under_horovod(options=options)),
    }
    measured = {}
    for suffix, (name, kill) in kinds.items():
        console.print(f"{name}: {given.rounds} jobs", highlight=False)
        measured[suffix] = [kill() for _ in range(given.rounds)]
    console.print(table(measured, {suffix: name for suffix, (name, _) in kinds.items()}))
    load = [round(before, 2), round(os.getloadavg()[0], 2)]
    print(json.dumps({**figures(measured), "megabytes": given.megabytes, "rounds": given.rounds, "load": load}))


if __name__ == "__main__":
    main()
