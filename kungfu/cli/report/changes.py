"""How the membership changed, by a rescale or by the loss of peers, and where the time of each change went."""

from __future__ import annotations

from typing import Literal

from kungfu.cli.report.values import counted, duration, figure, label, peers_named
from kungfu.event_log.events import RecoveredEvent, RescaleEvent
from kungfu.event_log.job import Job

_BESIDE = ("spawn_s", "ready_s")
_STOPPED = ("barrier_s", "attach_s", "state_s")
_AFTER = "first_step_s"

MembershipChange = RescaleEvent | RecoveredEvent


def phase_of(part: str) -> Literal["beside", "stopped", "after"]:
    """When a part of a change took place: ``beside`` training, while it ``stopped``, or ``after`` the stop.

    A record of a later version may name parts that are not known here: a stop's parts must add up to it.

    >>> [phase_of(part) for part in ("spawn_s", "state_s", "first_step_s", "one_of_a_later_version_s")]
    ['beside', 'stopped', 'after', 'stopped']
    """
    return "beside" if part in _BESIDE else "after" if part == _AFTER else "stopped"


def _parts(event: MembershipChange, phase: Literal["beside", "stopped"]) -> str:
    """The parts of a change in one phase, each with its time, first those that are known by name; empty for none."""
    names = dict.fromkeys((*_BESIDE, *_STOPPED, *event.parts))
    parts = {name: event.parts[name] for name in names if name in event.parts and phase_of(name) == phase}
    return ", ".join(f"{label(name.removesuffix('_s'))} {duration(took)}" for name, took in parts.items())


def _stopped(event: MembershipChange) -> str:
    """The parts of the stop, in brackets."""
    parts = _parts(event, "stopped")
    return f" ({parts})" if parts else ""


def joined_and_left(event: RescaleEvent) -> str:
    """Which peers came and which went in a rescale."""
    came = [f"{peers_named(event.joined)} joined"] if event.joined else []
    went = [f"{peers_named(event.left)} left"] if event.left else []
    return ", ".join(came + went)


def rescaled(event: RescaleEvent) -> tuple[str, list[str]]:
    """A rescale as a headline with its details: what decided it, who came and went, and how long it took."""
    peers, made_ready = joined_and_left(event), _parts(event, "beside")
    sizes = f"{figure(event.before)} -> {counted(event.after, 'peer')}"
    decided = [] if event.decided_at is None else [_decided(event.rule, event.decided_at, event.step)]
    beside = [f"made ready while training went on: {made_ready}"] if made_ready else []
    batch = counted(event.global_batch_size, "sample")
    return f"step {figure(event.step)}: {sizes}{f'; {peers}' if peers else ''}", [
        *decided,
        *beside,
        f"training stood still for {duration(event.stop_s)}{_stopped(event)}",
        f"the first step after it took {duration(event.parts.get(_AFTER))}; the batch is now {batch}",
    ]


def _decided(rule: str, decided_at: int, step: int) -> str:
    return f"as {rule} decided at step {figure(decided_at)}, {counted(step - decided_at, 'step')} before"


def recovered(event: RecoveredEvent) -> tuple[str, list[str]]:
    """Survivors that train again, as a headline with its details: who was lost, what is redone, how long it took.

    >>> parts = {"regroup_s": 0.17, "attach_s": 0.01, "first_step_s": 0.03}
    >>> took = {"stop_s": 5.183, "noticed_s": 5.0, "regrouped_s": 0.183, "step_s": 0.03, "parts": parts}
    >>> event = RecoveredEvent(step=47, before=3, after=2, view=2, lost={"1": "killed by SIGKILL"}, noticed_by="",
    ...                        state_of=0, redone=0, target=3, global_batch_size=12, **took)
    >>> headline, details = recovered(event)
    >>> headline
    'step 47: training goes on with 2 peers of 3; the batch stays at 12 samples'
    >>> print(*details, sep=chr(10))
    lost: peer 1 (killed by SIGKILL)
    nothing that was done is lost: the state is that of peer 0
    training stood still for 5.2 s, from step to step, less a step
    noticed 5.0 s after the last step, then regrouped in 183 ms (attach 10 ms, regroup 170 ms)
    the first step after it took 30 ms; one of those before, 30 ms
    1 replacement is on its way
    """
    lost = ", ".join(f"peer {peer} ({how})" for peer, how in sorted(event.lost.items()))
    peers = f"{counted(event.after, 'peer')} of {figure(event.before)}"
    batch = f"the batch stays at {counted(event.global_batch_size, 'sample')}"
    return f"step {figure(event.step)}: training goes on with {peers}; {batch}", [
        f"lost: {lost}" if lost else f"nobody was lost: {event.noticed_by}",
        _redone(event),
        *_registered(event),
        *_stood_still(event),
        *_replacements(event.target - event.after),
    ]


def _stood_still(event: RecoveredEvent) -> list[str]:
    after, before = duration(event.parts.get(_AFTER)), duration(event.step_s)
    noticed, regrouped = duration(event.noticed_s), duration(event.regrouped_s)
    return [
        f"training stood still for {duration(event.stop_s)}, from step to step, less a step",
        f"noticed {noticed} after the last step, then regrouped in {regrouped}{_stopped(event)}",
        f"the first step after it took {after}; one of those before, {before}",
    ]


def _redone(event: RecoveredEvent) -> str:
    # The leader's state is an older one than that of rank 0 was.
    if event.redone:
        steps = counted(event.redone, "step")
        return f"{steps} of rank 0 will be redone: the state is that of peer {figure(event.state_of)}"
    return f"nothing that was done is lost: the state is that of peer {figure(event.state_of)}"


def _registered(event: RecoveredEvent) -> list[str]:
    if event.registered_before is None:
        return []
    return [
        f"registered values are as they were before step {figure(event.registered_before)}: nobody has lived who knows "
        "what the program did to them after it"
    ]


def _replacements(coming: int) -> list[str]:
    # As many survive as the job is to have: a peer that was leaving anyway was lost, say.
    if coming <= 0:
        return []
    return [f"{counted(coming, 'replacement')} {'is on its' if coming == 1 else 'are on their'} way"]


# ---- all changes of a run --------------------------------------------------------------------------------------------


def changes(job: Job) -> str:
    """The changes of the membership by what made them, as in "1 rescale and 2 recoveries".

    A rescale that only brought peers in place of lost ones is part of their recovery.
    """
    recoveries, rescales = job.counts.get("recovered", 0), job.counts.get("rescale", 0) - job.replacements
    after = f" and {recoveries} recover{'y' if recoveries == 1 else 'ies'}" if recoveries else ""
    return f"{counted(rescales, 'rescale')}{after}"


def stood_still(job: Job) -> str:
    """The time for which its changes stopped the training of a job, in words; empty where nothing changed."""
    changed = job.counts.get("recovered") or job.counts.get("rescale")
    return f", for which training stood still for {duration(job.stopped_s)}" if changed else ""
