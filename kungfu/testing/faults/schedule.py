"""A schedule of faults as values, and the few words in which people write one.

One fault a line (or between semicolons), carried out in their order, each not before the one above it:

    at step 40 kill rank 1
    at step 60 resize 5
    at barrier 3 stop rank 0
    at step 80 notice rank 2
    at next lost after 0.05 s kill rank 0
    once settled kill ranks 0,1
    at next spawned after 2 s kill joiner
    once settled kill host 1

A rank counts the members of the newest view that still live, in their order; a joiner is the newest process that is in
no view yet, or was in none when the moment came and is in one when its seconds are over; a host counts those of the job
in the order of its list, and its kungfu-run is who gets the signal. ``kill`` is SIGKILL, ``stop`` SIGSTOP, ``continue``
SIGCONT, ``notice`` SIGTERM.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, get_args

from kungfu.errors import UsageError

__all__ = ["Fault", "ResizeJob", "SignalHosts", "SignalPeers", "Verb", "When", "parse"]

Verb = Literal["kill", "stop", "continue", "notice"]
Moment = Literal["step", "barrier", "next", "settled"]

_LINE = re.compile(
    r"(?:at (?P<moment>step|barrier) (?P<number>\d+)|at next (?P<event>[a-z]+(?: [a-z]+)?)|once (?P<settled>settled))"
    r"(?: after (?P<after>\d+(?:\.\d+)?) s)?"
    r" (?:resize (?P<size>\d+)|(?P<verb>kill|stop|continue|notice)"
    r" (?:ranks? (?P<ranks>\d+(?:,\d+)*)|(?P<who>joiner)|hosts? (?P<hosts>\d+(?:,\d+)*)))"
)


@dataclass(frozen=True)
class When:
    """The moment of a fault.

    ``step`` and ``barrier``: once the record tells of so many (``number``). ``next``: at the next event of the kind
    ``event`` in the record, counted from the fault before. ``settled``: every process is in the view, it has the
    size that the job is to have, and has done a step. ``after_s`` seconds later.
    """

    moment: Moment
    number: int = 0
    event: str = ""
    after_s: float = 0.0

    def __str__(self) -> str:
        named = f"at next {self.event}" if self.moment == "next" else f"at {self.moment} {self.number}"
        after = f" after {self.after_s:g} s" if self.after_s else ""
        return f"{'once settled' if self.moment == 'settled' else named}{after}"


@dataclass(frozen=True)
class SignalPeers:
    """A signal to the members with these ``ranks``, at once; to the newest joiner without any."""

    verb: Verb
    ranks: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.verb} {'ranks ' + ','.join(map(str, self.ranks)) if self.ranks else 'joiner'}"


@dataclass(frozen=True)
class SignalHosts:
    """A signal to kungfu-run on these ``hosts``, at once; they are counted in the order of the job's list."""

    verb: Verb
    hosts: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.verb} hosts {','.join(map(str, self.hosts))}"


@dataclass(frozen=True)
class ResizeJob:
    """Ask for a size in peers."""

    size: int

    def __str__(self) -> str:
        return f"resize {self.size}"


@dataclass(frozen=True)
class Fault:
    """What happens when."""

    when: When
    what: SignalPeers | SignalHosts | ResizeJob

    def __str__(self) -> str:
        return f"{self.when} {self.what}"


def parse(text: str) -> tuple[Fault, ...]:
    """The faults that are written in `text`, in their order; ``#`` begins a comment.

    Raises ``UsageError`` with the words that are no fault.

    >>> [str(fault) for fault in parse("at step 40 kill rank 1; once settled after 0.5 s resize 2")]
    ['at step 40 kill ranks 1', 'once settled after 0.5 s resize 2']
    """
    lines = (line.partition("#")[0] for line in text.splitlines())
    written = (" ".join(words.split()) for line in lines for words in line.split(";"))
    return tuple(_fault(words) for words in written if words)


def _fault(words: str) -> Fault:
    found = _LINE.fullmatch(words)
    if found is None:
        raise UsageError(
            f"{words!r} is no fault; write a moment (at step N, at barrier N, at next EVENT, once settled; maybe after "
            f"N s), then resize N, or {', '.join(get_args(Verb))} and rank N, ranks N,M, joiner, host N or hosts N,M"
        )
    part: dict[str, Any] = found.groupdict()
    moment: Moment = part["moment"] or ("settled" if part["settled"] else "next")
    when = When(moment, int(part["number"] or 0), part["event"] or "", float(part["after"] or 0))
    verb: Verb | None = part["verb"]
    if verb is None:
        return Fault(when, ResizeJob(int(part["size"])))
    if part["hosts"]:
        return Fault(when, SignalHosts(verb, _numbers(part["hosts"])))
    return Fault(when, SignalPeers(verb, _numbers(part["ranks"] or "")))


def _numbers(words: str) -> tuple[int, ...]:
    return tuple(int(word) for word in words.split(",") if word)
