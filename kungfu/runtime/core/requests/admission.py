"""Admission of requests: accepts a request, or returns the reason why the job cannot carry it out at present."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from kungfu.runtime.core import request
from kungfu.runtime.core.view import View
from kungfu.runtime.settings import Limits

Scaling = Literal["elastic", "inelastic"]
MOST_STEPS = 1_000_000
MOST_PEERS = 1 << 30
MOST_SAMPLES = 1 << 53
MOST_HOLD_S = 1e9  # thirty years, whose end every calendar has


@dataclass(frozen=True)
class AdmissionContext:
    """The agent's knowledge of its job when a request arrives."""

    view: View | None  # the view in force; ``None`` before the first view
    limits: Limits  # the minimum and the maximum number of peers in force
    scaling: Scaling  # "elastic" if peers may be changed from outside
    hosts: Mapping[str, int]  # the numbers of the hosts that have an agent, by name
    patience_s: float  # seconds after which a request expires
    end_reason: str = ""  # the reason why the job has ended or is ending; empty for a job that continues
    batch: int | None = None  # the global batch size, in samples; ``None`` before steps were measured
    free: Mapping[int, int] = field(default_factory=dict)  # the free slots of the hosts, by number
    most: int = MOST_PEERS  # the largest maximum: that of kungfu-run, for which the processes of the job are made
    held_size: int | None = None  # the size at which a person holds the job; ``None`` without a hold
    time: float = 0.0  # the time of day on this host, in seconds since 1970: shown to people, and never compared


def refusal_of(asked: request.Asked, context: AdmissionContext) -> str | None:
    """The reason to refuse this request, regardless of other requests; ``None`` if the job can accept it.

    >>> from kungfu.runtime.core.view import Peer
    >>> two = View(3, (Peer(0, "a:1"), Peer(4, "a:2")))
    >>> leave = request.Asked(request.Leave((1,)), id="r")
    >>> refusal_of(leave, AdmissionContext(two, Limits(1, 4), "elastic", {"a": 0}, 60.0))
    'peer 1 is not in view 3, whose peers are 0 and 4'
    """
    if context.end_reason:
        # The job has ended or is about to end.
        return context.end_reason
    if context.view is None:
        # The first peers are getting ready.
        return "the job does not train yet: its first peers are getting ready; ask again in a moment"
    version = context.view.version
    if asked.if_view is not None and asked.if_view != version:
        # The sender based its decision on a view that is no longer in force.
        return f"the job is in view {version}, not in view {asked.if_view} as the request presumes; look again"
    # An inelastic job accepts only checkpoints and stops.
    if context.scaling == "inelastic" and not isinstance(asked.what, request.SaveCheckpoint | request.StopTraining):
        return "the job was declared inelastic (kungfu-run --inelastic): its peers may not be changed from outside"
    return _refusal_of_what(asked.what, context.view, context)


def _refusal_of_what(what: request.AnyRequest, view: View, context: AdmissionContext) -> str | None:
    match what:
        case request.Resize(size, keep, hold_s=hold_s):
            return _not_to_hold(hold_s) or _out_of_reach(size, keep, context)
        case request.SetLimits():
            return _cannot_limit(what, context)
        case request.ScaleOut(_, keep, host) if host:
            is_full = context.free.get(context.hosts.get(host, -1), 0) < 1
            no_slot = (
                f"{host} has no free slot; name a host that has one, or give a number of peers" if is_full else None
            )
            size = max(view.size + 1, size_with(host, view, context))
            return _unknown_host(host, context) or no_slot or _out_of_reach(size, keep, context)
        case request.ScaleOut(count) if count < 1:
            return f"scale-out by {count}: give how many peers shall come, 1 or more"
        case request.ScaleOut(count, keep):
            return _out_of_reach(view.size + count, keep, context)
        case request.Leave(peers, "now"):
            return _cannot_leave(peers, view, context.limits)
        case request.Migrate(peer, host):
            return _not_in_view((peer,), view) or _no_such_host(host, context)
        case request.Profile():
            return _cannot_profile(what, context)
        case request.SaveCheckpoint() | request.StopTraining() | request.Release():
            return None
        case _:
            return f"{request.in_words(what)!r} may not be asked for from outside the training graph"


def _out_of_limits(size: int, limits: Limits) -> str | None:
    if limits.clip(size) == size:
        return None
    return f"a size of {size}: this job takes {limits.minimum} to {limits.maximum} (kungfu-run --min, --max)"


def _out_of_reach(size: int, keep: request.Keep, context: AdmissionContext) -> str | None:
    """The reason why the job cannot have this size, or ``None``; a constant batch needs a sample for each peer."""
    batch = context.batch
    if keep == "global_batch_size" and batch is not None and size > batch:
        # Some peers would have no sample.
        return (
            f"a batch of {batch} samples cannot be shared by {size} peers, and it is to stay; "
            "--keep local_batch_size lets it grow with them"
        )
    return _out_of_limits(size, context.limits)


def _not_to_hold(hold_s: float | None) -> str | None:
    if hold_s is None or 0 < hold_s <= MOST_HOLD_S or hold_s == math.inf:
        return None
    return f"a hold of {hold_s:g} s: give 0 < SECONDS <= {MOST_HOLD_S:g}, or no number for a hold until it is released"


def _cannot_limit(asked: request.SetLimits, context: AdmissionContext) -> str | None:
    """The reason why the job cannot have these limits, or cannot reach the nearest size within them."""
    if asked.minimum is None and asked.maximum is None:
        return "neither a minimum nor a maximum was given"
    limits, held = asked.over(context.limits), context.held_size
    minimum, maximum = limits.minimum, limits.maximum
    if not 1 <= minimum <= maximum:
        return f"a size from {minimum} to {maximum}: give 1 <= --min <= --max"
    if maximum > context.most:
        return f"a maximum of {maximum}: this job was started for up to {context.most} peers (kungfu-run --max)"
    if held is not None and limits.clip(held) != held:
        return f"a size from {minimum} to {maximum}: the job is held at {held}; end the hold (kungfu resize --release)"
    if context.view is None or minimum <= context.view.size:
        return None
    return _out_of_reach(minimum, asked.keep, replace(context, limits=limits))


def _cannot_leave(peers: tuple[int, ...], view: View, limits: Limits) -> str | None:
    going = set(peers)
    if not going:
        return "no peer was named that shall leave"
    left = view.size - len(going)
    if strange := _not_in_view(peers, view):
        return strange
    if left < limits.minimum:
        many = f"{len(going)} of {view.size} peers" if view.size > 1 else "the only peer"
        return f"without {many} the job would have {left}; it takes no fewer than {limits.minimum} (kungfu-run --min)"
    return None


def _not_in_view(peers: tuple[int, ...], view: View) -> str | None:
    strange = [str(peer) for peer in peers if view.rank_of(peer) is None]
    if not strange:
        return None
    members = " and ".join(filter(None, [", ".join(str(peer) for peer in view.ids[:-1]), str(view.ids[-1])]))
    verb = "is" if len(strange) == 1 else "are"
    noun = "peer" if len(strange) == 1 else "peers"
    whose = f"whose peers are {members}" if view.size > 1 else f"whose only peer is {members}"
    return f"{noun} {', '.join(strange)} {verb} not in view {view.version}, {whose}"


def _is_full(host: str, context: AdmissionContext) -> str | None:
    if context.free.get(context.hosts[host], 0) > 0:
        return None
    return f"{host} has no free slot; name a host that has one, or give a number of peers"


def size_with(host: str, view: View, context: AdmissionContext) -> int:
    """The size of the job with a peer in each free slot of a host, as far as the job's maximum allows."""
    return min(view.size + context.free.get(context.hosts.get(host, -1), 0), context.limits.maximum)


def _unknown_host(host: str, context: AdmissionContext) -> str | None:
    if host in context.hosts:
        return None
    names = [" alias ".join(_names_of(one, context)) for one in sorted(set(context.hosts.values()))]
    where = f"all its peers are on one host, {names[0]}" if len(names) == 1 else f"they run on {', '.join(names)}"
    return f"no agent of this job runs on {host!r}: {where}"


def _no_such_host(host: str, context: AdmissionContext) -> str | None:
    if unknown := _unknown_host(host, context):
        return unknown
    if context.free.get(context.hosts[host], 0) < 1:
        return f"{host} has no free slot for a peer to join before the other leaves; name a host that has one"
    return None


def _names_of(number: int, context: AdmissionContext) -> list[str]:
    return sorted(name for name, one in context.hosts.items() if one == number)


def _cannot_profile(action: request.Profile, context: AdmissionContext) -> str | None:
    if not 1 <= action.minimum <= action.maximum:
        return f"sizes from {action.minimum} to {action.maximum}: give 1 <= MIN <= MAX"
    if not 1 <= action.steps <= MOST_STEPS:
        return f"{action.steps} steps of each size: give 1 to {MOST_STEPS}"
    return (
        _out_of_limits(action.minimum, context.limits)
        or (_cannot_set_batches(action, context) if action.batches else None)
        or _out_of_reach(action.maximum, action.keep, context)
    )


def _cannot_set_batches(action: request.Profile, context: AdmissionContext) -> str | None:
    given, batches = ", ".join(map(str, action.batches)), action.batches
    if len({*batches}) < len(batches) or not all(action.maximum <= one <= MOST_SAMPLES for one in batches):
        return f"batches of {given}: give different numbers of samples, at least one for each of {action.maximum} peers"
    if action.keep != "global_batch_size":
        return f"batches of {given}, and --keep {action.keep}: give one of the two"
    if context.batch is None:
        return "the batch of the job, to which a profile of several batches returns, is not measured yet; ask again"
    return None
