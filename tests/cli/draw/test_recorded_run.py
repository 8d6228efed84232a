"""The curves of a run: exact as far as a picture can show, and in groups that lose no extreme beyond."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from kungfu.cli.draw import recorded_run
from kungfu.cli.draw.panels import draw_loss, draw_noise, draw_signal, draw_speed
from kungfu.cli.draw.picture import draw_command
from kungfu.cli.draw.recorded_run import run_of_rows
from tests.cli.recorded import GROWN, measured, written


def test_each_step_is_a_point_with_its_last_values_and_what_is_not_known_is_none() -> None:
    rows = [
        {"step": 1, "loss": 3.0},
        {"step": 3, "loss": None, "gain": "Infinity"},
        {"step": 2, "loss": 9.0},
        {"step": 2, "loss": "NaN", "gain": 1.0, "straggler_fractions": {"0": 1.0, "3": None}},
    ]
    found = run_of_rows(rows)
    assert found.steps.tolist() == [1.0, 2.0, 3.0]
    loss = found.curve("loss")
    for values in (loss.low, loss.values, loss.high):
        np.testing.assert_array_equal(values, [3.0, np.nan, np.nan])
    np.testing.assert_array_equal(found.curve("gain").values, [np.nan, 1.0, np.nan])
    assert [*found.fractions] == ["0"]
    np.testing.assert_array_equal(found.fractions["0"].values, [np.nan, 1.0, np.nan])
    assert (found.lost.tolist(), found.lost_as) == ([2.0], "NaN")
    assert found.signals == ("gain", "straggler_fractions")


def test_a_long_record_is_drawn_from_few_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [measured(step, loss="NaN" if step > 500 else -9.5 if step == 300 else 1.0) for step in range(1, 601)]
    found = run_of_rows(rows, most_groups=200)
    assert len(found.steps) == 150
    assert found.steps[-1] == 600.0
    assert np.nanmin(found.curve("loss").low) == -9.5
    assert np.nanmin(found.curve("loss").values) == 1.0, "a lone step is not typical"
    assert (found.lost[0], found.lost_as) == (501.0, "NaN")
    assert len(found.lost) == 25, "one of each group"
    monkeypatch.setattr(recorded_run, "MOST_GROUPS", 200)
    assert draw_command(written(tmp_path, GROWN, metrics=rows), tmp_path / "a.png", signals=None) == 0


@pytest.mark.slow
@pytest.mark.parametrize("steps", [5_000, 100_000])
def test_a_picture_draws_what_is_typical_and_a_jump_where_it_is(steps: int) -> None:
    draw, third = np.random.default_rng(3), steps // 3
    noise = draw.lognormal(0.0, 0.2, steps).tolist()
    rows = (
        {"step": step, "loss": one, "mine": one, "samples_per_s": one * (3 if step >= third else 1),
         "batch": 157 if step % 6 == 0 else 256}
        for step, one in enumerate(noise, start=1)
    )  # fmt: skip
    run = run_of_rows(rows)
    speeds, batches = Figure().subplots(), Figure().subplots()
    for paint in (draw_loss, partial(draw_signal, name="mine")):
        panel = Figure().subplots()
        paint(panel, run)
        line = panel.lines[-1].get_ydata()
        assert np.mean((line > 0.9) & (line < 1.1)) >= 0.99
        assert len(panel.collections) == 1, "the band behind it"
    draw_speed(speeds, run)
    jump, at = speeds.lines[-1].get_ydata(), int(np.searchsorted(run.steps, third))
    assert jump[: at - 1].max() < 1.5
    assert jump[at + 2 :].min() > 2.4
    draw_noise(batches, run)
    assert set(batches.lines[-1].get_ydata()) == {256.0}
