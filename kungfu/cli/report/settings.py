"""What rules set beside the size, would have set, or only had written down: in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kungfu.cli.report.values import figure, items_of, mapping_of, number, text_of

__all__ = ["held_back", "merged_runs", "noted", "set_run", "set_to", "would_have"]

Fields = Mapping[str, Any]

_ACTIONS = {
    "Rescale": "another size",
    "SetGlobalBatchSize": "another batch",
    "SetLearningRate": "another learning rate",
    "Stop": "the end of training",
    "Call": "a call",
    "Evict": "the eviction of",
    "Replace": "the replacement of",
    "Checkpoint": "a checkpoint",
}


def set_to(event: Fields) -> str:
    """A setting that a barrier changed."""
    rule, what = text_of(event, "rule"), text_of(event, "what")
    start = f"step {figure(event.get('step'))}: {rule}"
    if what == "stop":
        return f"{start} ends training"
    over = number(event.get("over"))
    length = f" over {figure(over)} {text_of(event, 'unit')}" if over else ""
    return f"{start} sets the {what} to {figure(event.get('to'))}{length}"


def merged_runs(events: Sequence[Fields]) -> list[Fields]:
    """The events with each run of settings of one rule as one event, ``set run``.

    A run goes on until something else is told; other rules may set other things meanwhile.
    """
    told: list[Fields] = []
    runs: dict[tuple[str, str], list[Fields]] = {}
    for event in events:
        if event.get("event") == "set" and text_of(event, "what") != "stop":
            runs.setdefault((text_of(event, "rule"), text_of(event, "what")), []).append(event)
            continue
        told += [*map(_merged, runs.values()), event]
        runs = {}
    return [*told, *map(_merged, runs.values())]


def _merged(run: Sequence[Fields]) -> Fields:
    if len(run) == 1:
        return run[0]
    return {**run[0], "event": "set run", "times": len(run), "last": run[-1]}


def set_run(event: Fields) -> str:
    """A setting that one rule changed again and again.

    >>> first = {"rule": "decay", "what": "learning rate", "step": 10, "to": 0.125}
    >>> set_run({**first, "times": 10, "last": {**first, "step": 19, "to": 0.0525}})
    'steps 10 to 19: decay sets the learning rate 10 times, from 0.125 to 0.0525'
    """
    last = mapping_of(event, "last")
    steps = f"steps {figure(event.get('step'))} to {figure(last.get('step'))}"
    values = f"from {figure(event.get('to'))} to {figure(last.get('to'))}"
    what = f"sets the {text_of(event, 'what')} {figure(event.get('times'))} times"
    return f"{steps}: {text_of(event, 'rule')} {what}, {values}"


def noted(event: Fields) -> str:
    """A decision that this version writes down and does not carry out."""
    return f"step {figure(event.get('step'))}: {_asks(event, 'asks for')}; written down, not carried out"


def would_have(event: Fields) -> str:
    """What a rule in the shadow would have asked for."""
    return f"step {figure(event.get('step'))}: {_asks(event, 'would have asked for')}"


def held_back(event: Fields) -> str:
    """What a rule asked for when the job's budget of rescales was used up."""
    rule = text_of(event, "rule").removeprefix("held(").removesuffix(")")
    what = _asks({**event, "rule": rule}, "asks for")
    return f"step {figure(event.get('step'))}: {what}; held back, for the job's budget of rescales is used up"


def _asks(event: Fields, verb: str) -> str:
    action, asked = text_of(event, "action"), number(event.get("asked"))
    ranks = ", ".join(str(rank) for rank in items_of(event, "ranks"))
    what = _ACTIONS.get(action, action) + (f": {figure(asked)}" if asked is not None else "")
    return f"{text_of(event, 'rule')} {verb} {what}" + (f" rank {ranks}" if ranks else "")
