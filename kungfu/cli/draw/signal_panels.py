"""Panels of the policies' signals, with the values that their decisions used."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from kungfu.cli.draw.panels import draw_curve, fit_axis, line_of
from kungfu.cli.draw.recorded_run import FRACTIONS, RecordedRun
from kungfu.cli.png import BLUE, GREEN, GREY, ORANGE, RED
from kungfu.errors import UsageError
from kungfu.event_log.events import RuleEvent, of_topics
from kungfu.event_log.values import finite_number, label

MOST_SIGNALS = 12  # the limit per picture
_USUAL = 4  # the limit if no signals are requested
_PURPLE = "#6f42c1"
_PEERS = (BLUE, ORANGE, GREEN, _PURPLE, "#0b7285", "#a61e4d", GREY, RED)
# With more peers a legend would hide the lines.
_MOST_NAMED = 8
# The sizes of the marks at the inputs of a rule: for a requested size, and for a setting.
_MARK_SIZES = {"D": 34, "o": 14}
_MEANINGS = {"D": "size asked for by", "o": "set by"}
# The noise scale already has a panel with the batch.
_ELSEWHERE = "noise_scale"


def changing_signals(run: RecordedRun) -> tuple[str, ...]:
    """The signals with more than one value in the run; inputs of decisions come first."""
    seen = {name for event in of_topics(run.events, "decision", "setting") for name in event.saw}
    changing = [name for name in run.signals if name != _ELSEWHERE and _changes(run, name)]
    return tuple(sorted(changing, key=lambda name: name not in seen))


def chosen_signals(run: RecordedRun, asked: Sequence[str] | None) -> tuple[str, ...]:
    """The requested signals, else the first of `changing_signals`; raises ``UsageError`` for unknown or too many."""
    if asked is None:
        return changing_signals(run)[:_USUAL]
    names = tuple(dict.fromkeys(asked))
    for name in names:
        if name not in run.signals:
            known = f"it has {', '.join(run.signals)}" if run.signals else "it has none"
            raise UsageError(f"--signals {name}: no signal of this name is in the record; {known}")
    if len(names) > MOST_SIGNALS:
        raise UsageError(f"--signals: {len(names)} signals are too many for a picture; give up to {MOST_SIGNALS}")
    return names


def _changes(run: RecordedRun, name: str) -> bool:
    if name == FRACTIONS:
        return True
    curve = run.curve(name)
    known = np.isfinite(curve.values)
    return bool(known.any()) and curve.low[known].min() != curve.high[known].max()


def draw_signal(panel: Any, run: RecordedRun, *, name: str) -> None:
    """Draws a signal over the steps, with marks at the values that rules used for a requested size or a setting."""
    panel.set_ylabel(_escaped(label(name)))
    if name == FRACTIONS:
        _draw_fractions(panel, run)
        return
    curve = run.curve(name)
    draw_curve(panel, run.steps, curve, color=_PURPLE, line=line_of(curve), linewidth=1.5, label=curve.note)
    marked = [
        *_mark(panel, run.happened("setting"), name, marker="o", colour=GREY),
        *_mark(panel, run.happened("decision"), name, marker="D", colour=RED),
    ]
    if marked or curve.note:
        panel.legend(loc="upper left", frameon=False, fontsize=9)
    fit_axis(panel, np.concatenate([curve.low, curve.high, marked]))
    if not np.isfinite(curve.values).any():
        panel.text(0.5, 0.5, "no number in any step", transform=panel.transAxes, ha="center", color=GREY)


def _mark(panel: Any, events: Sequence[RuleEvent], name: str, *, marker: str, colour: str) -> list[float]:
    """Marks the values of a signal that the rules of events used; returns these values."""
    seen = [(event, finite_number(event.saw.get(name))) for event in events]
    points = [(event.step, value) for event, value in seen if value is not None]
    if not points:
        return []
    rules = list(dict.fromkeys(event.rule for event, value in seen if value is not None))
    named = ", ".join([*rules[:2], "..."] if len(rules) > 2 else rules)
    panel.scatter(
        *zip(*points, strict=True), marker=marker, s=_MARK_SIZES[marker], facecolor="white", edgecolor=colour,
        linewidth=1.5, zorder=3, label=_escaped(f"{_MEANINGS[marker]} {named}"),
    )  # fmt: skip
    return [value for _, value in points]


def _draw_fractions(panel: Any, run: RecordedRun) -> None:
    """Draws a line per peer."""
    of_peers = run.fractions
    for nth, (peer, curve) in enumerate(of_peers.items()):
        draw = partial(draw_curve, color=_PEERS[nth % len(_PEERS)], line=line_of(curve))
        draw(panel, run.steps, curve, linewidth=1.3, label=_escaped(f"peer {peer}"))
    panel.axhline(1.0, color=GREY, linewidth=0.8, linestyle="--")
    if len(of_peers) <= _MOST_NAMED:
        panel.legend(loc="lower left", frameon=False, fontsize=8, ncols=4)
    fit_axis(panel, np.concatenate([*(one.high for one in of_peers.values()), [0.0, 1.2]]))


def _escaped(text: str) -> str:
    """Escapes text so that matplotlib never reads a signal's name as a formula."""
    return text.replace("$", r"\$")
