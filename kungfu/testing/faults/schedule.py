"""A schedule of faults as values, and the few words in which people write one.

One fault a line (or between semicolons), carried out in their order, each not before the one above it:

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

A step with a plus counts from the step at which the schedule began. A rank counts the members of the newest view that
still live, in their order, and the coordinator is rank 0; a joiner is the newest process that is in no view yet, or was
in none when the moment came and is in one when its seconds are over; a host counts those of the job in the order of its
list, and its kungfu-run gets the signal. ``kill`` is SIGKILL, ``freeze`` SIGSTOP, ``thaw`` SIGCONT, ``notice`` SIGTERM.
What is frozen ``for`` some seconds is thawed after them; what is slowed ``to`` a share runs for that share of each
tenth of a second, and is frozen for the rest of it."""

from __future__ import annotations

import re
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
        moment: ``settled``: every process is in the view, which has the target size and has done a step.
        number: For ``step`` and ``barrier``: once the record has this many.
        event: For ``next``: the kind of the event in the record, the first one after the fault before.
        after_s: Seconds after that moment.
        relative: True if the number counts from the beginning of the schedule.
        calm: True if the job must have settled as well.
    """

    moment: Moment
    number: int = 0
    event: str = ""
    after_s: float = 0.0
    relative: bool = False
    calm: bool = False

    def __str__(self) -> str:
        match self.moment:
            case "next":
                named = f"at next {self.event}"
            case "settled":
                named = "once settled"
            case "now":
                named = "now"
            case _:
                plus, calm = "+" if self.relative else "", " once settled" if self.calm else ""
                named = f"at {self.moment} {plus}{self.number}{calm}"
        return f"{named} after {self.after_s:g} s" if self.after_s else named


@dataclass(frozen=True)
class SignalPeers:
    """A signal to the members with these ``ranks``, or the newest joiner; frozen ones are thawed after ``for_s`` s."""

    verb: Verb
    ranks: tuple[int, ...] = ()
    for_s: float | None = None

    def __str__(self) -> str:
        lasting = "" if self.for_s is None else f" for {self.for_s:g} s"
        return f"{self.verb} {_named_ranks(self.ranks)}{lasting}"


@dataclass(frozen=True)
class SlowPeers:
    """The members with these ``ranks`` (the newest joiner without any) run for ``percent`` of the next ``for_s`` s."""

    ranks: tuple[int, ...]
    percent: int
    for_s: float

    def __str__(self) -> str:
        return f"slow {_named_ranks(self.ranks)} to {self.percent} % for {self.for_s:g} s"


@dataclass(frozen=True)
class SignalHosts:
    """A signal to kungfu-run on ``hosts``, in the order of the job's list; frozen ones are thawed after ``for_s`` s."""

    verb: Verb
    hosts: tuple[int, ...]
    for_s: float | None = None

    def __str__(self) -> str:
        lasting = "" if self.for_s is None else f" for {self.for_s:g} s"
        return f"{self.verb} {_numbered('host', self.hosts)}{lasting}"


What = SignalPeers | SlowPeers | SignalHosts | Resize | SaveCheckpoint


@dataclass(frozen=True)
class Fault:
    """A fault: a moment and an action."""

    when: When
    what: What

    def __str__(self) -> str:
        return f"{self.when} {self.action}"

    @property
    def action(self) -> str:
        """The action, in the words of the schedule."""
        return in_words(self.what) if isinstance(self.what, Resize | SaveCheckpoint) else str(self.what)


def parse(text: str) -> tuple[Fault, ...]:
    """The faults that are written in `text`, in their order; ``#`` begins a comment.

    Raises ``UsageError`` with the words that are no fault.

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
    """The contradiction between a part of a fault and its verb; ``None`` if there is none."""
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
