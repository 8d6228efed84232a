"""Hosts on an emulated network with slow links: the all-reduce, a join, and the loss of hosts.

The hosts are namespaces of this machine (see ``benchmarks.emulation.network``), so that their links, and not its cores,
limit the all-reduce. Measured are:

- the median seconds of an all-reduce between two hosts of two peers each, with ranks in the order of hosts
  (``ordered_s``) and mixed on purpose. ``bound_s`` is the least time that the link permits if each host sends a message
  once, as a ring in the order of hosts does. ``mixed_over_ordered`` must be at most 1.1.
- the median stop of training when a peer on another host joins and gets the state over the link (``join_stop_s``).
- the time from the loss of a host until the end of the survivors' next step, in a job of one peer per host: of a host
  whose processes are all killed, so that its connections break (``recovery_s``, at most 2), of a host whose link is cut
  (``silent_recovery_s``), and of the leading host with rank 0 whose link is cut (``silent_leader_s``). A cut is known
  after ``heartbeat_s``; the two may take 2 s longer.
- the steps that fail because the host that leads the agents is killed (``leader_steps_lost``, 0) while it runs no peer;
  ``leader_gap_s`` is the longest time between two steps around its loss.

Prints a table, and as its last line a JSON object. Ends with an error on a machine that permits no such network.

Run: ``python -m benchmarks.hosts [--rounds 3] [--mbit 100] [--megabytes 8]``
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import secrets
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.elasticity.jobs import ROOT, Job, awaited, started
from benchmarks.elasticity.stamps import Stamp
from benchmarks.elasticity.stops import changes
from benchmarks.emulation.network import Network, NetworkHost, NetworkUnavailableError, network
from benchmarks.emulation.ring import bound_s, message_s
from kungfu.cli.hosting import SECRET_KEY

ORDERED, MIXED = (0, 0, 1, 1), (0, 1, 0, 1)  # the host of each rank
HEARTBEAT_S = 4.0
CALM, EVERY = 20, 20  # steps before a loss, and between two changes of size
BEGIN_S, WITHIN_S = 300.0, 180.0
WORKER = "elasticity.programs.kungfu_worker"


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=_positive(int), default=3, help="messages of each order, and joins (3)")
    parser.add_argument("--mbit", type=_positive(float), default=100.0, help="of each link, in Mbit/s (100)")
    parser.add_argument("--megabytes", type=_positive(float), default=8.0, help="of a message, and of the state (8)")
    return parser.parse_args(words)


def _positive(kind: Callable[[str], float]) -> Callable[[str], float]:
    def parse(text: str) -> float:
        if not 0 < (value := kind(text)) < float("inf"):
            raise argparse.ArgumentTypeError(f"{text} is not a positive number")
        return value

    return parse


def main() -> None:
    """Measures all figures, and prints them."""
    given, load = arguments(), os.getloadavg()[0]
    try:
        figures = {**ring(given), **joins(given), **losses(given), **leader_lost(given)}
    except NetworkUnavailableError as error:
        raise SystemExit(f"benchmarks.hosts needs an emulated network, which this machine refuses: {error}") from error
    table = Table("figure", "value")
    for name, value in figures.items():
        table.add_row(name, f"{value:g}")
    Console().print(table)
    print(json.dumps({**figures, **vars(given), "load": [round(load, 2), round(os.getloadavg()[0], 2)]}))


def ring(given: argparse.Namespace) -> dict[str, float]:
    """The seconds of a message with ranks in the order of hosts and mixed, and the least that the link permits."""
    with _slow_network(2, given) as whole:
        measure = partial(message_s, whole, megabytes=given.megabytes, rounds=given.rounds)
        ordered_s, mixed_s = measure(ORDERED), measure(MIXED)
    bound = bound_s(len(ORDERED), crossings=1, megabytes=given.megabytes, mbit=given.mbit)
    times = {"ordered_s": ordered_s, "mixed_s": mixed_s, "bound_s": bound, "mixed_over_ordered": mixed_s / ordered_s}
    return {name: round(value, 3) for name, value in times.items()}


def joins(given: argparse.Namespace) -> dict[str, float]:
    """The median stop when a third peer, the first of its host, joins; it leaves again before the next join."""
    with _slow_network(2, given) as whole, _job(whole, given, slots=(2, 2), size=2, every=EVERY) as (job, *_):
        # Each join is followed by a leave, so that all steps around the join are known.
        wanted = 2 * given.rounds
        job.until(lambda seen: len(changes(seen)) >= wanted, what="the joins", deadline_s=BEGIN_S * given.rounds)
        stops = [one.stop_s for one in changes(job.stamps()) if one.before < one.after]
    return {"join_stop_s": round(statistics.median(stops), 3)}


def losses(given: argparse.Namespace) -> dict[str, float]:
    """The recovery from the loss of three of five hosts, one after the other: killed, cut off, the leader cut off."""
    with _slow_network(5, given) as whole, _job(whole, given, slots=(1,) * 5, size=5) as (_, job, *_):
        times = {
            "recovery_s": _recovery_s(job, size=5, lose=lambda: whole.hosts[4].signal(signal.SIGKILL)),
            "silent_recovery_s": _recovery_s(job, size=4, lose=lambda: whole.part([0, 1, 2], [3])),
            "silent_leader_s": _recovery_s(job, size=3, lose=lambda: whole.part([1, 2], [0])),
        }
    return {"heartbeat_s": HEARTBEAT_S, **{name: round(value, 3) for name, value in times.items()}}


def _recovery_s(job: Job, *, size: int, lose: Callable[[], None]) -> float:
    """The seconds from the loss of one of ``size`` peers until each of the others has done a step without it."""
    job.steps_at(size, count=CALM, deadline_s=BEGIN_S)
    at = time.monotonic()
    lose()

    def first_ends(workers: dict[int, list[Stamp]]) -> list[float]:
        done = ([one for one in each if one.size == size - 1 and one.after > one.before] for each in workers.values())
        return [each[0].ended for each in done if each]

    job.until(lambda seen: len(first_ends(seen)) >= size - 1, what="the survivors' next step", deadline_s=WITHIN_S)
    return max(first_ends(job.stamps())) - at


def leader_lost(given: argparse.Namespace) -> dict[str, float]:
    """The failed attempts at steps, and the longest gap between two steps, around the loss of the leader's host."""
    with _slow_network(3, given) as whole, _job(whole, given, slots=(1, 1, 1), size=2) as (first, other, _):
        first.steps_at(2, count=CALM, deadline_s=BEGIN_S)
        _migrate(whole.hosts[0], first.folder / "log", peer=0, host=whole.hosts[2])
        _await_steps(other, since=time.monotonic())
        at = time.monotonic()
        whole.hosts[0].signal(signal.SIGKILL)
        record = other.folder / "log" / "events.jsonl"
        awaited(lambda: '"event": "host lost"' in record.read_text(), what="the next leader", deadline_s=WITHIN_S)
        _await_steps(other, since=time.monotonic())
        around = [[one for one in each if one.ended > at - 1.0] for each in other.stamps().values()]
    gaps = [two.ended - one.ended for each in around for one, two in itertools.pairwise(each)]
    lost = sum(one.after <= one.before for each in around for one in each)
    return {"leader_steps_lost": lost, "leader_gap_s": round(max(gaps), 3)}


def _await_steps(job: Job, *, since: float) -> None:
    """Waits until two peers have each begun `CALM` steps after a time."""

    def seen(workers: dict[int, list[Stamp]]) -> bool:
        return sum(sum(one.began > since and one.size == 2 for one in each) >= CALM for each in workers.values()) >= 2

    job.until(seen, what=f"{CALM} steps of two peers", deadline_s=WITHIN_S)


def _migrate(asking: NetworkHost, folder: Path, *, peer: int, host: NetworkHost) -> None:
    """Moves a peer to another host, and waits until it has moved."""
    words = [sys.executable, "-m", "kungfu.cli.main", "migrate", peer, host.name, "--logdir", folder]
    done = subprocess.run(
        asking.command(words, folder=ROOT), capture_output=True, text=True, timeout=WITHIN_S, check=False
    )
    if done.returncode:
        raise SystemExit(f"peer {peer} could not be moved to {host.name}: {done.stdout}{done.stderr}")


@contextmanager
def _slow_network(size: int, given: argparse.Namespace) -> Iterator[Network]:
    with network(size) as whole:
        for host in range(size):
            whole.slow_down(host, mbit=given.mbit)
        yield whole


@contextmanager
def _job(
    whole: Network, given: argparse.Namespace, *, slots: Sequence[int], size: int, every: int = 0
) -> Iterator[list[Job]]:
    """A job of ``size`` peers with Horovod, one ``kungfu-run`` on each host; all stamps are in one folder.

    With ``every``, a policy adds and removes one peer in turn, each after this many steps at a size.
    """
    listed = ",".join(f"{host.name}:{room}" for host, room in zip(whole.hosts, slots, strict=True))
    line = ["-np", size, "--min", 1, "--max", size + bool(every), "-H", listed, "--attachment", "horovod"]
    line += ["--heartbeat", HEARTBEAT_S, "--trace-limit", 0]
    options: dict[str, object] = {"megabytes": given.megabytes, "device-s": 0.02, "low": size}
    options |= {"every": every} if every else {}
    secret = f"{SECRET_KEY}={secrets.token_hex(32)}"

    def launcher(host: NetworkHost, folder: Path) -> Sequence[object]:
        words = [secret, sys.executable, "-m", "kungfu.cli.run", *line, "--logdir", folder / "log"]
        return host.command(words, folder=ROOT)

    with ExitStack() as stack:
        jobs: list[Job] = []
        for host in whole.hosts:
            first = jobs[0] if jobs else None
            begun = started(partial(launcher, host), program=WORKER, options=options, beside=first)
            jobs.append(stack.enter_context(begun))
        yield jobs
        for job in jobs:
            job.process.send_signal(signal.SIGINT)  # the whole job ends, on all hosts at once


if __name__ == "__main__":
    main()
