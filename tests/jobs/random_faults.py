"""Schedules of faults drawn at random, the same ones for the same seed: what jobs have to survive in a soak."""

from __future__ import annotations

import random
from collections.abc import Iterator

from kungfu.runtime.core.request import Resize
from kungfu.testing.faults import Fault, SignalHosts, SignalPeers, When
from kungfu.testing.faults.schedule import Verb

_AT_HOSTS: tuple[Verb, ...] = ("kill", "notice", "freeze")
_AT_PEERS: tuple[Verb, ...] = ("kill", "freeze")


def random_faults(seed: int, *, changes: int, kills: int, size: int, least: int = 2, most: int = 4) -> list[Fault]:
    """A schedule of `changes` changes of the membership for a job that begins with `size` peers.

    Each comes up to half a second after the job has settled from the one before. `kills` of them kill one peer, two in
    a step, a second one while the others regroup, or a joiner, or stop one; the others are notices and resizes.
    """
    draw = random.Random(seed)
    kinds = ["kill"] * kills + ["else"] * (changes - kills)
    draw.shuffle(kinds)
    faults: list[Fault] = []
    for kind in kinds:
        drawn = list(_killed(draw, size) if kind == "kill" else _changed(draw, size, least, most))
        size = next((fault.what.size for fault in drawn if isinstance(fault.what, Resize)), size)
        faults += drawn
    return faults


def random_host_faults(seed: int, *, faults: int, hosts: int = 3) -> list[Fault]:
    """A schedule of `faults` faults for a job with one peer on each of `hosts` hosts, whose last one has a free slot.

    One of them hits a host, any but the last: it is killed, taken away by a notice, or stopped until the job has gone
    on without it. All others kill or stop one peer: the replacement takes the slot that became free, so there is always
    one, and no host runs most of the peers when one is lost.
    """
    draw = random.Random(seed)
    before = draw.randrange(faults)
    drawn = [_at_one_peer(draw, hosts) for _ in range(before)]
    host, when, verb = draw.randrange(hosts - 1), _soon(draw), draw.choice(_AT_HOSTS)
    drawn.append(Fault(when, SignalHosts(verb, (host,))))
    if verb == "freeze":
        drawn.append(Fault(When("settled"), SignalHosts("thaw", (host,))))
    return [*drawn, *(_at_one_peer(draw, hosts) for _ in range(faults - before - 1))]


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
        yield Fault(_soon(draw), Resize(draw.choice(others)))


def _soon(draw: random.Random) -> When:
    return When("settled", after_s=_tenths(draw, 5))


def _tenths(draw: random.Random, most: int) -> float:
    """Up to so many tenths of a second."""
    return draw.randrange(most * 10) / 100
