"""The present of a job in words: its newest change with the reason, and the peers for which it waits."""

from __future__ import annotations

from kungfu.event_log.job import Job
from kungfu.event_log.values import counted, rough_duration


def decision_words(job: Job) -> str:
    """The newest decision, refusal or membership change of a job, and the values behind it; empty before the first.

    >>> from kungfu.event_log.events import DecisionEvent
    >>> event = DecisionEvent(step=50, rule="gns_batch", saw={"noise_scale": 116.0}, size=2, asked=4, done="")
    >>> decision_words(Job().after(event))
    'step 50, gns_batch: 2 -> 4 peers, under way (noise scale 116)'
    """
    change = job.change
    if change is None:
        return ""
    behind = (one for one in reversed(job.decisions) if change is one.event or change is one.outcome)
    decision = next(behind, None)
    if decision is None:
        return change.brief()
    saw, is_open = decision.event.seen("step"), decision.is_open and job.ending is None
    return change.brief() + (", under way" if is_open else "") + (f" ({saw})" if saw else "")


def waiting_words(job: Job, *, now: float) -> str:
    """The peers for which a job waits, with the longest time; empty if it waits for none.

    Args:
        now: The present time, in seconds since 1970.

    >>> from kungfu.event_log.events import SpawnedEvent
    >>> started = Job().after(SpawnedEvent(peer=2, pid=7, time=10.0)).after(SpawnedEvent(peer=3, pid=8, time=12.0))
    >>> waiting_words(started, now=50.0)
    '2 starting for 40 s'
    """
    if job.ending is not None:
        return ""
    joiners, words = [job.peer(peer) for peer in job.joiners], list[str]()
    for state in ("starting", "ready"):
        since = [one.since for one in joiners if one.state == state]
        known = [time for time in since if time is not None]
        lasting = f" for {rough_duration(max(0.0, now - min(known)))}" if known else ""
        words += [f"{len(since)} {state}{lasting}"] if since else []
    # A replacement that was not started yet.
    if (missing := job.awaited - job.size - len(joiners)) > 0:
        words.append(f"{counted(missing, 'replacement')} to come")
    return ", ".join(words)
