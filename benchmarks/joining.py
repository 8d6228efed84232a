"""The time from a decision for one more peer, or from the loss of a peer, until a peer has joined: cold and by a spare.

A job of two peers grows to three by a request (``kungfu resize 3``), loses its last peer to SIGKILL, replaces it, and
shrinks again, several times; before each change the job is calm, and its spare is ready. The time is that from the
request or from the kill to the end of the joined peer's first step, so it includes the detection of the loss, the
barriers, the transfer of the state, and that step. The training is that of ``benchmarks.rescale``: a small network and
100 MB of state, of which each step writes a 25th; the device time of a step is emulated by a sleep. Cold: without
spares. Loaded: ``--spares 1:loaded``, a process that has loaded TensorFlow. Spare: ``--spares 1``.

The figures are medians over the repetitions. The memory is that which a waiting spare, or a peer that trains, shares
with no other process. With a spare, a request must take at most 0.5 s, and a replacement 1 s.

Prints a table, and as its last line a JSON object.

Run: ``python -m benchmarks.joining [--rounds 5] [--megabytes 100] [--device-ms 40]``
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.elasticity.jobs import Job, awaited, started
from benchmarks.elasticity.stamps import Stamp
from kungfu.event_log.record_follower import JobWatcher
from kungfu.runtime.core.request import Asked, Resize
from kungfu.runtime.job_api.client import connected

LOW = 2
CALM = 20  # steps before each change
BEGIN_S, CHANGE_S = 300.0, 180.0
MEGABYTE = 1e6
# The name of each kind of job, and its argument of ``--spares``.
KINDS = {"cold": "0", "loaded": "1:loaded", "spare": "1"}


@dataclass(frozen=True)
class Joining:
    """The results of one kind of job.

    Args:
        joined_s: The seconds from each request to the joined peer's first step.
        replaced_s: The seconds from each kill to the first step of the peer that replaces the killed peer.
        waiting_bytes: The memory of each spare that was ready; empty without spares.
        peer_bytes: The memory of each peer that trained at the end.
    """

    joined_s: tuple[float, ...]
    replaced_s: tuple[float, ...]
    waiting_bytes: tuple[int, ...]
    peer_bytes: tuple[int, ...]


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="requests and kills of each kind of job (5)")
    parser.add_argument("--megabytes", type=float, default=100.0, help="of float32 state (100)")
    parser.add_argument("--device-ms", type=float, default=40.0, help="emulated device time of a step (40)")
    given = parser.parse_args(words)
    if given.rounds < 1:
        parser.error(f"--rounds {given.rounds}: takes 1 or more")
    return given


def measure(spares: str, *, rounds: int, options: Mapping[str, object]) -> Joining:
    """Runs a job with this argument of ``--spares``, and changes it ``rounds`` times."""

    def launcher(folder: Path) -> Sequence[object]:
        size = ["-np", LOW, "--max", LOW + 1, "--failures", rounds, "--spares", spares]
        return [sys.executable, "-m", "kungfu.cli.run", *size, "--attachment", "local", "--logdir", folder / "log"]

    joined, replaced = list[float](), list[float]()
    with started(launcher, program="elasticity.programs.kungfu_worker", options={**options, "low": LOW}) as job:
        folder, number = job.folder / "log", int(spares.partition(":")[0])
        job.steps_at(LOW, count=CALM, deadline_s=BEGIN_S)
        watcher = JobWatcher(folder)
        for _ in range(rounds):
            _await_spares(watcher, number)
            joined.append(_until_joined(job, lambda: _resize(folder, LOW + 1)))
            job.steps_at(LOW + 1, count=CALM, deadline_s=CHANGE_S)
            _await_spares(watcher, number)
            replaced.append(_until_joined(job, lambda: os.kill(_pids(watcher)[-1], signal.SIGKILL)))
            job.steps_at(LOW + 1, count=CALM, deadline_s=CHANGE_S)
            _resize(folder, LOW)
            job.steps_at(LOW, count=CALM, deadline_s=CHANGE_S)
        peers = tuple(psutil.Process(pid).memory_full_info().uss for pid in _pids(watcher))
        return Joining(tuple(joined), tuple(replaced), _waiting_bytes(folder), peers)


def _await_spares(watcher: JobWatcher, number: int) -> None:
    def are_ready() -> bool:
        job = watcher.look()
        return sum(job.peer(peer).state == "spare" for peer in job.spares) >= number

    awaited(are_ready, what=f"{number} ready spares", deadline_s=BEGIN_S)


def _until_joined(job: Job, change: Callable[[], object]) -> float:
    """Makes a change for which a peer joins; returns the seconds until the end of the first step of that peer."""
    before, at = first_steps(job.stamps()), time.monotonic()
    change()
    fresh: dict[int, float] = {}

    def look(workers: Mapping[int, Sequence[Stamp]]) -> bool:
        fresh.update({pid: ended for pid, ended in first_steps(workers).items() if pid not in before})
        return bool(fresh)

    job.until(look, what="the first step of a joiner", deadline_s=CHANGE_S)
    return min(fresh.values()) - at


def first_steps(workers: Mapping[int, Sequence[Stamp]]) -> dict[int, float]:
    """The end of the first step of each worker that has done one, by process id; a spare has done none."""
    done = {pid: [one.ended for one in stamps if one.after > one.before] for pid, stamps in workers.items()}
    return {pid: ends[0] for pid, ends in done.items() if ends}


def _resize(folder: Path, size: int) -> None:
    with connected(folder) as job:
        job.submit(Asked(Resize(size), id=secrets.token_hex(8)))


def _pids(watcher: JobWatcher) -> list[int]:
    """The process ids of the peers that train, in rank order."""
    job = watcher.look()
    return [pid for peer in job.members if (pid := job.peer(peer).pid) is not None]


def _waiting_bytes(folder: Path) -> tuple[int, ...]:
    events = map(json.loads, (folder / "events.jsonl").read_text().splitlines())
    ready = [one for one in events if one["event"] == "spare" and one["state"] == "ready"]
    return tuple(one["memory_bytes"] for one in ready)


def figures(measured: Mapping[str, Joining]) -> dict[str, float]:
    """The medians of all kinds of jobs: seconds, and megabytes of memory."""
    told: dict[str, float] = {}
    for name, one in measured.items():
        told[f"{name}_s"] = round(statistics.median(one.joined_s), 4)
        told["replaced_s" if name == "spare" else f"{name}_replaced_s"] = round(statistics.median(one.replaced_s), 4)
        if one.waiting_bytes:
            told[f"{name}_mb"] = round(statistics.median(one.waiting_bytes) / MEGABYTE, 1)
    peers = [size for one in measured.values() for size in one.peer_bytes]
    return told | {"peer_mb": round(statistics.median(peers) / MEGABYTE, 1)}


def table(measured: Mapping[str, Joining]) -> Table:
    """A table with a row for each kind of job."""
    made = Table(box=SIMPLE_HEAD, padding=(0, 1), collapse_padding=True)
    made.add_column("--spares")
    for heading in ("joined, s", "from, to", "replaced, s", "from, to", "a spare, MB"):
        made.add_column(heading, justify="right", no_wrap=True)
    for name, one in measured.items():
        cells = [cell for seconds in (one.joined_s, one.replaced_s) for cell in _told(seconds)]
        memory = f"{statistics.median(one.waiting_bytes) / MEGABYTE:.0f}" if one.waiting_bytes else "-"
        made.add_row(f"{KINDS[name]} ({name})", *cells, memory)
    return made


def _told(seconds: Sequence[float]) -> tuple[str, str]:
    return f"{statistics.median(seconds):.2f}", f"{min(seconds):.2f} to {max(seconds):.2f}"


def main(words: Sequence[str] | None = None) -> None:
    """Measures each kind of job in turn, and prints the results."""
    given = arguments(words)
    console, before = Console(), os.getloadavg()[0]
    print(f"The {given.device_ms:g} ms that a step takes on a device are emulated by a sleep.", flush=True)
    options = {"megabytes": given.megabytes, "device-s": given.device_ms / 1e3}
    measured = {}
    for name, spares in KINDS.items():
        console.print(f"{name}: {given.rounds} requests and kills with {given.megabytes:g} MB", highlight=False)
        measured[name] = measure(spares, rounds=given.rounds, options=options)
    console.print(table(measured))
    told = figures(measured)
    console.print(f"a peer that trains: {told['peer_mb']:.0f} MB of memory", highlight=False)
    load = [round(before, 2), round(os.getloadavg()[0], 2)]
    print(json.dumps({**told, "megabytes": given.megabytes, "rounds": given.rounds, "load": load}))


if __name__ == "__main__":
    main()
