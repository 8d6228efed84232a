"""Schedules of faults drawn at random, the same ones for the same seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from kungfu.errors import UsageError
from kungfu.testing.faults.schedule import (
    Fault,
    ResizeJob,
    SignalHosts,
    SignalPeers,
    SlowPeers,
    Verb,
    What,
    When,
)

__all__ = ["random_faults", "random_host_faults", "survivable_faults"]

_AT_HOSTS: tuple[Verb, ...] = ("kill", "notice", "freeze")
_AT_PEERS: tuple[Verb, ...] = ("kill", "freeze")


def random_faults(seed: int, *, changes: int, kills: int, size: int, least: int = 2, most: int = 4) -> list[Fault]:
    """A schedule of `changes` changes of the membership for a job that begins with `size` peers.

    Each change comes up to half a second after the job has settled from the one before.

    Args:
        seed: The same seed draws the same schedule.
        changes: How many changes there are.
        kills: How many of them end peers: one, two in the same step, one and then another while the others regroup, a
            joiner on its way, or one that is only stopped. The others are notices and resizes.
        size: The peers at the start.
        least: The fewest peers of a resize.
        most: The most peers of a resize.

    Raises:
        UsageError: There are more kills than changes.

    >>> [str(fault) for fault in random_faults(2, changes=2, kills=1, size=2)][-1].startswith("once settled")
    True
    """
    if kills > changes:
        raise UsageError(f"random_faults(changes={changes}, kills={kills}): kills are changes too; give fewer of them")
    draw = random.Random(seed)
    kinds = ["kill"] * kills + ["else"] * (changes - kills)
    draw.shuffle(kinds)
    faults: list[Fault] = []
    for kind in kinds:
        drawn = list(_killed(draw, size) if kind == "kill" else _changed(draw, size, least, most))
        size = next((fault.what.size for fault in drawn if isinstance(fault.what, ResizeJob)), size)
        faults += drawn
    return faults


def random_host_faults(seed: int, *, faults: int, hosts: int = 3) -> list[Fault]:
    """A schedule of `faults` faults for a job with one peer on each of `hosts` hosts, whose last one has a free slot.

    One of them hits a host, any but the last: it is killed, taken away by a notice, or stopped until the job has gone
    on without it. All others kill or stop one peer: the replacement takes the slot that became free, so there is always
    one, and no host runs most of the peers when one is lost.

    Raises ``UsageError`` for no fault, and for less than three hosts.

    >>> print(*random_host_faults(1, faults=2), sep="; ")
    once settled after 0.16 s kill host 0; once settled after 0.31 s freeze rank 1
    """
    if faults < 1 or hosts < 3:
        raise UsageError(
            f"random_host_faults(faults={faults}, hosts={hosts}): takes one fault and three hosts at least"
        )
    draw = random.Random(seed)
    before = draw.randrange(faults)
    drawn = [_at_one_peer(draw, hosts) for _ in range(before)]
    host, when, verb = draw.randrange(hosts - 1), _soon(draw), draw.choice(_AT_HOSTS)
    drawn.append(Fault(when, SignalHosts(verb, (host,))))
    if verb == "freeze":
        drawn.append(Fault(When("settled"), SignalHosts("thaw", (host,))))
    return [*drawn, *(_at_one_peer(draw, hosts) for _ in range(faults - before - 1))]


def survivable_faults(
    seed: int, *, faults: int, every: int, size: int, least: int = 1, most: int | None = None
) -> list[Fault]:
    """A schedule of `faults` faults that a job of `size` peers survives, `every` so many steps from the beginning on.

    Each waits until the job has settled from the one before. One peer is killed, the leader or any other; two at once
    of four or more; one is frozen for a time or slowed, or gets a notice; the job is resized.

    Args:
        seed: The same seed draws the same schedule.
        faults: How many there are.
        every: Steps from one to the next.
        size: The peers at the start.
        least: The fewest peers of a resize.
        most: The most peers of a resize; ``None`` where the job takes none.

    Raises:
        UsageError: There is no fault, or no step between two of them.

    >>> print(*survivable_faults(7, faults=2, every=100, size=3), sep="; ")
    at step +100 once settled kill rank 1; at step +200 once settled freeze rank 2 for 0.6 s
    """
    if faults < 1 or every < 1:
        raise UsageError(f"{faults} faults every {every} steps: takes one fault and one step at least")
    draw, drawn = random.Random(seed), list[Fault]()
    for number in range(1, faults + 1):
        what = _survivable(draw, size, range(least, most + 1) if most else ())
        size = what.size if isinstance(what, ResizeJob) else size
        drawn.append(Fault(When("step", number * every, relative=True, calm=True), what))
    return drawn


def _survivable(draw: random.Random, size: int, sizes: Sequence[int]) -> What:
    rank, seconds = draw.randrange(size), _tenths(draw, 8) + 0.5
    others = [one for one in sizes if one != size]
    kinds = ["freeze", "slow"] + ["kill", "kill", "leader", "notice"] * (size > 1) + ["two"] * (size > 3)
    match draw.choice(kinds + ["resize", "resize"] * bool(others)):
        case "freeze":
            return SignalPeers("freeze", (rank,), round(10 * seconds) / 10)
        case "slow":
            return SlowPeers((rank,), draw.randrange(20, 80, 10), round(10 * seconds) / 10)
        case "kill":
            return SignalPeers("kill", (rank,))
        case "leader":
            return SignalPeers("kill", (0,))
        case "notice":
            return SignalPeers("notice", (rank,))
        case "two":
            return SignalPeers("kill", (0, draw.randrange(1, size)))
    return ResizeJob(draw.choice(others))


def _at_one_peer(draw: random.Random, size: int) -> Fault:
    return Fault(_soon(draw), SignalPeers(draw.choice(_AT_PEERS), (draw.randrange(size),)))


def _killed(draw: random.Random, size: int) -> Iterator[Fault]:
    rank, when = draw.randrange(size), _soon(draw)
    how = draw.choice(
        ["one", "one", "two", "again", "joiner", "freeze"] if size > 2 else ["one", "one", "joiner", "freeze"]
    )
    if how == "two":
        other = draw.choice([one for one in range(size) if one != rank])
        yield Fault(when, SignalPeers("kill", (rank, other)))
    elif how == "freeze":
        yield Fault(when, SignalPeers("freeze", (rank,)))
    else:
        yield Fault(when, SignalPeers("kill", (rank,)))
    if how == "again":
        event = draw.choice(["lost", "regrouping", "view"])
        yield Fault(
            When("next", event=event, after_s=_tenths(draw, 1)), SignalPeers("kill", (draw.randrange(size - 1),))
        )
    if how == "joiner":
        event, most = draw.choice([("spawned", 30), ("offered", 2)])
        yield Fault(When("next", event=event, after_s=_tenths(draw, most)), SignalPeers("kill"))


def _changed(draw: random.Random, size: int, least: int, most: int) -> Iterator[Fault]:
    others = [one for one in range(least, most + 1) if one != size]
    if draw.random() < 0.3 or not others:
        yield Fault(_soon(draw), SignalPeers("notice", (draw.randrange(size),)))
    else:
        yield Fault(_soon(draw), ResizeJob(draw.choice(others)))


def _soon(draw: random.Random) -> When:
    return When("settled", after_s=_tenths(draw, 5))


def _tenths(draw: random.Random, most: int) -> float:
    """Up to so many tenths of a second."""
    return draw.randrange(most * 10) / 100
