"""How a run lost peers and went on without them, as paragraphs of its story."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kungfu.cli.report.rescaling import Timing, stood_still_s, timing_of
from kungfu.cli.report.sentence import sentence
from kungfu.cli.report.values import count, duration, figure, mapping_of, number, text_of

__all__ = ["changes", "lost", "recovered", "stopped_s"]

Fields = Mapping[str, Any]


def lost(event: Fields) -> tuple[str, list[str]]:
    """A peer that ended in the middle: its own last word, and where to read on."""
    said, peer = text_of(event, "error"), figure(event.get("peer"))
    last = [f"its last error: {said}"] if event.get("error") and said not in text_of(event, "how") else []
    return sentence({**event, "error": ""}), [*last, f"what it printed is in peers/peer-{peer}.log"]


def recovered(event: Fields) -> tuple[str, list[str]]:
    """Survivors that train again: who was lost, what was redone, and how long it took.

    >>> parts = {"regroup_s": 0.17, "attach_s": 0.01, "first_step_s": 0.03}
    >>> took = {"stop_s": 5.183, "noticed_s": 5.0, "regrouped_s": 0.183, "step_s": 0.03, "parts": parts}
    >>> told = recovered({"step": 47, "from": 3, "to": 2, "lost": {"1": "killed by SIGKILL"}, "state_of": 0,
    ...                   "redone": 0, "target": 3, "global_batch_size": 12, **took})
    >>> told[0]
    'step 47: training goes on with 2 peers of 3; the batch stays at 12 samples'
    >>> print(*told[1], sep=chr(10))
    lost: peer 1 (killed by SIGKILL)
    nothing that was done is lost: the state is that of peer 0
    training stood still for 5.2 s, from step to step, less a step
    noticed 5.0 s after the last step, then regrouped in 183 ms (attach 10 ms, regroup 170 ms)
    the first step after it took 30 ms; one of those before, 30 ms
    1 replacement is on its way
    """
    timing, gone = timing_of(event), mapping_of(event, "lost")
    who = ", ".join(f"peer {peer} ({how})" for peer, how in sorted(gone.items(), key=lambda one: one[0]))
    peers = f"{count(event.get('to'), 'peer')} of {figure(event.get('from'))}"
    headline = f"step {figure(event.get('step'))}: training goes on with {peers}"
    coming = (number(event.get("target")) or 0.0) - (number(event.get("to")) or 0.0)
    are = "is" if coming == 1 else "are"
    return f"{headline}; the batch stays at {count(event.get('global_batch_size'), 'sample')}", [
        f"lost: {who}" if who else f"nobody was lost: {text_of(event, 'noticed_by')}",
        _kept(event),
        *_stood(event, timing),
        *([f"{count(coming, 'replacement')} {are} on {'its' if coming == 1 else 'their'} way"] if coming > 0 else []),
    ]


def _stood(event: Fields, timing: Timing) -> list[str]:
    """Where the time went. Records of earlier versions hold the seconds of regrouping only."""
    if number(event.get("noticed_s")) is None:
        return [
            f"training stood still for {duration(event.get('stop_s'))}{timing.inside}",
            f"the first step after it took {timing.after}",
        ]
    noticed, regrouped = duration(event.get("noticed_s")), duration(event.get("regrouped_s"))
    return [
        f"training stood still for {duration(event.get('stop_s'))}, from step to step, less a step",
        f"noticed {noticed} after the last step, then regrouped in {regrouped}{timing.inside}",
        f"the first step after it took {timing.after}; one of those before, {duration(event.get('step_s'))}",
    ]


def _kept(event: Fields) -> str:
    redone, whose = number(event.get("redone")) or 0.0, figure(event.get("state_of"))
    if redone:
        return f"{count(redone, 'step')} of rank 0 will be redone: the state is that of peer {whose}"
    return f"nothing that was done is lost: the state is that of peer {whose}"


def changes(events: Sequence[Fields]) -> str:
    """How often the membership changed, by what.

    >>> changes([{"event": "rescale"}, {"event": "recovered"}, {"event": "recovered"}])
    '1 rescale and 2 recoveries'
    """
    rescales, recoveries = (sum(event.get("event") == kind for event in events) for kind in ("rescale", "recovered"))
    after = f" and {recoveries} recover{'y' if recoveries == 1 else 'ies'}" if recoveries else ""
    return f"{count(rescales, 'rescale')}{after}"


def stopped_s(events: Sequence[Fields]) -> float:
    """For how long all of these changes stopped the training, in seconds."""
    return sum(stood_still_s(event) for event in events if event.get("event") in ("rescale", "recovered"))
