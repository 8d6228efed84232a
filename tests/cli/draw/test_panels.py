"""The panels of every picture."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from msgspec.structs import replace

from kungfu.cli.draw.panels import _typical, draw_changes, draw_loss, draw_noise, smoothed
from kungfu.cli.draw.recorded_run import run_of_rows
from kungfu.event_log.events import RescaleEvent
from tests.cli.recorded import GROWN, measured
from tests.event_log.made import made


def test_smoothing_is_the_median_of_known_values_and_stops_at_a_change_of_size() -> None:
    speed = np.array([1.0, np.nan, 3.0, 10.0, 20.0, 900.0, np.nan])
    size = np.array([2.0, 2.0, 2.0, 3.0, 3.0, 3.0, 2.0])
    np.testing.assert_array_equal(smoothed(speed, size), [2.0, 2.0, 2.0, 20.0, 20.0, 20.0, np.nan])


def test_an_epochs_last_batch_does_not_break_the_line_of_the_batch() -> None:
    batch = np.array([32.0] * 6 + [29.0] + [32.0] * 5 + [48.0] * 6 + [5.0])
    np.testing.assert_array_equal(_typical(batch, among=9), [32.0] * 12 + [48.0] * 7)


def test_steps_whose_loss_is_no_number_are_marked_in_its_panel() -> None:
    rows = tuple(measured(step, loss="NaN" if step > 40 else 1.0) for step in range(1, 61))
    panel = Figure().subplots()
    draw_loss(panel, run_of_rows(rows))
    (marks,) = panel.collections
    assert marks.get_label() == "NaN, first at step 41"
    assert marks.get_offsets()[:, 0].tolist() == list(range(41, 61))


def test_a_line_of_few_steps_begins_and_ends_where_the_values_do() -> None:
    falling = np.arange(20.0, 0.0, -1.0)
    line = smoothed(falling, np.zeros(20))
    np.testing.assert_array_equal(line[2:18], falling[2:18])
    assert (line[0], line[-1]) == (19.0, 2.0)


def test_a_run_whose_policies_watch_no_noise_scale_shows_its_batch_alone() -> None:
    rows = tuple({"step": step, "batch": 32} for step in range(1, 9))
    panel = Figure().subplots()
    draw_noise(panel, run_of_rows(rows))
    assert (panel.get_ylabel(), len(panel.lines), panel.get_legend()) == ("batch (samples)", 1, None)


def test_changes_are_lines_at_their_steps_up_to_what_a_picture_can_show() -> None:
    """Changes are lines at their steps, and of very many the picture has as many as it can show."""
    rows = tuple(measured(step) for step in range(1, 5001))
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
