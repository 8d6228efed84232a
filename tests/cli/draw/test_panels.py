"""The panels of every picture, and of the policies' own signals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from msgspec.structs import replace

from kungfu.cli.draw.panels import _typical, draw_changes, draw_loss, draw_noise, draw_signal, smoothed
from kungfu.cli.draw.recorded_run import RecordedRun, chosen_signals, run_of_rows
from kungfu.errors import UsageError
from kungfu.event_log.events import RescaleEvent
from tests.cli.recorded import GROWN, Events, measured
from tests.event_log.made import made


def drawn(run: RecordedRun, draw: Callable[..., None] = draw_signal, **given: str) -> Any:
    """A panel that one function has drawn."""
    panel = Figure().subplots()
    draw(panel, run, **given)
    return panel


def test_smoothing_is_the_median_of_known_values_and_stops_at_a_change_of_size() -> None:
    speed = np.array([1.0, np.nan, 3.0, 10.0, 20.0, 900.0, np.nan])
    size = np.array([2.0, 2.0, 2.0, 3.0, 3.0, 3.0, 2.0])
    np.testing.assert_array_equal(smoothed(speed, size), [2.0, 2.0, 2.0, 20.0, 20.0, 20.0, np.nan])


def test_an_epochs_last_batch_does_not_break_the_line_of_the_batch() -> None:
    batch = np.array([32.0] * 6 + [29.0] + [32.0] * 5 + [48.0] * 6 + [5.0])
    np.testing.assert_array_equal(_typical(batch, among=9), [32.0] * 12 + [48.0] * 7)


def test_steps_whose_loss_is_no_number_are_marked_in_its_panel() -> None:
    rows = [measured(step, loss="NaN" if step > 40 else 1.0) for step in range(1, 61)]
    (marks,) = drawn(run_of_rows(rows), draw_loss).collections
    assert marks.get_label() == "NaN, first at step 41"
    assert marks.get_offsets()[:, 0].tolist() == list(range(41, 61))


def test_a_line_of_few_steps_begins_and_ends_where_the_values_do() -> None:
    falling = np.arange(20.0, 0.0, -1.0)
    line = smoothed(falling, np.zeros(20))
    np.testing.assert_array_equal(line[2:18], falling[2:18])
    assert (line[0], line[-1]) == (19.0, 2.0)


def test_a_run_whose_policies_watch_no_noise_scale_shows_its_batch_alone() -> None:
    panel = drawn(run_of_rows({"step": step, "batch": 32} for step in range(1, 9)), draw_noise)
    assert (panel.get_ylabel(), len(panel.lines), panel.get_legend()) == ("batch (samples)", 1, None)


def test_the_legend_of_the_noise_scale_covers_no_curve() -> None:
    rows = [measured(step, noise_scale=50.0 + step) for step in range(1, 9)]
    panel = drawn(run_of_rows(rows), draw_noise)
    panel.figure.draw_without_rendering()
    assert panel.get_legend().get_window_extent().y0 >= panel.get_window_extent().y1


def test_changes_are_lines_at_their_steps_up_to_the_number_that_a_picture_can_show() -> None:
    rows = [measured(step) for step in range(1, 5001)]
    rescale, lost = next(event for event in GROWN if isinstance(event, RescaleEvent)), made(event="recovered", step=7)
    for steps, expected in (([50, 4000, 60], [50, 60, 4000]), (range(2, 5000, 2), None)):
        panel = Figure().subplots()
        panel.plot([1, 5000], [0.25, 0.5])
        before = panel.get_ylim(), panel.get_xlim()
        events = (*(replace(rescale, step=step) for step in steps), lost)
        draw_changes(panel, run_of_rows(rows, events))
        assert (panel.get_ylim(), panel.get_xlim()) == before
        rescales, losses = ([line[0][0] for line in kind.get_segments()] for kind in panel.collections)
        assert losses == [7]
        assert expected in (None, rescales)
        assert len(rescales) <= 1000


# ---- signals ---------------------------------------------------------------------------------------------------------

DECISION = made(event="decision", step=5, rule="mine", saw={"gain": 2.5, "target": 3.0}, size=2, asked=3)
RATE = made(event="set", step=7, rule="rate", saw={"gain": 3.5}, what="learning rate", to=0.5, over=0, unit="steps")


def run_of(events: Events = (), steps: int = 9, **figures: Any) -> RecordedRun:
    """A run whose signals are these functions of the step."""
    numbers = range(1, steps + 1)
    rows = [measured(step, **{name: value(step) for name, value in figures.items()}) for step in numbers]
    return run_of_rows(rows, events)


def test_the_values_that_decisions_saw_are_marked_with_their_rules() -> None:
    panel = drawn(run_of([DECISION, RATE], gain=lambda step: step / 2), name="gain")
    assert [one.get_offsets().tolist() for one in panel.collections] == [[[7.0, 3.5]], [[5.0, 2.5]]]
    assert [one.get_label() for one in panel.collections] == ["set by rate", "size asked for by mine"]
    assert panel.get_ylabel() == "gain"
    events = [made(event="decision", step=step, rule=f"r{step}", saw={"gain": 1.0}) for step in (1, 2, 3)]
    (marks,) = drawn(run_of(events, gain=float), name="gain").collections
    assert marks.get_label() == "size asked for by r1, r2, ...", "of many rules the first are named"


def test_a_mark_at_the_highest_value_of_a_nearly_flat_signal_is_not_cut() -> None:
    decision = made(event="decision", step=1, rule="mine", saw={"left": 10.0}, size=2, asked=3)
    panel = drawn(run_of([decision], left=lambda step: 10.0 - step % 2), name="left")
    low, high = panel.get_ylim()
    assert low == 0.0
    assert high >= 10.5, "half a mark is left above the value"


def test_signals_of_decisions_come_first_and_constant_ones_are_left_out() -> None:
    fixed = {"cap": lambda step: 4, "learning_rate": lambda step: 0.1}
    run = run_of([DECISION], a=float, b=float, c=float, gain=float, d=float, **fixed)
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
    legend = drawn(run, name="straggler_fractions").get_legend()
    assert [one.get_text() for one in legend.get_texts()] == ["peer 0", "peer 3"]


@pytest.mark.parametrize("steps", [900, 9_000])
def test_a_signal_that_is_no_number_in_half_of_the_steps_has_gaps_and_says_so(steps: int) -> None:
    """Also in the groups of a long run, and where the line is what is typical of values that jump."""
    run = run_of(steps=steps, gain=lambda step: "NaN" if step > steps / 2 and step % 8 else float(step % 7))
    panel = drawn(run, name="gain")
    line = panel.lines[-1]
    gaps = np.isnan(line.get_ydata())
    assert not gaps[: len(gaps) // 2].any()
    assert np.mean(gaps[len(gaps) // 2 :]) > 0.8
    assert [*line.get_markevery()] == (list(range(455, 900, 8)) if steps == 900 else []), "a lone value is a point"
    assert [one.get_text() for one in panel.get_legend().get_texts()] == ["no number in 44 % of the steps"]
    panel.figure.canvas.draw()


def test_a_signal_without_a_number_says_so_and_names_like_formulas_stay_text() -> None:
    panel = drawn(run_of(**{"$\\frac$": lambda step: "NaN"}), name="$\\frac$")
    assert panel.texts[0].get_text() == "no number in any step"
    panel.figure.canvas.draw()
