"""The events of a job, one type for each kind of line in ``events.jsonl``.

The tag of a class is the value of ``event`` in the file, and the fields of the class are the other keys of the line.
`kungfu.event_log.codec` writes and reads the lines, and ``docs/events.schema.json`` is their JSON schema. Adding,
removing or redefining a kind or a key requires another `RECORD_VERSION`; records of other versions are refused.

Peers are identified by their ids, which never change within a job; only fields named after ranks have ranks. Times are
seconds since 1970, durations are in seconds, and ``None`` means unknown.
"""

# ruff: noqa: F403, F405 - each module names its public types in `__all__`
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
    | StartedEvent | EndedEvent | FailedEvent | RestartedEvent
    | HostJoinedEvent | HostNoticedEvent | HostLeftEvent | HostLostEvent | LeaderEvent
    | DevicesEvent | StoreEvent | RequestEvent | SizeLimitsEvent | SpareEvent
    | SpawnedEvent | CaughtUpEvent | OfferedEvent | MissingEvent | DismissedEvent | NoticedEvent | UnheardEvent
    | PeerEndedEvent | ProgramEndedEvent | LostEvent | BrokenEvent | RegroupingEvent | ViewEvent | PhaseEvent
    | TookOverEvent | FinishedEvent | LateEvent
    | MachinesDifferEvent | RoundedEvent | DissentEvent | ShadowDissentEvent | NotFiniteEvent | FiniteAgainEvent
    | UndefinedEvent
    | RulesEvent | DecisionEvent | SupersededEvent | CalledEvent | SetEvent | ShadowEvent | HeldEvent | RefusedEvent
    | RescaleEvent | RecoveredEvent | SpanEvent | CheckpointEvent | RestoredEvent
)  # fmt: skip


def of_topics(events: Iterable[LoggedEvent], *topics: Topic) -> list[Any]:
    """The events of the given topics, in order; a list of ``Any``, as the topics determine the events' fields."""
    return [event for event in events if event.topic in topics]
