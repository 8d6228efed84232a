"""A run's events as a story: what went wrong first, then what happened in its order, then what it came to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kungfu.cli.report.checkpoint import kept, kept_how
from kungfu.cli.report.choice import choice_of, told_choices
from kungfu.cli.report.gaps import is_gap
from kungfu.cli.report.hosts import HOST_TELLERS
from kungfu.cli.report.recovering import changes, lost, recovered, stopped_s
from kungfu.cli.report.rescaling import timing_of
from kungfu.cli.report.sentence import asked, change, reasons, sentence, superseded
from kungfu.cli.report.settings import held_back, merged_runs, noted, set_run, set_to, would_have
from kungfu.cli.report.values import count, duration, figure, items_of, mapping_of, number, peers_named, text_of

__all__ = ["Paragraph", "paces", "tell"]

Fields = Mapping[str, Any]


@dataclass(frozen=True)
class Paragraph:
    """What happened ``at_s`` seconds after the start (``None``: no one moment), and what there is to know about it."""

    at_s: float | None
    headline: str
    details: tuple[str, ...] = ()


def tell(events: Sequence[Fields]) -> list[Paragraph]:
    """The story of `events`, as they stand in ``events.jsonl``.

    >>> tell([{"time": 5.0, "event": "started", "size": 2}, {"time": 7.5, "event": "view", "peers": [0, 1]}])[1]
    Paragraph(at_s=2.5, headline='training begins with 2 peers: peers 0 and 1', details=())
    """
    began = next((at for event in events if (at := number(event.get("time"))) is not None), None)
    told = [_paragraph(event, began) for event in merged_runs([one for one in events if _is_told(one, events)])]
    return [*_root_cause(events), *told, *_conclusion(events, began)]


def _is_told(event: Fields, events: Sequence[Fields]) -> bool:
    """Starts of processes and their good ends say nothing that a view or the end of training does not say."""
    kind = event.get("event")
    if kind == "peer ended":
        told = (other for other in events if other.get("event") in ("dismissed", "lost"))
        expected = any(other.get("peer") == event.get("peer") for other in told)
        return not expected and event.get("how") != "exit code 0"
    if kind == "rounded":
        return event.get("again") is not True
    if kind == "finished":
        return event.get("leaving") is True
    return kind not in ("spawned", "offered", "failed", "span")


def _paragraph(event: Fields, began: float | None) -> Paragraph:
    at = number(event.get("time"))
    since = at - began if at is not None and began is not None else None
    headline, details = _TELLERS.get(text_of(event, "event"), _plain)(event)
    return Paragraph(since, headline, tuple(details))


Told = tuple[str, list[str]]


def _plain(event: Fields) -> Told:
    return sentence(event), []


def _view(event: Fields) -> Told:
    peers = items_of(event, "peers")
    who = f"{count(len(peers), 'peer')}: {peers_named(peers)}"
    first = number(event.get("version")) in (None, 1.0)
    return f"training begins with {who}" if first else f"view {figure(event.get('version'))} is in force, {who}", []


def _decision(event: Fields) -> Told:
    rule, saw = text_of(event, "rule"), mapping_of(event, "saw")
    headline = f"step {figure(event.get('step'))}: {rule} wants {asked(event)}"
    return headline, [*_because(rule, saw, event.get("asked")), f"done: {text_of(event, 'done')}"]


def _because(rule: str, saw: Fields, wanted: object) -> list[str]:
    """The values a rule saw, and which policy had its way where the rule combines several."""
    choice = choice_of(rule, saw)
    shown = reasons(saw, without=("size", "target", *(choice.wishes if choice else ())))
    target = saw.get("target")
    makes = f", which makes {figure(target)}" if number(target) not in (None, number(wanted)) else ""
    return [*([f"it saw: {shown}{makes}"] if shown else []), *told_choices(rule, saw)]


def _rescale(event: Fields) -> Told:
    timing, who = timing_of(event), change(event)
    sizes = f"{figure(event.get('from'))} -> {count(event.get('to'), 'peer')}"
    headline = f"step {figure(event.get('step'))}: {sizes}{f'; {who}' if who else ''}"
    details = [
        f"training stood still for {timing.stopped}",
        f"the first step after it took {timing.after}; the batch is now "
        f"{count(event.get('global_batch_size'), 'sample')}",
    ]
    beside = [f"made ready while training went on: {timing.beside}"] if timing.beside else []
    return headline, [*_wherefore(event), *beside, *details]


def _wherefore(event: Fields) -> list[str]:
    decided, step = number(event.get("decided_at")), number(event.get("step"))
    rule = text_of(event, "rule")
    if decided is None:
        return []
    after = f", {count(step - decided, 'step')} before" if step is not None else ""
    return [f"as {rule} decided at step {figure(decided)}{after}"]


def _called(event: Fields) -> Told:
    saw = reasons(mapping_of(event, "saw"), without=())
    wanted = event.get("asked")
    what = f"it wants {count(wanted, 'peer')}" if number(wanted) is not None else "it wants no change of size"
    headline = f"step {figure(event.get('step'))}: the hook {text_of(event, 'rule')} was called; {what}"
    ignored = [f"passed over: {event['ignored']}"] if event.get("ignored") else []
    return headline, [*([f"it was given: {saw}"] if saw else []), *ignored]


def _seen(event: Fields) -> list[str]:
    saw = reasons(mapping_of(event, "saw"), without=())
    return [f"it saw: {saw}"] if saw else []


def _refused(event: Fields) -> Told:
    rule, wanted = event.get("rule"), count(event.get("asked"), "peer")
    headline = f"refused: {rule} wanted {wanted}" if rule else f"{wanted} could not be had"
    return headline, [f"why: {text_of(event, 'reason')}", f"training goes on with {count(event.get('size'), 'peer')}"]


def _gone(event: Fields) -> Told:
    return f"peer {figure(event.get('peer'))} ended: {text_of(event, 'how')}", []


def _left(event: Fields) -> Told:
    return f"peer {figure(event.get('peer'))} has left the job after {count(event.get('steps'), 'step')}", []


_TELLERS: Mapping[str, Callable[[Fields], Told]] = {
    "view": _view,
    "decision": _decision,
    "rescale": _rescale,
    "called": _called,
    "set": lambda event: (set_to(event), _seen(event)),
    "set run": lambda event: (set_run(event), [f"at last {one}" for one in _seen(mapping_of(event, "last"))]),
    "checkpoint": lambda event: (kept(event), kept_how(event)),
    "noted": lambda event: (noted(event), _seen(event)),
    "shadow": lambda event: (would_have(event), _seen(event)),
    "held": lambda event: (held_back(event), _seen(event)),
    "superseded": lambda event: (superseded(event), _seen(event)),
    "refused": _refused,
    "lost": lost,
    "recovered": recovered,
    "peer ended": _gone,
    "finished": _left,
    **dict.fromkeys(HOST_TELLERS, _plain),
}


def _root_cause(events: Sequence[Fields]) -> Iterator[Paragraph]:
    for event in events:
        if event.get("event") == "failed":
            peer = number(event.get("peer"))
            whose = f"peers/peer-{peer:.0f}.log" if peer is not None and peer >= 0 else "peers/"
            details = (f"what it printed is in {whose}", f"the job's exit code is {figure(event.get('code'))}")
            yield Paragraph(None, f"this run failed: {text_of(event, 'error')}", details)


def _conclusion(events: Sequence[Fields], began: float | None) -> Iterator[Paragraph]:
    lasting = _lasting_s(events)
    details = [_totals(events, lasting), *_finishers(events), *_not_a_number(events), *_lacking(events)]
    if not any(event.get("event") in ("ended", "failed") for event in events):
        details.append("the record does not say how it ended: it is still running, or its agent was killed")
    took = f"in all {duration(lasting)} of training" if lasting is not None else "training never began"
    yield Paragraph(None, took, tuple(details))


def _not_a_number(events: Sequence[Fields]) -> list[str]:
    told = [event for event in events if event.get("event") in ("not finite", "finite again")]
    if not told or told[-1].get("event") == "finite again":
        return []
    value, step = figure(told[-1].get("value")), figure(told[-1].get("step"))
    return [f"the {text_of(told[-1], 'what')} is no number since step {step}, where it became {value}"]


def _lacking(events: Sequence[Fields]) -> list[str]:
    """The sums above are of what was written down."""
    lost = sum(number(event.get("lines")) or 0.0 for event in events if is_gap(event, "events.jsonl"))
    return [f"{count(lost, 'event')} could not be written down, and what happened there is not counted"] if lost else []


def _lasting_s(events: Sequence[Fields]) -> float | None:
    """Seconds from the first view to the last thing that was written."""
    times = [number(event.get("time")) for event in events]
    first = next((at for event, at in zip(events, times, strict=True) if event.get("event") == "view"), None)
    last = _over(events) or next((at for at in reversed(times) if at is not None), None)
    return None if first is None or last is None else max(0.0, last - first)


def _over(events: Sequence[Fields]) -> float | None:
    """When the last peer was through with training; what follows is the rest of the user's program."""
    through = (number(event.get("time")) for event in events if event.get("event") == "finished")
    return max((at for at in through if at is not None), default=None)


def _totals(events: Sequence[Fields], lasting: float | None) -> str:
    still, changed = stopped_s(events), any(event.get("event") in ("rescale", "recovered") for event in events)
    share = f" ({100 * still / lasting:.2g} % of it)" if lasting else ""
    stood = f", for which training stood still for {duration(still)}{share}" if changed else ""
    return f"{changes(events)}{stood}"


def _finishers(events: Sequence[Fields]) -> list[str]:
    through = [event for event in events if event.get("event") == "finished" and event.get("leaving") is not True]
    if not through:
        return []
    steps, traces = _most(through, "steps"), _most(through, "traces")
    ended = f"{count(len(through), 'peer')} trained to the end: {count(steps, 'step')}, {count(traces, 'trace')} a peer"
    return [ended, *paces(events)]


def paces(events: Sequence[Fields]) -> list[str]:
    """How long the steps and the rescales of a run took, on the peer that made the most steps."""
    through = [event for event in events if event.get("event") == "finished"]
    if not through:
        return []
    longest = max(through, key=lambda event: number(event.get("steps")) or 0.0)
    named = {"a step": mapping_of(longest, "step_s"), "a rescale": mapping_of(longest, "stop_s")}
    return [_pace(name, took) for name, took in named.items() if number(took.get("count"))]


def _pace(name: str, took: Fields) -> str:
    marks = [f"{duration(took.get(f'p{percent}'))} ({percent} %)" for percent in (90, 99)]
    longest = f"at most {duration(took.get('max'))}; {figure(took.get('count'))} counted"
    return f"{name} took {duration(took.get('p50'))} (median), {', '.join(marks)}, {longest}"


def _most(events: Sequence[Fields], name: str) -> float | None:
    return max((value for event in events if (value := number(event.get(name))) is not None), default=None)
