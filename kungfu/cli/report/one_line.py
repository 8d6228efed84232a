"""One event in one line, as a running job shows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kungfu.cli.report.changes import joined_and_left
from kungfu.cli.report.decisions import (
    asked,
    held_back,
    is_by_itself,
    reasons,
    refused,
    requested_by_hook,
    set_repeatedly,
    set_to,
    superseded,
    would_have,
)
from kungfu.cli.report.values import counted, duration, figure, finite_number, label, peers_named
from kungfu.event_log.events import (
    BrokenEvent,
    CalledEvent,
    CaughtUpEvent,
    CheckpointEvent,
    DecisionEvent,
    DevicesEvent,
    DismissedEvent,
    DissentEvent,
    EndedEvent,
    FailedEvent,
    FinishedEvent,
    FiniteAgainEvent,
    GapEvent,
    HeldEvent,
    HostEvent,
    HostJoinedEvent,
    HostLeftEvent,
    HostLostEvent,
    HostNoticedEvent,
    LateEvent,
    LeaderEvent,
    LoggedEvent,
    LostEvent,
    MachinesDifferEvent,
    MissingEvent,
    NotFiniteEvent,
    NoticedEvent,
    OfferedEvent,
    PeerEndedEvent,
    PhaseEvent,
    ProgramEndedEvent,
    RecordEvent,
    RecoveredEvent,
    RefusedEvent,
    RegroupingEvent,
    RequestEvent,
    RescaleEvent,
    RoundedEvent,
    RuleEvent,
    RulesEvent,
    SetEvent,
    SettingRun,
    ShadowDissentEvent,
    ShadowEvent,
    SpanEvent,
    SpawnedEvent,
    StandbyEvent,
    StartedEvent,
    SupersededEvent,
    TookOverEvent,
    UndefinedEvent,
    UnheardEvent,
    UnrecordedEvent,
    ViewEvent,
)

# What another event says better, or what is told only when a run is looked at afterwards.
SILENT = (RecordEvent, SpawnedEvent, OfferedEvent, PeerEndedEvent, SpanEvent, RulesEvent)

_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def one_line(event: LoggedEvent | SettingRun) -> str:
    """An event, or settings of one rule, in a line; empty for one that is not worth a line.

    >>> one_line(ViewEvent(version=2, peers=(0, 1, 2)))
    'view 2: 3 peers train'
    >>> one_line(DecisionEvent(step=50, rule="grow", saw={"noise_scale": 50.7}, size=2, asked=3, done=""))
    'step 50: grow wants 3 peers instead of 2 (noise scale 50.7)'
    """
    return "" if isinstance(event, SILENT) or is_by_itself(event) else _LINES[type(event)](event)


# ---- the job and its hosts -------------------------------------------------------------------------------------------


def _started(event: StartedEvent) -> str:
    verb = "starts" if event.size == 1 else "start"
    return f"{counted(event.size, 'peer')} {verb}: {' '.join(event.command)}"


def _devices(event: DevicesEvent) -> str:
    listed = ", ".join(event.devices)
    # Peers share devices.
    if len(event.devices) < event.slots:
        return (
            f"{figure(event.slots)} slots share {counted(len(event.devices), 'device')} ({listed}): seats get them in "
            "turn, and TensorFlow takes memory of them as it needs it"
        )
    return f"each of {counted(event.slots, 'slot')} gets one device of {listed}; the others are not used"


def _standby(event: StandbyEvent) -> str:
    return f"peers that join load TensorFlow when they start: {event.why}"


def _host(event: HostEvent) -> str:
    return f"host {figure(event.host)} ({event.name})"


def _host_noticed(event: HostNoticedEvent) -> str:
    leave = "its peers leave at the next barrier"
    return f"{_host(event)} was told that it will be taken away ({event.signal}): {leave}"


def _request(event: RequestEvent) -> str:
    after = f" after {duration(event.seconds)}" if event.state in ("carried out", "expired") else ""
    return f"kungfu {event.request}: {event.state}{after}{f' ({event.reason})' if event.reason else ''}"


def _unrecorded(event: UnrecordedEvent) -> str:
    return (
        f"{event.file} cannot be written ({event.error}): training goes on, and so does the record when it can be "
        "written again"
    )


def _gap(event: GapEvent) -> str:
    lines = f"{counted(event.lines, 'line')} of {duration(event.until - event.since)}"
    return f"{event.file} lacks {lines}, which could not be written ({event.error})"


# ---- peers and views -------------------------------------------------------------------------------------------------


def _view(event: ViewEvent) -> str:
    train = "trains" if len(event.peers) == 1 else "train"
    return f"view {figure(event.version)}: {counted(len(event.peers), 'peer')} {train}"


def _phase(event: PhaseEvent) -> str:
    """The view that follows says that they train."""
    peers = f"{counted(len(event.peers), 'peer')} {'is' if len(event.peers) == 1 else 'are'}"
    return f"phase {figure(event.phase)} of the program: {peers} ready to train again"


def _caught_up(event: CaughtUpEvent) -> str:
    batches = f"{figure(event.batches)} {'batch' if event.batches == 1 else 'batches'}"
    read = f"read {batches} of its data in {duration(event.seconds)}"
    return f"peer {figure(event.peer)} {read} to come to where training is, while the others trained"


def _took_over(event: TookOverEvent) -> str:
    samples = f"{figure(event.samples)} {'sample' if event.samples == 1 else 'samples'}"
    read = f"read {samples} in {duration(event.seconds)}"
    return f"peer {figure(event.peer)} {read} to come to its place in a part of the data that it took over; all waited"


def _missing(event: MissingEvent) -> str:
    return f"{peers_named(event.peers)} never got ready: {event.reason}"


def _noticed(event: NoticedEvent) -> str:
    return f"peer {figure(event.peer)} was told that it will be taken away: it leaves at the next barrier"


def _late(event: LateEvent) -> str:
    several = len(event.ranks) > 1
    ranks, are, they = ("ranks", "are", "they are") if several else ("rank", "is", "it is")
    names = " and ".join(figure(rank) for rank in event.ranks)
    where = f"{event.where} after step {figure(event.step)}"
    return f"{ranks} {names} {are} late in {where}: {duration(event.waited_s)} so far, but {they} alive"


def _finished(event: FinishedEvent) -> str:
    # Only a program that may train again, by another fit, has phases.
    through = f"has trained to the end of fit {figure(event.phase)}" if event.phase else "has trained to the end"
    how = "has left the job" if event.leaving else through
    return f"peer {figure(event.peer)} {how} after {counted(event.steps, 'step')}"


def _lost(event: LostEvent) -> str:
    peer = f"peer {figure(event.peer)}"
    lost = peer if event.rank is None else f"rank {figure(event.rank)} ({peer})"
    return f"{lost} is lost: {event.how}{'' if event.error in event.how else f' ({event.error})'}"


def _program_ended(event: ProgramEndedEvent) -> str:
    """The loss that follows tells more of an error, and so does the end of the job."""
    peer, step = f"rank {figure(event.rank)} (peer {figure(event.peer)})", figure(event.step)
    alike = (
        ": if others train on, they do so without it, and another peer takes its place; to end training on all peers, "
        "decide it alike on all of them, or let a policy stop"
    )
    meaning = alike if event.others else ""
    # The program goes on without training.
    if event.how == "loop":
        return f"{peer} left its training loop (by break or return, say) after step {step}, before its end{meaning}"
    # The process is over, without an error.
    if event.how == "exit":
        by = "by break, return or sys.exit"
        return f"{peer} ended its program ({by}) after step {step}, before the end of training{meaning}"
    return f"the program of {peer} ends after step {step}: {event.error}"


def _regrouping(event: RegroupingEvent) -> str:
    more = event.target - len(event.peers)
    coming = f"; {counted(more, 'replacement')} will come" if more > 0 else ""
    regroup = "regroups" if len(event.peers) == 1 else "regroup"
    return f"{peers_named(event.peers)} {regroup} in view {figure(event.version)}{coming}"


def _rescale(event: RescaleEvent) -> str:
    peers = joined_and_left(event)
    return (
        f"step {figure(event.step)}: {figure(event.before)} -> {counted(event.after, 'peer')}"
        f"{f' ({peers})' if peers else ''}, batch {figure(event.global_batch_size)}; training stood still for "
        f"{duration(event.stop_s)}"
    )


def _recovered(event: RecoveredEvent) -> str:
    redone = f", {counted(event.redone, 'step')} undone" if event.redone else ""
    before = event.registered_before
    registered = "" if before is None else f", registered values from before step {figure(before)}"
    return (
        f"step {figure(event.step)}: {figure(event.before)} -> {counted(event.after, 'peer')}, from the state of peer "
        f"{figure(event.state_of)}{redone}{registered}, batch {figure(event.global_batch_size)}; training stood still "
        f"for {duration(event.stop_s)}"
    )


# ---- what differs between peers --------------------------------------------------------------------------------------


def _machines(event: MachinesDifferEvent) -> str:
    others = "; ".join(f"peer {peer}: {machine}" for peer, machine in event.others.items())
    return (
        f"peers have other processors or threads than the job began with ({event.usual}), and round in another way: "
        f"{others}; what differs by that is evened out at barriers"
    )


def _rounded(event: RoundedEvent) -> str:
    # The same variables differed before: that was told.
    if event.again:
        return ""
    widest = ", ".join(
        f"{one.name} by {figure(one.difference)} (largest value {figure(one.largest)})" for one in event.widest
    )
    view = f" of view {figure(event.view)}" if event.view else ""
    variables, are = counted(event.variables, "variable"), "is" if event.variables == 1 else "are"
    return f"{variables} differed by rounding between the peers{view} and {are} now rank 0's: {widest}"


def _dissent(event: DissentEvent) -> str:
    wishes = ", ".join(f"rank {rank} {wish or 'nothing'}" for rank, wish in event.wishes.items())
    return f"the peers' rules differ in view {figure(event.view)} (rank 0's counts): {wishes}"


def _shadow_dissent(event: ShadowDissentEvent) -> str:
    shadows = "; ".join(f"rank {rank}: {what or 'nothing'}" for rank, what in event.shadows.items())
    return f"rules in the shadow differ between the peers of view {figure(event.view)}: {shadows}"


def _not_finite(event: NotFiniteEvent) -> str:
    return f"step {figure(event.step)}: the {event.what} is {figure(event.value)}"


def _finite_again(event: FiniteAgainEvent) -> str:
    since = f"for the first time since step {figure(event.since)}"
    return f"step {figure(event.step)}: the {event.what} is a number again, {since}"


def _undefined(event: UndefinedEvent) -> str:
    share = f"{figure(event.missing)} of {counted(event.of, 'step')} since step {figure(event.since)}"
    return f"step {figure(event.step)}: the {label(event.what)} was no number in {share}"


# ---- rules -----------------------------------------------------------------------------------------------------------


def _decision(event: DecisionEvent) -> str:
    wants = _because(f"step {figure(event.step)}: {event.rule} wants {asked(event)}", event)
    return f"{wants}; {event.done}" if event.done else wants


def _called(event: CalledEvent) -> str:
    saw = reasons(event.saw)
    given = f" with {saw}" if saw else ""
    ignored = f"; passed over: {event.ignored}" if event.ignored else ""
    return f"step {figure(event.step)}: {event.rule} was called{given}; {requested_by_hook(event)}{ignored}"


def _because(what: str, event: RuleEvent) -> str:
    saw = reasons(event.saw)
    return f"{what} ({saw})" if saw else what


def _refused(event: RefusedEvent) -> str:
    wanted = refused(event)
    which = f"{event.rule} wanted {wanted}, which" if event.rule else wanted
    return f"{which} cannot be had: {event.reason}; training goes on with {figure(event.size)}"


def _checkpoint(event: CheckpointEvent) -> str:
    step = figure(event.step)
    # The disk is full, say: training has gone on.
    if event.error:
        return f"step {step}: no checkpoint could be written to {event.path}: {event.error}"
    return f"step {step}: a checkpoint of {_size(event.size_bytes)} is in {event.path}, as {event.rule} asked"


def _size(size_bytes: int | None) -> str:
    size = finite_number(size_bytes)
    if size is None:
        return "unknown size"
    return next((f"{size / least:.1f} {unit}" for least, unit in _UNITS if size >= least), f"{size:.0f} bytes")


_LINES: Mapping[type, Callable[[Any], str]] = {
    StartedEvent: _started,
    EndedEvent: lambda event: f"ended: {event.reason}",
    FailedEvent: lambda event: f"failed: {event.error}",
    DevicesEvent: _devices,
    StandbyEvent: _standby,
    HostJoinedEvent: lambda event: f"{_host(event)} is in",
    HostNoticedEvent: _host_noticed,
    HostLeftEvent: lambda event: f"{_host(event)} has left: {event.why}",
    HostLostEvent: lambda event: f"{_host(event)} is lost: {event.why}",
    LeaderEvent: lambda event: f"{_host(event)} leads the job now",
    RequestEvent: _request,
    UnrecordedEvent: _unrecorded,
    GapEvent: _gap,
    ViewEvent: _view,
    PhaseEvent: _phase,
    CaughtUpEvent: _caught_up,
    TookOverEvent: _took_over,
    MissingEvent: _missing,
    DismissedEvent: lambda event: f"peer {figure(event.peer)} was dismissed: {event.reason}",
    NoticedEvent: _noticed,
    UnheardEvent: lambda event: f"peer {figure(event.peer)} did not answer: {event.error}",
    LateEvent: _late,
    FinishedEvent: _finished,
    LostEvent: _lost,
    ProgramEndedEvent: _program_ended,
    BrokenEvent: lambda event: f"view {figure(event.version)} is broken: {event.why}",
    RegroupingEvent: _regrouping,
    RescaleEvent: _rescale,
    RecoveredEvent: _recovered,
    MachinesDifferEvent: _machines,
    RoundedEvent: _rounded,
    DissentEvent: _dissent,
    ShadowDissentEvent: _shadow_dissent,
    NotFiniteEvent: _not_finite,
    FiniteAgainEvent: _finite_again,
    UndefinedEvent: _undefined,
    DecisionEvent: _decision,
    CalledEvent: _called,
    SettingRun: set_repeatedly,
    SetEvent: lambda event: _because(set_to(event), event),
    ShadowEvent: lambda event: _because(would_have(event), event),
    HeldEvent: lambda event: _because(held_back(event), event),
    SupersededEvent: lambda event: _because(superseded(event), event),
    RefusedEvent: _refused,
    CheckpointEvent: _checkpoint,
}
