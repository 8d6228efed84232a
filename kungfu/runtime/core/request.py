"""Requests of rules, hooks, people, schedulers and agents to a job, and the merge of the requests of one barrier.

A `Request` is the requested change; `Asked` adds who requests it, when and why. Both stay unchanged until the barrier
that carries them out. A barrier can carry out one size, one batch, one learning rate, one content of each registered
value, a checkpoint and the end of training. It can also remove any number of named peers, now or once their
replacements have come. ``merge`` chooses among several requests.

| requested together                     | result                                                                  |
| -------------------------------------- | ----------------------------------------------------------------------- |
| a size, peers to evict or to replace   | that size, without those peers                                          |
| peers of several rules                 | all of them; a peer that is both evicted and replaced leaves now        |
| a size or peers from outside, twice    | the newer request, but one of a person before a size of the leading     |
|                                        | agent; a preemption notice is carried out along with it                 |
| two sizes                              | the size from outside, else the first; the others are superseded        |
| a size, peers evicted from outside     | the peers leave without replacements; the size is superseded            |
| a size, peers replaced on a named host | the peers; the size is superseded: its joiners would run on that host   |
| a size on a named host, peers replaced | the size; the replacements would run on that host                       |
| peers replaced on a named host, others | the replacements on that host; the others are superseded                |
| a size, peers given notice             | that size, without those peers                                          |
| two batches, two learning rates, two   | the first; the others are superseded                                    |
| averaging intervals, or two contents   |                                                                         |
| of one registered value                |                                                                         |
| several checkpoints                    | one checkpoint for all requests, under all their names                  |
| two checkpoints to restore             | the first; the others are superseded                                    |
| a checkpoint, and one to restore       | both: the new checkpoint holds the restored state                       |
| the end of training, and any request   | the end; peers that leave now still leave, and the requests that need   |
| that needs joiners                     | joiners are superseded                                                  |

The requests are tagged `msgspec` structs: agents store them, and the tag names the kind of request.

A combination of policies (``at_most``, ``at_least``, ``first``) chooses one size, batch or rate beforehand, and two
rules that set one quantity without a combination are refused at attach. So a second request for a quantity comes from
a hook or from outside.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from msgspec import Struct

from kungfu.runtime.core.size_limits import AS_STARTED, SizeLimits
from kungfu.runtime.settings import Limits

Keep = Literal["local_batch_size", "global_batch_size"]
RampUnit = Literal["steps", "samples"]
When = Literal["now", "noticed", "replaced"]

# The id of a request by the leading agent itself, which is never looked up later.
AGENT = "(agent)"


class Resize(Struct, frozen=True, tag=True):
    """A request to change the number of peers of the job.

    Attributes:
        size: The number of peers.
        keep: The batch size that stays constant when the size changes. The default is the global size, since a request
            from outside may change the training only explicitly.
        max_global_batch: The largest global batch that the change may set to keep the local batch size constant; 0 for
            no limit, ``None`` for the limit in force.
        hold_s: Seconds for which rules and hooks may then not change the size, infinite until a `Release`; ``None`` for
            no hold. From outside, a size without a hold ends an earlier hold.
        batch: The batch that comes into force once the job has this size; ``None`` for that of `keep`.
        rate: The learning rate that comes into force once the job has this size; ``None`` for the present one.
        host: The number of the host on which new peers start; ``None`` for any.
    """

    size: int
    keep: Keep = "global_batch_size"
    max_global_batch: int | None = None
    hold_s: float | None = None
    batch: SetBatch | None = None
    rate: SetRate | None = None
    host: int | None = None


class Leave(Struct, frozen=True, tag=True):
    """A request to remove peers from the job.

    Attributes:
        peers: The ids of the peers.
        when: ``"now"``: at once, as far as the job's minimum allows. ``"noticed"``: at once, because their platform
            preempts them; the job cannot refuse this. ``"replaced"``: once their replacements have come.
        size: The number of peers of the job once these peers have left and their replacements have come.
    """

    peers: tuple[int, ...]
    when: When = "now"
    size: int = 0
    keep: Keep = "global_batch_size"
    host: int | None = None


class ScaleOut(Struct, frozen=True, tag=True):
    """A request to add ``count`` peers, or as many as ``host`` has free slots; becomes a `Resize` in the leader."""

    count: int
    keep: Keep = "global_batch_size"
    host: str = ""


class Migrate(Struct, frozen=True, tag=True):
    """A request to replace ``peer`` by a new peer on ``host``; the leading agent converts this request to a `Leave`."""

    peer: int
    host: str


class Profile(Struct, frozen=True, tag=True):
    """A request to measure the throughput of each size from ``minimum`` to ``maximum``, over ``steps`` steps.

    With ``batches``, each size is measured at each of these global batches, in samples. The leading agent converts this
    request to one `Resize` for each size and one `SetBatch` for each batch, and returns to the initial size and batch.
    """

    minimum: int
    maximum: int
    steps: int
    keep: Keep = "global_batch_size"
    batches: tuple[int, ...] = ()


class SetLimits(Struct, frozen=True, tag=True):
    """New limits of the size; ``None`` keeps a limit. A size outside the limits changes to the nearest limit."""

    minimum: int | None = None
    maximum: int | None = None
    keep: Keep = "global_batch_size"

    def over(self, now: Limits) -> Limits:
        """The limits that replace the present ones."""
        return SizeLimits(self.minimum, self.maximum).within(now)


class Release(Struct, frozen=True, tag=True):
    """The end of a hold; the leading agent ends the hold, and informs the coordinator by a `SetLimits`."""


class SetBatch(Struct, frozen=True, tag=True):
    """A request for a new global batch size, in samples."""

    samples: float


class SetRate(Struct, frozen=True, tag=True):
    """A request for a new learning rate, at once or at the end of a linear ramp of ``over`` steps or samples."""

    rate: float
    over: float = 0.0
    unit: RampUnit = "steps"


class SetAverageInterval(Struct, frozen=True, tag=True):
    """A request to average models every ``every`` steps, in a run that averages models."""

    every: float


class SetNumber(Struct, frozen=True, tag=True):
    """A request to set the registered value ``name`` to a number; the decision of the barrier carries the number."""

    name: str
    value: float


class SetValue(Struct, frozen=True, tag=True):
    """A request to set a registered value of the program; each peer sets its own copy, without a message."""

    name: str
    value: Any


class SaveCheckpoint(Struct, frozen=True, tag=True):
    """A request for a checkpoint of the state, which replaces the checkpoint called ``name``; empty for no name."""

    name: str = ""


class RestoreCheckpoint(Struct, frozen=True, tag=True):
    """A request to restore model and optimizers from the checkpoint called ``name``; never sent in a message."""

    name: str


class StopTraining(Struct, frozen=True, tag=True):
    """A request to end training, on all peers."""


class Retry(Struct, frozen=True, tag=True):
    """A request to retry each request refused for lack of a slot, because a host with free slots has joined."""


Membership = Resize | Leave
Setting = SetBatch | SetRate | SetAverageInterval | SetNumber | StopTraining
# The requests that can come from outside the training graph, and are therefore sent in messages.
Request = Membership | ScaleOut | Migrate | Profile | SetLimits | Release | Setting | SaveCheckpoint | Retry
# All requests: those that a peer carries out without a message too.
AnyRequest = Request | SetValue | RestoreCheckpoint


@dataclass(frozen=True)
class Asked:
    """A request with its origin, time and reason.

    Args:
        what: The requested change.
        by: The name of the rule, or the command from outside as the leading agent describes it.
        step: The step after which the request was made; for a request from outside, the step before the barrier.
        inputs: The values that the rule read, by name.
        won: For a rule merged from the rules of several policies, the rules whose target was chosen.
        lost: The merged rules whose target was not chosen.
        id: The id that a requester outside the training graph chose: a request with a known id has no effect. `AGENT`
            for the leading agent itself; empty for a rule or a hook.
        if_view: The version of the view in which the request is valid; other views refuse it. ``None`` for any view.
        superseded_by: The rule, or the command from outside, that a barrier carried out instead; empty before the
            barrier, or if the request is carried out.
        number: The number that the leading agent assigns when it sends the request; repetitions keep the number.
        sizes: The limits of the size, and the hold, that are in force when the leading agent sends the request.
    """

    what: AnyRequest
    by: str = ""
    step: int = 0
    inputs: Mapping[str, float] = field(default_factory=dict)
    won: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    id: str = ""
    if_view: int | None = None
    superseded_by: str = ""
    number: int = field(default=0, compare=False)
    sizes: SizeLimits = AS_STARTED

    @property
    def is_outside(self) -> bool:
        """True if a person, a scheduler or an agent made the request, not a rule or a hook in the training graph."""
        return bool(self.id)


def changes_membership(asked: Asked) -> bool:
    """True if the request is for a size, or for peers to leave."""
    return isinstance(asked.what, Membership)


def settings_with_size(asked: Asked) -> tuple[Asked, ...]:
    """The batch and the rate that come with a requested size, each as a request of its own; empty for other requests.

    >>> [one.what for one in settings_with_size(Asked(Resize(4, batch=SetBatch(256.0)), "grow"))]
    [SetBatch(samples=256.0)]
    """
    what = asked.what
    given = (what.batch, what.rate) if isinstance(what, Resize) else ()
    return tuple(replace(asked, what=one) for one in given if one is not None)


def merge(requests: Iterable[Asked]) -> tuple[Asked, ...]:
    """Chooses among requests according to the table of this module.

    Args:
        requests: The requests of rules in the order of the policies; the requests from outside, with the newest first.

    Returns:
        Each request once. The requests to carry out come first, led by the request for a size, if there is one. In
        all others, ``superseded_by`` is set.

    >>> grow, rate = Asked(Resize(4), "grow", 7), Asked(SetRate(0.1), "rate", 7)
    >>> merged = merge([rate, grow, Asked(Resize(3), "hook", 7), Asked(SetRate(0.2), "hook", 7)])
    >>> merged[:2] == (grow, rate), [(one.by, one.superseded_by) for one in merged[2:]]
    (True, [('hook', 'grow'), ('hook', 'rate')])
    """
    ordered = sorted(requests, key=_precedence)
    first = dict[tuple[Any, ...], Asked]()  # the first request for each subject
    for one in ordered:
        first.setdefault(_subject(one), one)
    outside, stop = next(filter(_changes_from_outside, ordered), None), first.get((StopTraining,))

    def winner(one: Asked) -> Asked:
        before = _superseding(one, first=first[_subject(one)], outside=outside, stop=stop)
        # The superseding request may itself be superseded, as a size is by the end of training.
        return one if before is None else winner(before)

    merged = (one if (won := winner(one)) is one else replace(one, superseded_by=won.by) for one in ordered)
    return tuple(sorted(merged, key=_merge_order))


def _precedence(asked: Asked) -> tuple[bool, bool]:
    """The sort key before a merge: requests from outside come first, but a person's before a size of the agent."""
    return not asked.is_outside, asked.id == AGENT and isinstance(asked.what, Resize)


def _merge_order(asked: Asked) -> tuple[bool, ...]:
    """The sort key of a merge: requests to carry out come first, and among them a request for a size."""
    return bool(asked.superseded_by), not isinstance(asked.what, Resize), not changes_membership(asked)


def _changes_from_outside(asked: Asked) -> bool:
    """True for membership requests from outside, except preemption notices: these never conflict with others."""
    is_notice = isinstance(asked.what, Leave) and asked.what.when == "noticed"
    return asked.is_outside and changes_membership(asked) and not is_notice


def _subject(asked: Asked) -> tuple[Any, ...]:
    """The subject of a request (its type, and the name of a value); the first request on a subject has precedence."""
    what = asked.what
    return (SetValue, what.name) if isinstance(what, SetValue | SetNumber) else (type(what),)


def _superseding(one: Asked, *, first: Asked, outside: Asked | None, stop: Asked | None) -> Asked | None:
    """The request that supersedes ``one``; ``None`` if ``one`` can be carried out together with the others."""
    leave = outside.what if outside is not None and isinstance(outside.what, Leave) else None
    if _changes_from_outside(one) and one is not outside:
        # Of several requests from outside, the newest counts.
        return outside
    match one.what:
        case Resize():
            # A command removes peers or moves them to a host: a size would start joiners in their place or on the host.
            if leave is not None and (leave.host is not None or leave.when == "now"):
                return outside
            # The first of two sizes wins; training that ends needs no other size.
            return first if first is not one else stop
        # The first of two batches, rates, averaging intervals or contents of a value wins.
        case SetBatch() | SetRate() | SetAverageInterval() | SetNumber() | SetValue():
            return first if first is not one else None
        # All weights come from one checkpoint.
        case RestoreCheckpoint():
            return first if first is not one else None
        case Leave(when=when):
            # New processes can be requested on one host at a time; training that ends needs no joiners.
            named = getattr(outside.what, "host", None) if outside is not None else None
            elsewhere = outside if named is not None and one is not outside else None
            return elsewhere or stop if when == "replaced" else None
        # Any number of these can be carried out together.
        case SaveCheckpoint() | StopTraining() | ScaleOut() | Migrate() | Profile() | SetLimits() | Release() | Retry():
            return None


def in_words(request: AnyRequest) -> str:
    """Formats the request as a user would type it.

    >>> in_words(Leave((1, 3))), in_words(Migrate(2, "b")), in_words(Profile(1, 4, 50))
    ('scale-in 1 3', 'migrate 2 -> b', 'profile 1 4')
    >>> in_words(Resize(2, hold_s=600)), in_words(SetLimits(maximum=4)), in_words(Release())
    ('resize 2 --hold 600', 'resize --max 4', 'resize --release')
    """
    match request:
        case Resize(size, hold_s=hold_s):
            hold = "" if hold_s is None else " --hold" if hold_s == math.inf else f" --hold {hold_s:g}"
            return f"resize {size}{hold}"
        case SetLimits(minimum, maximum):
            given = {"--min": minimum, "--max": maximum}
            return " ".join(["resize", *(f"{name} {one}" for name, one in given.items() if one is not None)])
        case Release():
            return "resize --release"
        case ScaleOut(count, host=host):
            return f"scale-out {host or count}"
        case Leave(peers):
            return " ".join(["scale-in", *(str(peer) for peer in peers)])
        case Migrate(peer, host):
            return f"migrate {peer} -> {host}"
        case SaveCheckpoint(name):
            return f"checkpoint {name}".rstrip()
        case RestoreCheckpoint(name):
            return f"restore the checkpoint {name!r}"
        case Profile(minimum, maximum, batches=batches):
            return " ".join([f"profile {minimum} {maximum}", *(["--batches", *map(str, batches)] if batches else ())])
        case StopTraining():
            return "stop"
        case SetBatch(samples):
            return f"set the global batch size to {samples:g}"
        case SetRate(rate):
            return f"set the learning rate to {rate:g}"
        case SetAverageInterval(every):
            return f"average models every {every:g} steps"
        case SetNumber(name, value):
            return f"set the value {name!r} to {value:g}"
        case SetValue(name, value):
            return f"set the value {name!r} to {value!r}"
        case Retry():
            return "retry"
