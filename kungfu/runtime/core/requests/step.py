"""What becomes of requests: a pure function of what was asked and of what the job did since.

``step(ledger, event, situation, now)`` gives the next ledger and what the leader is to be told. A request is

| state       | since                                                                                        |
| ----------- | -------------------------------------------------------------------------------------------- |
| accepted    | nothing spoke against it: the leader was told                                                |
| carried out | the view in force is as asked for, the leader says so, or training is over (``stop``)        |
| refused     | it was asked and did not fit; or later: the leader cannot, the job ended, a ``stop`` came    |
| expired     | nothing of that happened within the job's patience; the job may still come to it             |

One request at a time is under way; only ``stop`` does not wait for another, it takes its place. A repeated id changes
nothing, however long ago it was given. A view that is not yet as asked for may have another leader: it is told too, and
who was told before knows the demand by its id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kungfu.runtime.core.barrier_requests import ExternalRequest
from kungfu.runtime.core.requests.ledger import (
    Answer,
    Asked,
    Entry,
    Event,
    Heard,
    Ledger,
    Measured,
    Over,
    State,
    Tick,
    Viewed,
    current,
    noted,
    refusal_of_id,
)
from kungfu.runtime.core.requests.profiling import began, measured
from kungfu.runtime.core.requests.request import (
    Action,
    Checkpoint,
    Migrate,
    Profile,
    Request,
    Resize,
    ScaleIn,
    ScaleOut,
    Stop,
    in_words,
)
from kungfu.runtime.core.requests.situation import Situation, objection
from kungfu.runtime.core.view import View

__all__ = ["Outcome", "step"]

Outcome = tuple[Ledger, list[ExternalRequest]]


def step(ledger: Ledger, event: Event, situation: Situation, now: float) -> Outcome:
    """The next ledger, and the demands that the leader is to be told."""
    if isinstance(event, Asked):
        return _asked(ledger, event.request, situation, now)
    entry = current(ledger)
    if entry is None:
        return ledger, []
    match event:
        case Viewed():
            return _viewed(ledger, entry, situation, now)
        case Heard():
            return _heard(ledger, entry, event, situation)
        case Measured(steps) if entry.survey is not None and _is_met(entry.demand, situation.view):
            return _surveyed(ledger, replace(entry, survey=measured(entry.survey, steps)), situation, now)
        case Over() if isinstance(entry.request.action, Stop):
            return _ended(ledger, entry, "carried out", "training has ended", situation), []
        case Over():
            return _ended(ledger, entry, "refused", situation.over, situation), []
        case Tick() if now > entry.until:
            why = f"not carried out within {entry.until - entry.asked_at:.0f} s; the job may still come to it"
            return _ended(ledger, entry, "expired", why, situation), _homewards(entry)
        case _:
            return ledger, []


def _asked(ledger: Ledger, request: Request, situation: Situation, now: float) -> Outcome:
    if request.id in ledger.entries or refusal_of_id(ledger, request) is not None:
        return ledger, []
    version = situation.view.version if situation.view else 0
    refusal = objection(request, situation) or _in_its_way(ledger, request, now)
    if refusal:
        answer = Answer("refused", refusal, version)
        return noted(ledger, Entry(request, answer, answer, now, now)), []
    if (displaced := current(ledger)) is not None:
        ledger = _ended(ledger, displaced, "refused", "the job was told to stop", situation)
    return _accepted(ledger, request, situation, now)


def _in_its_way(ledger: Ledger, request: Request, now: float) -> str | None:
    other = current(ledger)
    if other is None or (isinstance(request.action, Stop) and not isinstance(other.request.action, Stop)):
        return None
    since = now - other.asked_at
    return f"{in_words(other.request.action)} is under way, asked for {since:.0f} s ago as {other.request.id!r}"


def _accepted(ledger: Ledger, request: Request, situation: Situation, now: float) -> Outcome:
    assert situation.view is not None
    size, action = situation.view.size, request.action
    survey = began(action, home=size) if isinstance(action, Profile) else None
    demand = _demand(request.id, action, size=size, hosts=situation.hosts)
    answer = Answer("accepted", "", situation.view.version)
    entry = Entry(request, answer, answer, now, now + situation.patience_s, demand, survey)
    ledger = replace(noted(ledger, entry), under_way=request.id)
    if survey is None and _is_met(demand, situation.view):
        ledger = _ended(ledger, entry, "carried out", "it was so already", situation)
    return ledger, [demand]  # in any case: a policy may be about to change what is so already


def _demand(name: str, action: Action, *, size: int, hosts: Mapping[str, int]) -> ExternalRequest:
    """What the leader is told first."""
    why = f"kungfu {in_words(action)}"
    match action:
        case Resize(target, keep):
            return ExternalRequest("resize", why, size=target, id=name, keep=keep)
        case ScaleOut(count, keep):
            return ExternalRequest("resize", why, size=size + count, id=name, keep=keep)
        case ScaleIn(peers, keep):
            going = tuple(dict.fromkeys(peers))
            return ExternalRequest("leave", why, size=size - len(going), peers=going, id=name, keep=keep)
        case Migrate(peer, host):
            return ExternalRequest("replace", why, size=size, peers=(peer,), id=name, host=hosts[host])
        case Checkpoint():
            return ExternalRequest("checkpoint", why, id=name)
        case Stop():
            return ExternalRequest("stop", why, id=name)
        case Profile(_, maximum, _, keep):
            return ExternalRequest("resize", why, size=maximum, id=f"{name}/0", keep=keep)


def _is_met(demand: ExternalRequest | None, view: View | None) -> bool:
    """Whether the view is as the demand asks for."""
    if view is None or demand is None:
        return False
    match demand.kind:
        case "resize":
            return view.size == demand.size
        case "leave" | "replace":
            return all(view.rank_of(peer) is None for peer in demand.peers)
        case _:
            return False


def _viewed(ledger: Ledger, entry: Entry, situation: Situation, now: float) -> Outcome:
    if not _is_met(entry.demand, situation.view):
        return ledger, [entry.demand] if entry.demand else []
    if entry.survey is not None:
        return _surveyed(ledger, entry, situation, now)
    return _ended(ledger, entry, "carried out", "", situation), []


def _heard(ledger: Ledger, entry: Entry, event: Heard, situation: Situation) -> Outcome:
    if entry.demand is None or entry.demand.id != event.demand:
        return ledger, []  # of an older request
    if event.refusal:
        return _ended(ledger, entry, "refused", event.refusal, situation), _homewards(entry)
    if entry.demand.kind != "checkpoint":
        return ledger, []  # the view, and the end of training, speak for themselves
    return _ended(ledger, entry, "carried out", event.result, situation), []


def _ended(ledger: Ledger, entry: Entry, state: State, reason: str, situation: Situation) -> Ledger:
    version = situation.view.version if situation.view else 0
    found = entry.survey.found if entry.survey else ()
    return replace(noted(ledger, replace(entry, newest=Answer(state, reason, version, found))), under_way=None)


# ---- a profile -------------------------------------------------------------------------------------------------------


def _surveyed(ledger: Ledger, entry: Entry, situation: Situation, now: float) -> Outcome:
    """A size of the survey was reached, or more steps of it were measured."""
    survey, demand = entry.survey, entry.demand
    assert survey is not None
    assert demand is not None
    newest = replace(entry.newest, points=survey.found)
    entry = replace(entry, newest=newest, until=now + situation.patience_s)
    if survey.goal != demand.size:
        demand = replace(demand, id=f"{entry.request.id}/{len(survey.found)}", size=survey.goal)
        entry = replace(entry, demand=demand)
        if not _is_met(demand, situation.view):
            return noted(ledger, entry), [demand]
    if survey.is_measured and _is_met(demand, situation.view):
        return _ended(ledger, entry, "carried out", "", situation), []
    return noted(ledger, entry), []


def _homewards(entry: Entry) -> list[ExternalRequest]:
    """Of a profile that does not come to its end: back to the size that the job had."""
    if entry.survey is None or entry.demand is None:
        return []
    why = "back to the size before a profile that did not come to its end"
    return [replace(entry.demand, why=why, size=entry.survey.home, id=f"{entry.request.id}/home")]
