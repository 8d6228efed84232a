"""The panels of the policies' own signals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from kungfu.cli.draw.recorded_run import RecordedRun, run_of_rows
from kungfu.cli.draw.signal_panels import chosen_signals, draw_signal
from kungfu.errors import UsageError
from tests.cli.recorded import Events, measured
from tests.event_log.made import made

DECISION = made(event="decision", step=5, rule="mine", saw={"gain": 2.5, "target": 3.0}, size=2, asked=3)
RATE = made(event="set", step=7, rule="rate", saw={"gain": 3.5}, what="learning rate", to=0.5, over=0, unit="steps")


def run_of(events: Events = (), steps: int = 9, **figures: Any) -> RecordedRun:
    """A run whose signals are these functions of the step."""
    numbers = range(1, steps + 1)
    rows = [measured(step, **{name: value(step) for name, value in figures.items()}) for step in numbers]
    return run_of_rows(rows, events)


def test_the_values_that_decisions_saw_are_marked_with_their_rules() -> None:
    panel = Figure().subplots()
    draw_signal(panel, run_of([DECISION, RATE], gain=lambda step: step / 2), name="gain")
    assert [one.get_offsets().tolist() for one in panel.collections] == [[[7.0, 3.5]], [[5.0, 2.5]]]
    assert [one.get_label() for one in panel.collections] == ["set by rate", "size asked for by mine"]
    assert panel.get_ylabel() == "gain"


def test_of_many_rules_the_first_are_named() -> None:
    events = [made(event="decision", step=step, rule=f"r{step}", saw={"gain": 1.0}) for step in (1, 2, 3)]
    panel = Figure().subplots()
    draw_signal(panel, run_of(events, gain=float), name="gain")
    assert panel.collections[0].get_label() == "size asked for by r1, r2, ..."


def test_signals_of_decisions_come_first_and_constant_ones_are_left_out() -> None:
    def cap(step: int) -> int:
        return 4

    run = run_of([DECISION], a=float, b=float, cap=cap, c=float, gain=float, d=float, learning_rate=lambda step: 0.1)
    assert chosen_signals(run, None) == ("gain", "a", "b", "c")
    assert chosen_signals(run, ["cap", "d", "cap"]) == ("cap", "d")
    assert chosen_signals(run, ["learning_rate"]) == ("learning_rate",)
    assert chosen_signals(run, []) == ()


def test_a_learning_rate_that_changes_is_a_signal_and_the_progress_of_a_job_is_none() -> None:
    run = run_of(learning_rate=lambda step: 1.0 / step, progress=lambda step: {"samples": step})
    assert chosen_signals(run, None) == ("learning_rate",)
    assert run.signals == ("noise_scale", "learning_rate")


def test_what_is_not_there_and_what_is_too_much_is_refused() -> None:
    run = run_of(**{f"s{nth}": float for nth in range(13)})
    with pytest.raises(
        UsageError, match=r"--signals loss: no signal of this name is in the record; it has noise_scale, s0"
    ):
        chosen_signals(run, ["s1", "loss"])
    with pytest.raises(UsageError, match="13 signals are too many for a picture; give up to 12"):
        chosen_signals(run, [f"s{nth}" for nth in range(13)])


def test_the_speeds_of_peers_are_a_line_each() -> None:
    run = run_of(straggler_fractions=lambda step: {"0": 1.0, "3": 0.5} if step > 2 else None)
    assert chosen_signals(run, None) == ("straggler_fractions",)
    panel = Figure().subplots()
    draw_signal(panel, run, name="straggler_fractions")
    assert [one.get_text() for one in panel.get_legend().get_texts()] == ["peer 0", "peer 3"]


@pytest.mark.parametrize("steps", [900, 9_000])
def test_a_signal_that_is_no_number_in_half_of_the_steps_has_gaps_and_says_so(steps: int) -> None:
    """Also in the groups of a long run, and where the line is what is typical of values that jump."""
    run = run_of(steps=steps, gain=lambda step: "NaN" if step > steps / 2 and step % 8 else float(step % 7))
    panel = Figure().subplots()
    draw_signal(panel, run, name="gain")
    line = panel.lines[-1]
    gaps = np.isnan(line.get_ydata())
    assert not gaps[: len(gaps) // 2].any()
    assert np.mean(gaps[len(gaps) // 2 :]) > 0.8
    assert [*line.get_markevery()] == (list(range(455, 900, 8)) if steps == 900 else []), "a lone value is a point"
    assert [one.get_text() for one in panel.get_legend().get_texts()] == ["no number in 44 % of the steps"]
    panel.figure.canvas.draw()


def test_a_signal_without_a_number_says_so_and_names_like_formulas_stay_text() -> None:
    run = run_of(**{"$\\frac$": lambda step: "NaN"})
    panel = Figure().subplots()
    draw_signal(panel, run, name="$\\frac$")
    assert panel.texts[0].get_text() == "no number in any step"
    panel.figure.canvas.draw()
