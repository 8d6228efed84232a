"""The panels of every picture."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from kungfu.cli.draw.panels import _typical, draw_loss, draw_noise, smoothed
from kungfu.cli.draw.recorded_run import RecordedRun
from tests.cli.recorded import measured


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
    draw_loss(panel, RecordedRun(np.arange(1.0, 61.0), rows, ()))
    (marks,) = panel.collections
    assert marks.get_label() == "NaN, first at step 41"
    assert marks.get_offsets()[:, 0].tolist() == list(range(41, 61))


def test_a_run_whose_policies_watch_no_noise_scale_shows_its_batch_alone() -> None:
    rows = tuple({"step": step, "batch": 32} for step in range(1, 9))
    panel = Figure().subplots()
    draw_noise(panel, RecordedRun(np.arange(1.0, 9.0), rows, ()))
    assert (panel.get_ylabel(), len(panel.lines), panel.get_legend()) == ("batch (samples)", 1, None)
