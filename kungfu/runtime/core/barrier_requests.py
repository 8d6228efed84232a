"""What a barrier is asked for: by rules and hooks, and by somebody outside; and how several requests become one.

A barrier carries out one size and any peers by name: those that leave now, and those that leave when others have come
for them. ``merge`` chooses among the requests.

| asked beside each other                | becomes                                                                 |
| -------------------------------------- | ----------------------------------------------------------------------- |
| a size, peers to evict or to replace   | that size, without those peers                                          |
| peers of several rules                 | all of them; a peer that one evicts and another replaces leaves now     |
| two sizes                              | that of somebody outside, else the first one; the others are superseded |
| a size, peers let go from outside      | the peers leave and nobody comes for them; the size is superseded       |
| a size, peers replaced on a named host | the peers; the size is superseded, or others would run on that host     |
| peers replaced on a named host, others | those who go to the host; others to replace are superseded              |
| a size, peers that are taken away      | that size, without those peers                                          |

A rule between policies (``at_most``, ``at_least``, ``first``) chooses a size before it comes here, and two rules that
rescale without one are refused at attach: two sizes can only be a hook's and another's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from kungfu.runtime.core.terms import Keep, SettingChange

__all__ = [
    "NO_REQUESTS",
    "BarrierRequests",
    "ExternalRequest",
    "ExternalRequestKind",
    "Leave",
    "Merged",
    "RescaleRequest",
    "Superseded",
    "When",
    "merge",
]

When = Literal["now", "noticed", "replaced"]
ExternalRequestKind = Literal["resize", "leave", "notice", "replace", "checkpoint", "stop", "free slots"]

_WHEN: Mapping[ExternalRequestKind, When] = {"leave": "now", "notice": "noticed", "replace": "replaced"}


@dataclass(frozen=True)
class Leave:
    """Peers, by id, that a request lets go.

    Args:
        peers: Their ids.
        when: ``"now"``: at once, as far as the job's minimum allows. ``"noticed"``: at once, because their platform
            takes them away, which nothing can refuse. ``"replaced"``: when others have come to replace them.
        host: The number of the host on which the replacements shall run; ``None`` for any.
    """

    peers: tuple[int, ...]
    when: When
    host: int | None = None


@dataclass(frozen=True)
class RescaleRequest:
    """One change of the membership that a rule, a hook or somebody outside asks a barrier for.

    Args:
        size: The number of peers that the job shall have.
        keep: Which batch size stays when the number of peers changes.
        rule: The name of the rule, or the command from outside.
        step: The step after which it was asked.
        inputs: The values that the rule read, by name.
        won: The candidates whose target the rule took, where it was merged from several rules.
        lost: The candidates whose target it did not take.
        leave: The peers to let go; without them the request asks for a size only.
        max_global_batch: The most samples that the change may make of a step where the local batch stays; 0 for any
            number, ``None`` for the limit that is in force.
    """

    size: int
    keep: Keep
    rule: str
    step: int
    inputs: Mapping[str, float] = field(default_factory=dict)
    won: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    leave: Leave | None = None
    max_global_batch: int | None = None


@dataclass(frozen=True)
class ExternalRequest:
    """A request from outside the training graph: of a person, a scheduler, or a platform that takes a peer away.

    The agent passes it to the leader, which carries it out at a barrier. It differs from a `RescaleRequest` in that it
    may ask for something else than peers, and in its ``id``, by which the leader knows one that it was told before.

    | kind         | what                                                                        |
    | ------------ | --------------------------------------------------------------------------- |
    | `resize`     | the job shall have ``size`` peers                                            |
    | `leave`      | ``peers`` leave at once, down to the job's minimum, and nobody comes instead |
    | `notice`     | ``peers`` leave at once: they will be taken away; ``size`` with those to come |
    | `replace`    | ``peers`` leave when as many others are ready to take their places           |
    | `checkpoint` | the state is written down                                                    |
    | `stop`       | training ends on all peers                                                   |
    | `free slots` | what was refused may be asked for again: a host with free slots has come     |

    Args:
        kind: One of the table.
        why: The command in words; it stands where an event names the rule that decided.
        size: Peers, for `resize` and, with those to come, for the kinds that name ``peers``.
        peers: The ids of the peers that leave.
        id: Chosen by the sender; empty for a request that nobody asks about later.
        keep: The batch size that stays when the size changes. The default is the global one, since nobody outside may
            change what is trained without saying so.
        host: The number of the host on which the replacements shall run; ``None`` for any.
    """

    kind: ExternalRequestKind
    why: str
    size: int = 0
    peers: tuple[int, ...] = ()
    id: str = ""
    keep: Keep = "global_batch_size"
    host: int | None = None

    def rescale(self, *, step: int) -> RescaleRequest | None:
        """The change of the membership that this asks for after ``step``; ``None`` where the membership stays."""
        if self.kind in ("checkpoint", "stop", "free slots"):
            # The membership stays.
            return None
        leave = Leave(self.peers, _WHEN[self.kind], self.host) if self.kind in _WHEN else None
        return RescaleRequest(self.size, self.keep, self.why, step, leave=leave)


@dataclass(frozen=True)
class BarrierRequests:
    """All that one barrier is asked for.

    Args:
        rescale: What rules and hooks ask of the membership, in the order of the policies.
        external: What somebody outside asks of the membership; only the leader knows of it.
        settings: The settings that rules, or somebody outside, ask for; later ones take effect over earlier ones.
        checkpoints: The names of the rules or commands that ask for a checkpoint.
        free_slots: Whether a host with free slots has come: what was refused for want of one may be asked for again.
    """

    rescale: tuple[RescaleRequest, ...] = ()
    external: RescaleRequest | None = None
    settings: tuple[SettingChange, ...] = ()
    checkpoints: tuple[str, ...] = ()
    free_slots: bool = False

    def with_external(self, request: ExternalRequest, *, step: int) -> BarrierRequests:
        """These, and what somebody outside asks for after ``step``."""
        if request.kind == "stop":
            return replace(self, settings=(*self.settings, SettingChange("stop", math.nan, request.why, step)))
        if request.kind == "checkpoint":
            return replace(self, checkpoints=(*self.checkpoints, request.why))
        if request.kind == "free slots":
            return replace(self, free_slots=True)
        return replace(self, external=request.rescale(step=step))

    def after(self, unanswered: BarrierRequests) -> BarrierRequests:
        """These, and those of a barrier that broke before it could answer: of the membership the newer ones win."""
        return BarrierRequests(
            (*self.rescale, *unanswered.rescale),
            self.external or unanswered.external,
            (*unanswered.settings, *self.settings),
            (*unanswered.checkpoints, *self.checkpoints),
            self.free_slots or unanswered.free_slots,
        )


NO_REQUESTS = BarrierRequests()


@dataclass(frozen=True)
class Superseded:
    """A request that a barrier did not take up, and the rule, or the command from outside, that came before it."""

    request: RescaleRequest
    by: str


@dataclass(frozen=True)
class Merged:
    """The requests that a barrier takes up together, of which at most one, the first, asks for a size; and the rest."""

    taken: tuple[RescaleRequest, ...]
    superseded: tuple[Superseded, ...]

    def without_joiners(self, *, by: str) -> Merged:
        """Those that let peers leave now; what others would have to come for is superseded by the end of training."""
        now = tuple(one for one in self.taken if one.leave is not None and one.leave.when != "replaced")
        others = (Superseded(one, by) for one in self.taken if one not in now)
        return Merged(now, (*self.superseded, *others))


def merge(requests: Sequence[RescaleRequest], external: RescaleRequest | None = None) -> Merged:
    """Chooses among requests by the table of this module.

    Args:
        requests: Those of rules and hooks; of two sizes the earlier one wins.
        external: The one of somebody outside, which comes before all of them.

    Returns:
        Each request once, as taken or as superseded.

    >>> grow = RescaleRequest(4, "local_batch_size", "grow", 7)
    >>> merged = merge([grow, RescaleRequest(3, "local_batch_size", "hook", 7)])
    >>> merged.taken == (grow,), [(one.request.rule, one.by) for one in merged.superseded]
    (True, [('hook', 'grow')])
    """
    first = [] if external is None else [external]
    size = next((one for one in (*first, *requests) if one.leave is None), None)
    taken, superseded = list(first), list[Superseded]()
    for one in requests:
        before = _superseding(one, size=size, external=external)
        if before is None:
            # It can be carried out beside the others.
            taken.append(one)
        else:
            superseded.append(Superseded(one, before))
    taken.sort(key=lambda one: one.leave is not None)  # the one that asks for a size leads
    return Merged(tuple(taken), tuple(superseded))


def _superseding(
    request: RescaleRequest, *, size: RescaleRequest | None, external: RescaleRequest | None
) -> str | None:
    """The rule or command that supersedes a rule's request; ``None`` where it can be carried out beside the others."""
    leave = None if external is None else external.leave
    if external is not None and leave is not None:
        # Peers are let go from outside, or moved to a host: a size would bring others in their place, or to that host.
        if request.leave is None and (leave.host is not None or leave.when == "now"):
            return external.rule
        # New processes can be asked for on one host at a time.
        if request.leave is not None and request.leave.when == "replaced" and leave.host is not None:
            return external.rule
    # Of two sizes one wins.
    return size.rule if request.leave is None and size is not None and size is not request else None
