"""Requests: what rules, hooks, people, schedulers and agents ask of a job, and the merge of those of one barrier.

A `Request` says what is requested, and `Asked` who asks, when and why; both stay the same from the mouth to the barrier
that carries them out. A barrier carries out one size, any peers by name (those that leave now, and those that leave
when others have come for them), one batch, one learning rate, one content of each registered value, a checkpoint, and
the end of training. ``merge`` chooses among several requests.

| asked beside each other                | becomes                                                                 |
| -------------------------------------- | ----------------------------------------------------------------------- |
| a size, peers to evict or to replace   | that size, without those peers                                          |
| peers of several rules                 | all of them; a peer that one evicts and another replaces leaves now     |
| a size or peers from outside, twice    | the newer one, which comes first; a notice is taken up beside it        |
| two sizes                              | that of somebody outside, else the first one; the others are superseded |
| a size, peers let go from outside      | the peers leave and nobody comes for them; the size is superseded       |
| a size, peers replaced on a named host | the peers; the size is superseded, or others would run on that host     |
| peers replaced on a named host, others | those who go to the host; others to replace are superseded              |
| a size, peers that are taken away      | that size, without those peers                                          |
| two batches, two learning rates, or    | the first one; the others are superseded                                |
| two contents of one registered value   |                                                                         |
| several checkpoints                    | one checkpoint, for all who asked                                       |
| the end of training, and anything that | the end; peers that leave now leave, and all that joiners would have to |
| joiners would have to come for         | come for is superseded                                                  |

The requests are tagged for `msgspec`: agents keep them, and one is told from the others by its name.

A rule between policies (``at_most``, ``at_least``, ``first``) chooses one size, batch or rate before it comes here, and
two rules that set one thing without such a rule are refused at attach: the second one is a hook's, or somebody's
outside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from msgspec import Struct

Keep = Literal["local_batch_size", "global_batch_size"]
RampUnit = Literal["steps", "samples"]
When = Literal["now", "noticed", "replaced"]

# The id of a request that the leading agent makes of itself, which nobody asks about later.
AGENT = "(agent)"


class Resize(Struct, frozen=True, tag=True):
    """A number of peers that the job should have.

    Args:
        size: Peers.
        keep: The batch size that stays when the size changes. The default is the global one, since nobody outside may
            change what is trained without saying so.
        max_global_batch: The most samples that the change may make of a step where the local batch stays; 0 for any
            number, ``None`` for the limit that is in force.
    """

    size: int
    keep: Keep = "global_batch_size"
    max_global_batch: int | None = None


class Leave(Struct, frozen=True, tag=True):
    """Peers, by id, that should leave.

    Args:
        peers: Their ids.
        when: ``"now"``: at once, as far as the job's minimum allows. ``"noticed"``: at once, because their platform
            takes them away, which nothing can refuse. ``"replaced"``: when others have come to replace them.
        size: The number of peers that the job has once they have left and their replacements have come.
        keep: The batch size that stays when the size changes.
        host: The number of the host on which the replacements run; ``None`` for any.
    """

    peers: tuple[int, ...]
    when: When = "now"
    size: int = 0
    keep: Keep = "global_batch_size"
    host: int | None = None


class ScaleOut(Struct, frozen=True, tag=True):
    """A number of peers that the job should have more than now; the leading agent makes a `Resize` of it."""

    count: int
    keep: Keep = "global_batch_size"


class Migrate(Struct, frozen=True, tag=True):
    """A new peer on the host of a name in place of ``peer``; the leading agent makes a `Leave` of it."""

    peer: int
    host: str


class Profile(Struct, frozen=True, tag=True):
    """The throughput of every size from ``minimum`` to ``maximum``, measured over ``steps`` steps each.

    The leading agent makes a `Resize` of it for each size, and one back to the size before.
    """

    minimum: int
    maximum: int
    steps: int
    keep: Keep = "global_batch_size"


class SetBatch(Struct, frozen=True, tag=True):
    """Another global batch size, in samples."""

    samples: float


class SetRate(Struct, frozen=True, tag=True):
    """Another learning rate, at once or at the end of a straight line of ``over`` steps or samples."""

    rate: float
    over: float = 0.0
    unit: RampUnit = "steps"


class SetValue(Struct, frozen=True, tag=True):
    """Another content of a registered value of the program; it is set on every peer, and travels in no message."""

    name: str
    value: Any


class SaveCheckpoint(Struct, frozen=True, tag=True):
    """A checkpoint of the state."""


class StopTraining(Struct, frozen=True, tag=True):
    """The end of training, on all peers."""


class Retry(Struct, frozen=True, tag=True):
    """Another try at requests that were refused for want of a slot: a host with free slots has come."""


Membership = Resize | Leave
Setting = SetBatch | SetRate | StopTraining
# What can be asked from outside the training graph, and so travels in messages.
Request = Membership | ScaleOut | Migrate | Profile | Setting | SaveCheckpoint | Retry


@dataclass(frozen=True)
class Asked:
    """A request, with who requests it, when and why.

    Args:
        what: The request.
        by: The name of the rule, or the command from outside, which the leading agent gives.
        step: The step after which it was asked; of a request from outside the one before the barrier.
        inputs: The values that the rule read, by name.
        won: The candidates whose target the rule took, where it was merged from several rules.
        lost: The candidates whose target it did not take.
        id: Chosen by who asks from outside the training graph: a repeated one is not carried out again. `AGENT` for
            the leading agent itself; empty for a rule and a hook.
        if_view: The version of the view in which the request holds; in any other one it is refused. ``None`` for any.
        superseded_by: The rule, or the command from outside, that a barrier carried out in its place; empty if the
            barrier carries it out, and before.
        number: Counted by the leading agent where it sends one to the coordinator: what is sent again keeps its number.
    """

    what: Request | SetValue
    by: str = ""
    step: int = 0
    inputs: Mapping[str, float] = field(default_factory=dict)
    won: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    id: str = ""
    if_view: int | None = None
    superseded_by: str = ""
    number: int = field(default=0, compare=False)

    @property
    def is_outside(self) -> bool:
        """True if a person, a scheduler or an agent asks, and not a rule or a hook in the training graph."""
        return bool(self.id)


def changes_membership(asked: Asked) -> bool:
    """True if a barrier is asked for a size, or to let peers go."""
    return isinstance(asked.what, Membership)


def merge(requests: Iterable[Asked]) -> tuple[Asked, ...]:
    """Chooses among requests by the table of this module.

    Args:
        requests: In the order of the policies; of those from outside the newest one first.

    Returns:
        Each request once. Those that are taken up come first, led by the one that requests a size, if one does; the
        others say what superseded them.

    >>> grow, rate = Asked(Resize(4), "grow", 7), Asked(SetRate(0.1), "rate", 7)
    >>> merged = merge([rate, grow, Asked(Resize(3), "hook", 7), Asked(SetRate(0.2), "hook", 7)])
    >>> merged[:2] == (grow, rate), [(one.by, one.superseded_by) for one in merged[2:]]
    (True, [('hook', 'grow'), ('hook', 'rate')])
    """
    ordered = sorted(requests, key=lambda one: not one.is_outside)
    first = dict[tuple[Any, ...], Asked]()  # of those of which a barrier carries out one
    for one in ordered:
        first.setdefault(_subject(one), one)
    outside, stop = next(filter(_changes_from_outside, ordered), None), first.get((StopTraining,))

    def winner(one: Asked) -> Asked:
        before = _superseding(one, first=first[_subject(one)], outside=outside, stop=stop)
        # What comes before it may be superseded itself, as a size is by the end of training.
        return one if before is None else winner(before)

    merged = (one if (won := winner(one)) is one else replace(one, superseded_by=won.by) for one in ordered)
    return tuple(sorted(merged, key=_rank_among_taken))


def _rank_among_taken(asked: Asked) -> tuple[bool, ...]:
    """The order of a merge: what is taken up before the rest, and the one that requests a size before others."""
    return bool(asked.superseded_by), not isinstance(asked.what, Resize), not changes_membership(asked)


def _changes_from_outside(asked: Asked) -> bool:
    """True if somebody outside wants to change the membership; a notice is a fact, and stands beside that."""
    is_notice = isinstance(asked.what, Leave) and asked.what.when == "noticed"
    return asked.is_outside and changes_membership(asked) and not is_notice


def _subject(asked: Asked) -> tuple[Any, ...]:
    """The thing that a request requests, of which a barrier can have one."""
    what = asked.what
    return (SetValue, what.name) if isinstance(what, SetValue) else (type(what),)


def _superseding(one: Asked, *, first: Asked, outside: Asked | None, stop: Asked | None) -> Asked | None:
    """The request that supersedes this one; ``None`` if it can be carried out beside the others.

    Args:
        one: The request.
        first: The first one that requests the same thing.
        outside: The newest of what somebody outside asks of the membership, notices aside.
        stop: The request that ends training.
    """
    leave = outside.what if outside is not None and isinstance(outside.what, Leave) else None
    if _changes_from_outside(one) and one is not outside:
        # Of what is asked from outside the newest counts.
        return outside
    match one.what:
        case Resize():
            # Peers are let go from outside, or moved to a host: a size would bring others in their place, or there.
            if leave is not None and (leave.host is not None or leave.when == "now"):
                return outside
            # Of two sizes one wins; training that ends needs no other size.
            return first if first is not one else stop
        # Of two batches, rates or contents of a value one wins.
        case SetBatch() | SetRate() | SetValue():
            return first if first is not one else None
        case Leave(when=when):
            # New processes can be asked for on one host at a time; nobody comes to training that ends.
            elsewhere = outside if leave is not None and leave.host is not None and one is not outside else None
            return elsewhere or stop if when == "replaced" else None
        # Any number of these can be carried out together.
        case SaveCheckpoint() | StopTraining() | ScaleOut() | Migrate() | Profile() | Retry():
            return None


def in_words(request: Request | SetValue) -> str:
    """A request as a person would type it.

    >>> in_words(Leave((1, 3))), in_words(Migrate(2, "b")), in_words(Profile(1, 4, 50))
    ('scale-in 1 3', 'migrate 2 -> b', 'profile 1 4')
    """
    match request:
        case Resize(size):
            return f"resize {size}"
        case ScaleOut(count):
            return f"scale-out {count}"
        case Leave(peers):
            return " ".join(["scale-in", *(str(peer) for peer in peers)])
        case Migrate(peer, host):
            return f"migrate {peer} -> {host}"
        case SaveCheckpoint():
            return "checkpoint"
        case Profile(minimum, maximum):
            return f"profile {minimum} {maximum}"
        case StopTraining():
            return "stop"
        case SetBatch(samples):
            return f"set the global batch size to {samples:g}"
        case SetRate(rate):
            return f"set the learning rate to {rate:g}"
        case SetValue(name, value):
            return f"set the value {name!r} to {value!r}"
        case Retry():
            return "retry"
