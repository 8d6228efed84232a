"""Schedules of faults that a job survives, drawn at random; equal seeds give equal schedules."""

from __future__ import annotations

import random
from collections.abc import Sequence

from kungfu.errors import UsageError
from kungfu.runtime.core.request import Resize
from kungfu.testing.faults.schedule import Fault, SignalPeers, SlowPeers, What, When


def survivable_faults(
    seed: int, *, faults: int, every: int, size: int, least: int = 1, most: int | None = None
) -> list[Fault]:
    """A schedule of `faults` faults that a job of `size` peers survives, one every `every` steps.

    Each fault waits until the job has recovered from the previous one. The faults are: a kill of one peer, or of the
    coordinator and another of four or more; a freeze for a time; a slowdown; a preemption notice; a resize of the job.

    Args:
        seed: The same seed draws the same schedule.
        faults: The number of faults.
        every: Steps between two faults.
        size: The number of peers at the start.
        least: The smallest size of a resize.
        most: The largest size of a resize; ``None`` if the job cannot be resized.

    Raises:
        UsageError: `faults` or `every` is less than 1.

    >>> print(*survivable_faults(7, faults=2, every=100, size=3), sep="; ")
    at step +100 once settled kill rank 1; at step +200 once settled freeze rank 2 for 0.6 s
    """
    if faults < 1 or every < 1:
        raise UsageError(f"{faults} faults every {every} steps: takes one fault and one step at least")
    draw, drawn = random.Random(seed), list[Fault]()
    for number in range(1, faults + 1):
        what = _survivable(draw, size, range(least, most + 1) if most else ())
        size = what.size if isinstance(what, Resize) else size
        drawn.append(Fault(When("step", number * every, relative=True, calm=True), what))
    return drawn


def _survivable(draw: random.Random, size: int, sizes: Sequence[int]) -> What:
    rank, seconds = draw.randrange(size), round(10 * (draw.randrange(80) / 100 + 0.5)) / 10
    others = [one for one in sizes if one != size]
    kinds = ["freeze", "slow"] + ["kill", "kill", "coordinator", "notice"] * (size > 1) + ["two"] * (size > 3)
    match draw.choice(kinds + ["resize", "resize"] * bool(others)):
        case "freeze":
            return SignalPeers("freeze", (rank,), seconds)
        case "slow":
            return SlowPeers((rank,), draw.randrange(20, 80, 10), seconds)
        case "kill":
            return SignalPeers("kill", (rank,))
        case "coordinator":
            return SignalPeers("kill", (0,))
        case "notice":
            return SignalPeers("notice", (rank,))
        case "two":
            return SignalPeers("kill", (0, draw.randrange(1, size)))
    return Resize(draw.choice(others))
