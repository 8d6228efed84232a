"""The events of a job, one type for each kind of line in ``events.jsonl``.

The class says what happened, its tag is the word under ``event`` in the file, and its fields are the keys of the line.
`kungfu.event_log.codec` writes and reads the lines, and ``docs/events.schema.json`` is their JSON schema. A kind or a
key that is added, removed or changes its meaning needs another `RECORD_VERSION`; where all that came since an older
version may be missing, the older one stays in `READABLE_VERSIONS`. Version 2 has more kinds than version 1, of phases,
processes on standby, and joiners that read to where the others are, and signals that are no number; and decisions say
more of peers, budgets and hooks.

Peers are given by their ids, which never change in a job, unless a field says rank. Times are seconds since 1970,
durations are seconds. ``None`` is what is not known.
"""

# ruff: noqa: F403, F405 - a new kind of event is named where it is defined and in the union alone
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kungfu.event_log.change_events import *
from kungfu.event_log.job_events import *
from kungfu.event_log.logged_event import *
from kungfu.event_log.peer_events import *
from kungfu.event_log.rule_events import *

AnyEvent = (
    RecordEvent | GapEvent | UnrecordedEvent
    | StartedEvent | EndedEvent | FailedEvent | HostJoinedEvent | HostNoticedEvent | HostLeftEvent | HostLostEvent
    | LeaderEvent | DevicesEvent | StandbyEvent | RequestEvent
    | SpawnedEvent | CaughtUpEvent | OfferedEvent | MissingEvent | DismissedEvent | NoticedEvent | UnheardEvent
    | PeerEndedEvent | ProgramEndedEvent | LostEvent | BrokenEvent | RegroupingEvent | ViewEvent | PhaseEvent
    | TookOverEvent | FinishedEvent | LateEvent
    | MachinesDifferEvent | RoundedEvent | DissentEvent | ShadowDissentEvent | NotFiniteEvent | FiniteAgainEvent
    | UndefinedEvent
    | RulesEvent | DecisionEvent | SupersededEvent | CalledEvent | SetEvent | ShadowEvent | HeldEvent | RefusedEvent
    | RescaleEvent | RecoveredEvent | SpanEvent | CheckpointEvent
)  # fmt: skip


def of_topics(events: Iterable[LoggedEvent], *topics: Topic) -> list[Any]:
    """The events of some topics, in their order; those of one topic have the same fields."""
    return [event for event in events if event.topic in topics]
