"""A schedule of faults as values, and the small language in which users write it.

Each line, or part of a line between semicolons, is one fault. The faults are carried out one after the other:

    at step 40 kill rank 1
    at step +100 once settled kill coordinator
    at step 60 resize 5
    at step 80 checkpoint
    at barrier 3 freeze rank 0
    at step 80 notice rank 2
    at next lost after 0.05 s kill rank 0
    once settled freeze ranks 0,1 for 2.5 s
    once settled slow rank 1 to 30 % for 10 s
    at next spawned after 2 s kill joiner
    now kill host 1

A step with a plus counts from the step at which the schedule began. Ranks number the living members of the newest view
in their order; the coordinator is rank 0. The joiner is the newest process outside the view; a process that was outside
the view when the moment came, and joins during the seconds to wait after the moment, counts too. Hosts are numbered in
the order of the job's list; their kungfu-run receives the signal. ``kill`` is SIGKILL, ``freeze`` SIGSTOP, ``thaw``
SIGCONT, and ``notice`` SIGTERM. ``freeze`` with ``for`` thaws the processes after that time; ``slow`` with ``to`` lets
processes run for that share of each tenth of a second, and freezes them for the rest."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from kungfu.errors import UsageError
from kungfu.runtime.core.request import Resize, SaveCheckpoint, in_words

Verb = Literal["kill", "freeze", "thaw", "notice"]
Moment = Literal["step", "barrier", "next", "settled", "now"]

_LINE = re.compile(
    r"(?:at (?P<moment>step|barrier) (?P<plus>\+?)(?P<number>\d+)(?P<calm> once settled)?"
    r"|at next (?P<event>[a-z]+(?: [a-z]+)?)|once (?P<settled>settled)|(?P<now>now))"
    r"(?: after (?P<after>\d+(?:\.\d+)?) s)?"
    r" (?:resize (?P<size>\d+)|(?P<checkpoint>checkpoint)|(?P<verb>kill|freeze|thaw|notice|slow)"
    r" (?:ranks? (?P<ranks>\d+(?:,\d+)*)|(?P<coordinator>coordinator)|(?P<who>joiner)|hosts? (?P<hosts>\d+(?:,\d+)*))"
    r"(?: to (?P<percent>\d+) ?%)?(?: for (?P<seconds>\d+(?:\.\d+)?) s)?)"
)
_FORMS = (
    "write a moment (now, at step N, at step +N, at barrier N, at next EVENT, once settled; maybe after N s), then "
    f"resize N, checkpoint, or {', '.join(get_args(Verb))} and rank N, ranks N,M, coordinator, joiner, host N or hosts "
    "N,M; freeze may end with for N s, and slow ranks N ends with to P % for N s"
)


@dataclass(frozen=True)
class When:
    """The moment of a fault.

    Attributes:
        moment: The kind of moment. ``settled``: the view has its target size and all its processes, and has completed a
            step.
        number: For ``step`` and ``barrier``, the number that the record has to reach.
        event: For ``next``, the kind of event to wait for, from the previous fault on.
        after_s: Seconds to wait after the moment.
        relative: True if the number counts from the beginning of the schedule.
        calm: True if the job must also have recovered from the previous faults.
    """

    moment: Moment
    number: int = 0
    event: str = ""
    after_s: float = 0.0
    relative: bool = False
    calm: bool = False

    def __str__(self) -> str:
        plus, calm = "+" if self.relative else "", " once settled" if self.calm else ""
        others = {"next": f"at next {self.event}", "settled": "once settled", "now": "now"}
        named = others.get(self.moment, f"at {self.moment} {plus}{self.number}{calm}")
        return f"{named} after {self.after_s:g} s" if self.after_s else named


@dataclass(frozen=True)
class SignalPeers:
    """A signal to the members with these ``ranks``, or to the newest joiner; a freeze ends after ``for_s`` seconds."""

    verb: Verb
    ranks: tuple[int, ...] = ()
    for_s: float | None = None

    def __str__(self) -> str:
        lasting = "" if self.for_s is None else f" for {self.for_s:g} s"
        return f"{self.verb} {_named_ranks(self.ranks)}{lasting}"


@dataclass(frozen=True)
class SlowPeers:
    """Lets members, by their ``ranks``, or the newest joiner run ``percent`` % of the time for ``for_s`` seconds."""

    ranks: tuple[int, ...]
    percent: int
    for_s: float

    def __str__(self) -> str:
        return f"slow {_named_ranks(self.ranks)} to {self.percent} % for {self.for_s:g} s"


@dataclass(frozen=True)
class SignalHosts:
    """A signal to kungfu-run on ``hosts``, numbered as in the job's list; a freeze ends after ``for_s`` seconds."""

    verb: Verb
    hosts: tuple[int, ...]
    for_s: float | None = None

    def __str__(self) -> str:
        lasting = "" if self.for_s is None else f" for {self.for_s:g} s"
        return f"{self.verb} {_numbered('host', self.hosts)}{lasting}"


What = SignalPeers | SlowPeers | SignalHosts | Resize | SaveCheckpoint


@dataclass(frozen=True)
class Fault:
    """A fault: its moment and its action."""

    when: When
    what: What

    def __str__(self) -> str:
        return f"{self.when} {self.action}"

    @property
    def action(self) -> str:
        """The fault's action, in the language of the schedule."""
        return in_words(self.what) if isinstance(self.what, Resize | SaveCheckpoint) else str(self.what)


def parse(text: str) -> tuple[Fault, ...]:
    """Parses the faults written in `text`, in order; ``#`` begins a comment.

    Raises ``UsageError`` with the words that are not a fault.

    Examples:
        >>> [str(fault) for fault in parse("at step 40 kill rank 1; once settled after 0.5 s resize 2")]
        ['at step 40 kill rank 1', 'once settled after 0.5 s resize 2']
    """
    lines = (line.partition("#")[0] for line in text.splitlines())
    written = (" ".join(words.split()) for line in lines for words in line.split(";"))
    return tuple(_fault(words) for words in written if words)


def _fault(words: str) -> Fault:
    found = _LINE.fullmatch(words)
    if found is None:
        raise UsageError(f"{words!r} is no fault; {_FORMS}")
    part: dict[str, Any] = found.groupdict()
    if (why := _contradiction(part)) is not None:
        raise UsageError(f"{words!r} is no fault: {why}; {_FORMS}")
    return Fault(_when(part), _what(part))


def _contradiction(part: dict[str, Any]) -> str | None:
    """The contradiction between a fault's verb and another part of the fault; ``None`` if there is none."""
    if part["verb"] == "slow":
        percent = int(part["percent"] or 0)
        if part["hosts"] or not part["seconds"] or not 1 <= percent <= 99:
            return "slow takes peers, a share from 1 to 99 %, and for how long"
    elif part["percent"]:
        return "only slow takes a share"
    elif part["seconds"] and part["verb"] != "freeze":
        return f"{part['verb']} is done at once, and takes no seconds"
    return None


def _when(part: dict[str, Any]) -> When:
    settled, now = part["settled"], part["now"]
    moment: Moment = part["moment"] or ("settled" if settled else "now" if now else "next")
    return When(
        moment, int(part["number"] or 0), part["event"] or "", float(part["after"] or 0), bool(part["plus"]),
        bool(part["calm"]),
    )  # fmt: skip


def _what(part: dict[str, Any]) -> What:
    if part["checkpoint"]:
        return SaveCheckpoint()
    if part["size"]:
        return Resize(int(part["size"]))
    lasting = float(part["seconds"]) if part["seconds"] else None
    if part["hosts"]:
        return SignalHosts(part["verb"], _numbers(part["hosts"]), lasting)
    ranks = (0,) if part["coordinator"] else _numbers(part["ranks"] or "")
    if part["verb"] == "slow":
        return SlowPeers(ranks, int(part["percent"]), float(part["seconds"]))
    return SignalPeers(part["verb"], ranks, lasting)


def _named_ranks(ranks: tuple[int, ...]) -> str:
    return _numbered("rank", ranks) if ranks else "joiner"


def _numbered(noun: str, numbers: tuple[int, ...]) -> str:
    return f"{noun}{'s' * (len(numbers) > 1)} {','.join(map(str, numbers))}"


def _numbers(words: str) -> tuple[int, ...]:
    return tuple(int(word) for word in words.split(",") if word)


def survivable_faults(
    seed: int, *, faults: int, every: int, size: int, least: int = 1, most: int | None = None
) -> list[Fault]:
    """A schedule of `faults` faults that a job of `size` peers survives, one every `every` steps.

    Each fault waits until the job has recovered from the previous one. A fault kills one peer, freezes or slows one
    peer for a time, sends one peer a preemption notice, or resizes the job. In a job of four or more peers, a fault may
    also kill the coordinator together with another peer.

    Args:
        seed: The seed of the draws; the same seed gives the same schedule.
        faults: The number of faults.
        every: Steps between two faults.
        size: The number of peers at the start.
        least: The minimum size of a resize.
        most: The maximum size of a resize; ``None`` if the job cannot be resized.

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
