"""Texts about the results of requests at a barrier."""

from __future__ import annotations

from kungfu.errors import InternalError
from kungfu.event_log.values import counted, peers_named
from kungfu.runtime.api import Asked, BarrierResult, Leave, Resize, Terms, View


def describe_decision(result: BarrierResult, asked: Asked) -> str:
    """Describes the result of one request at a barrier, or of one part of a request that several rules share.

    The description also names parts of the request that were not carried out, for example because of the job's limits.
    """
    match asked.what:
        case Resize():
            return _of_size(result, asked.what)
        case Leave():
            return _of_peers(result, asked.what)
    raise InternalError(f"{asked.by} asks for no size and no peers: {asked.what}")


def _of_size(result: BarrierResult, request: Resize) -> str:
    assert result.before is not None
    size, after, target = result.before.view.size, result.after.view.size, result.after.terms.target_size
    parts = []
    if after < size:
        parts.append(f"{counted(size - after, 'peer')} {_leave(size - after)} at once")
    if result.after.slow:
        fractions = " and ".join(f"{speed:.2f}" for speed in result.after.slow.values())
        parts.append(f"{peers_named([*result.after.slow])} left first: {fractions} of the median speed")
    if target > after:
        more = target - after
        parts.append(f"{more} more {_are(more)} being prepared while training continues")
    if (surplus := _dismissed(result)) > 0:
        parts.append(f"{counted(surplus, 'peer')} on {'their' if surplus > 1 else 'its'} way {_are(surplus)} dismissed")
    has_settings = request.batch is not None or request.rate is not None
    if has_settings and target > after:
        parts.append("what else it asks for comes into force with them")
    reached = target or after
    if result.after.terms.refused_size == request.size and reached != request.size:
        parts.append(f"{request.size} is out of reach")
    return "; ".join(parts) or (f"the size stays {size}" if has_settings else f"nothing: the size stays {size}")


def _of_peers(result: BarrierResult, leave: Leave) -> str:
    assert result.before is not None
    ids, terms = result.before.view.ids, result.after.terms
    named = [peer for peer in ids if peer in leave.peers]
    gone = [peer for peer in named if peer not in result.after.view.ids]
    replaced = [peer for peer in named if peer not in gone and peer in terms.leaving]
    kept = [peer for peer in named if peer not in (*gone, *replaced)]
    parts = []
    if gone:
        parts.append(f"{counted(len(gone), 'peer')} {_leave(len(gone))} at once")
    if replaced:
        parts.append(f"{counted(len(replaced), 'peer')} will be replaced; others are being prepared")
    if kept:
        parts.append(f"{peers_named(kept)} {'stays' if len(kept) == 1 else 'stay'}: no fewer peers may be left")
    return "; ".join(parts) or f"nothing: the size stays {len(ids)}"


def _dismissed(result: BarrierResult) -> int:
    """The number of joiners that are no longer needed."""
    assert result.before is not None
    before, after = result.before, result.after
    joined = sum(before.view.rank_of(peer) is None for peer in after.view.ids)
    return _coming(before.view, before.terms) - joined - _coming(after.view, after.terms)


def _coming(view: View, terms: Terms) -> int:
    return terms.target_size - view.size + len(terms.leaving) if terms.target_size else 0


def _are(count: int) -> str:
    return "are" if count > 1 else "is"


def _leave(count: int) -> str:
    return "leave" if count > 1 else "leaves"
