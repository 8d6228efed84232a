"""One event in one sentence, as a running job says it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kungfu.cli.report.checkpoint import kept
from kungfu.cli.report.hosts import HOST_TELLERS
from kungfu.cli.report.settings import held_back, noted, set_to, would_have
from kungfu.cli.report.values import (
    UNKNOWN,
    count,
    duration,
    figure,
    items_of,
    label,
    mapping_of,
    number,
    peers_named,
    text_of,
)

__all__ = ["asked", "change", "reasons", "sentence", "superseded"]

Fields = Mapping[str, Any]
# What the story tells with something else, or what is told only when a run is looked at afterwards.
_SILENT = ("spawned", "offered", "peer ended", "span")


def sentence(event: Fields) -> str:
    """What happened, in a sentence; empty for what is not worth one.

    >>> sentence({"event": "view", "version": 2, "peers": [0, 1, 2]})
    'view 2: 3 peers train'
    >>> sentence({"event": "decision", "step": 50, "rule": "grow", "saw": {"noise_scale": 50.7}, "size": 2, "asked": 3})
    'step 50: grow wants 3 peers instead of 2 (noise scale 50.7)'
    """
    kind = text_of(event, "event")
    if kind in _SILENT:
        return ""
    return _TELLERS.get(kind, _unknown)(event)


def reasons(saw: Fields, *, without: tuple[str, ...] = ("size", "target")) -> str:
    """The values that a rule saw, by name."""
    return ", ".join(f"{label(str(name))} {figure(value)}" for name, value in saw.items() if name not in without)


def asked(event: Fields) -> str:
    """What a decision wants, beside what was.

    >>> asked({"size": 2, "asked": 3}), asked({"size": 2, "asked": 2})
    ('3 peers instead of 2', 'to stay at 2 peers')
    >>> asked({"size": 2, "asked": 2, "peers": [1], "when": "replaced"})
    'peer 1 replaced'
    """
    if number(event.get("asked")) is None:
        return "no change of size"
    if event.get("when") == "replaced":
        return f"{peers_named(items_of(event, 'peers'))} replaced"
    if event.get("asked") == event.get("size"):
        return f"to stay at {count(event.get('size'), 'peer')}"
    return f"{count(event.get('asked'), 'peer')} instead of {figure(event.get('size'))}"


def change(event: Fields) -> str:
    """Who came and who went in a rescale."""
    joined, left = items_of(event, "joined"), items_of(event, "left")
    came = [f"{peers_named(joined)} joined"] if joined else []
    went = [f"{peers_named(left)} left"] if left else []
    return ", ".join(came + went)


def _started(event: Fields) -> str:
    command = " ".join(str(word) for word in items_of(event, "command"))
    return f"{count(event.get('size'), 'peer')} start: {command}"


def _devices(event: Fields) -> str:
    names, slots = [str(name) for name in items_of(event, "devices")], number(event.get("slots")) or 0
    listed = ", ".join(names)
    if len(names) < slots:
        return (
            f"{figure(slots)} slots share {count(len(names), 'device')} ({listed}): seats get them in turn, and "
            "TensorFlow takes memory of them as it needs it"
        )
    return f"each of {count(slots, 'slot')} gets one device of {listed}; the others are not used"


def _view(event: Fields) -> str:
    peers = items_of(event, "peers")
    train = "trains" if len(peers) == 1 else "train"
    return f"view {figure(event.get('version'))}: {count(len(peers), 'peer')} {train}"


def _decision(event: Fields) -> str:
    saw, done = reasons(mapping_of(event, "saw")), event.get("done")
    because = f" ({saw})" if saw else ""
    what = f"; {done}" if isinstance(done, str) and done else ""
    return f"step {figure(event.get('step'))}: {text_of(event, 'rule')} wants {asked(event)}{because}{what}"


def _rescale(event: Fields) -> str:
    sizes = f"{figure(event.get('from'))} -> {count(event.get('to'), 'peer')}"
    who = change(event)
    return (
        f"step {figure(event.get('step'))}: {sizes}{f' ({who})' if who else ''}, batch "
        f"{figure(event.get('global_batch_size'))}; training stood still for {duration(event.get('stop_s'))}"
    )


def _called(event: Fields) -> str:
    saw, wanted = reasons(mapping_of(event, "saw")), event.get("asked")
    given = f" with {saw}" if saw else ""
    what = f"; it wants {count(wanted, 'peer')}" if number(wanted) is not None else "; it wants no change of size"
    ignored = f"; passed over: {event['ignored']}" if event.get("ignored") else ""
    return f"step {figure(event.get('step'))}: {text_of(event, 'rule')} was called{given}{what}{ignored}"


def superseded(event: Fields) -> str:
    """A wish that came to nothing, and what came before it.

    >>> superseded({"step": 50, "rule": "hook", "asked": 3, "by": "grow"})
    'step 50: hook wanted 3 peers; nothing came of it, since grow came before it'
    >>> superseded({"step": 50, "rule": "slow", "peers": [1], "when": "replaced", "by": "the loss of peers"})
    'step 50: slow wanted peer 1 replaced; nothing came of it, since the loss of peers came before it'
    """
    what = count(event.get("asked"), "peer")
    if "peers" in event:
        aim = "replaced" if event.get("when") == "replaced" else "to leave"
        what = f"{peers_named(items_of(event, 'peers'))} {aim}"
    start = f"step {figure(event.get('step'))}: {text_of(event, 'rule')} wanted {what}"
    return f"{start}; nothing came of it, since {text_of(event, 'by')} came before it"


def _because(what: str, event: Fields) -> str:
    saw = reasons(mapping_of(event, "saw"))
    return f"{what} ({saw})" if saw else what


def _refused(event: Fields) -> str:
    rule, wanted = event.get("rule"), count(event.get("asked"), "peer")
    return (
        f"{f'{rule} wanted {wanted}, which' if rule else wanted} cannot be had: {text_of(event, 'reason')}; training "
        f"goes on with {figure(event.get('size'))}"
    )


def _missing(event: Fields) -> str:
    return f"{peers_named(items_of(event, 'peers'))} never got ready: {text_of(event, 'reason')}"


def _dismissed(event: Fields) -> str:
    return f"peer {figure(event.get('peer'))} was dismissed: {text_of(event, 'reason')}"


def _machines(event: Fields) -> str:
    others = "; ".join(f"peer {peer}: {machine}" for peer, machine in mapping_of(event, "others").items())
    return (
        f"peers have other processors or threads than the job began with ({text_of(event, 'usual')}), and round in "
        f"another way: {others}; what differs by that is evened out at barriers"
    )


def _rounded(event: Fields) -> str:
    if event.get("again") is True:
        return ""
    widest = ", ".join(
        f"{text_of(one, 'name')} by {figure(one.get('difference'))} (largest value {figure(one.get('largest'))})"
        for one in items_of(event, "widest")
        if isinstance(one, Mapping)
    )
    view = f" of view {figure(event.get('view'))}" if event.get("view") else ""
    many, are = count(event.get("variables"), "variable"), "is" if event.get("variables") == 1 else "are"
    return f"{many} differed by rounding between the peers{view} and {are} now rank 0's: {widest}"


def _dissent(event: Fields) -> str:
    wishes = ", ".join(f"rank {rank} {wish or 'nothing'}" for rank, wish in mapping_of(event, "wishes").items())
    return f"the peers' rules differ in view {figure(event.get('view'))} (rank 0's counts): {wishes}"


def _other_shadows(event: Fields) -> str:
    shadows = "; ".join(f"rank {rank}: {what or 'nothing'}" for rank, what in mapping_of(event, "shadows").items())
    return f"rules in the shadow differ between the peers of view {figure(event.get('view'))}: {shadows}"


def _late(event: Fields) -> str:
    ranks = [figure(rank) for rank in items_of(event, "ranks")]
    who, are, they = ("ranks", "are", "they are") if len(ranks) > 1 else ("rank", "is", "it is")
    where = f"{text_of(event, 'in')} after step {figure(event.get('step'))}"
    names = " and ".join(ranks) or UNKNOWN
    return f"{who} {names} {are} late in {where}: {duration(event.get('waited_s'))} so far, but {they} alive"


def _finished(event: Fields) -> str:
    how = "has left the job" if event.get("leaving") is True else "is through"
    return f"peer {figure(event.get('peer'))} {how} after {count(event.get('steps'), 'step')}"


def _lost(event: Fields) -> str:
    how, said = text_of(event, "how"), str(event.get("error") or "")
    rank, peer = number(event.get("rank")), figure(event.get("peer"))
    who = f"peer {peer}" if rank is None else f"rank {rank:.0f} (peer {peer})"
    return f"{who} is lost: {how}{'' if said in how else f' ({said})'}"


def _program_ended(event: Fields) -> str:
    """Of an error the loss that follows tells more, and so does the end of the job."""
    who, step = f"rank {figure(event.get('rank'))} (peer {figure(event.get('peer'))})", figure(event.get("step"))
    alike = (
        ": if others train on, they do so without it, and another peer takes its place; to end training on all peers, "
        "decide it alike on all of them, or let a policy stop"
    )
    meaning = alike if number(event.get("others")) else ""
    if event.get("how") == "loop":
        return f"{who} left its training loop (by break or return, say) after step {step}, before its end{meaning}"
    if event.get("how") == "exit":
        by = "by break, return or sys.exit"
        return f"{who} ended its program ({by}) after step {step}, before the end of training{meaning}"
    return f"the program of {who} ends after step {step}: {text_of(event, 'error')}"


def _broken(event: Fields) -> str:
    return f"view {figure(event.get('version'))} is broken: {text_of(event, 'why')}"


def _regrouping(event: Fields) -> str:
    peers, target = items_of(event, "peers"), number(event.get("target")) or 0
    more = target - len(peers)
    coming = f"; {count(more, 'replacement')} will come" if more > 0 else ""
    regroup = "regroups" if len(peers) == 1 else "regroup"
    return f"{peers_named(peers)} {regroup} in view {figure(event.get('version'))}{coming}"


def _recovered(event: Fields) -> str:
    undone = number(event.get("redone")) or 0
    redone = f", {count(undone, 'step')} undone" if undone else ""
    return (
        f"step {figure(event.get('step'))}: {figure(event.get('from'))} -> {count(event.get('to'), 'peer')}, "
        f"from the state of peer {figure(event.get('state_of'))}{redone}, batch "
        f"{figure(event.get('global_batch_size'))}; training stood still for {duration(event.get('stop_s'))}"
    )


def _noticed(event: Fields) -> str:
    return f"peer {figure(event.get('peer'))} was told that it will be taken away: it leaves at the next barrier"


def _unheard(event: Fields) -> str:
    return f"peer {figure(event.get('peer'))} did not answer: {text_of(event, 'error')}"


def _failed(event: Fields) -> str:
    return f"failed: {text_of(event, 'error')}"


def _request(event: Fields) -> str:
    state, reason = text_of(event, "state"), event.get("reason")
    after = f" after {duration(event.get('seconds'))}" if state in ("carried out", "expired") else ""
    return f"kungfu {text_of(event, 'request')}: {state}{after}{f' ({reason})' if reason else ''}"


def _not_finite(event: Fields) -> str:
    return f"step {figure(event.get('step'))}: the {text_of(event, 'what')} is {figure(event.get('value'))}"


def _finite_again(event: Fields) -> str:
    since, step = figure(event.get("since")), figure(event.get("step"))
    return f"step {step}: the {text_of(event, 'what')} is a number again, for the first time since step {since}"


def _unrecorded(event: Fields) -> str:
    return (
        f"{text_of(event, 'file')} cannot be written ({text_of(event, 'error')}): training goes on, and so does the "
        "record when it can be written again"
    )


def _gap(event: Fields) -> str:
    since, until = number(event.get("from")), number(event.get("to"))
    time = "" if since is None or until is None else f" of {duration(until - since)}"
    return (
        f"{text_of(event, 'file')} lacks {count(event.get('lines'), 'line')}{time}, which could not be written "
        f"({text_of(event, 'error')})"
    )


def _ended(event: Fields) -> str:
    return f"ended: {text_of(event, 'reason')}"


def _unknown(event: Fields) -> str:
    rest = ", ".join(f"{label(str(name))} {value}" for name, value in event.items() if name not in ("event", "time"))
    return f"{text_of(event, 'event')}: {rest}"


_TELLERS: Mapping[str, Callable[[Fields], str]] = {
    "started": _started,
    "devices": _devices,
    "view": _view,
    "decision": _decision,
    "rescale": _rescale,
    "called": _called,
    "set": lambda event: _because(set_to(event), event),
    "checkpoint": kept,
    "noted": lambda event: _because(noted(event), event),
    "shadow": lambda event: _because(would_have(event), event),
    "held": lambda event: _because(held_back(event), event),
    "superseded": lambda event: _because(superseded(event), event),
    "refused": _refused,
    "missing": _missing,
    "dismissed": _dismissed,
    "machines differ": _machines,
    "rounded": _rounded,
    "dissent": _dissent,
    "shadow dissent": _other_shadows,
    "late": _late,
    "lost": _lost,
    "program ended": _program_ended,
    "broken": _broken,
    "regrouping": _regrouping,
    "recovered": _recovered,
    "noticed": _noticed,
    "unheard": _unheard,
    "finished": _finished,
    "request": _request,
    "not finite": _not_finite,
    "finite again": _finite_again,
    "unrecorded": _unrecorded,
    "gap": _gap,
    "failed": _failed,
    "ended": _ended,
    **HOST_TELLERS,
}
