"""The curves of a run: exact as far as a picture can show, and in groups that lose no extreme beyond."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kungfu.cli.draw import curves
from kungfu.cli.draw.curves import curves_of, read_curves
from kungfu.cli.draw.picture import draw_run
from tests.cli.recorded import GROWN, measured, written


def test_each_step_is_a_point_with_its_last_values_and_what_is_not_known_is_none() -> None:
    rows = [
        {"step": 1, "loss": 3.0},
        {"step": 3, "loss": None, "gain": "Infinity"},
        {"step": 2, "loss": 9.0},
        {"step": 2, "loss": "NaN", "gain": 1.0, "straggler_fractions": {"0": 1.0, "3": None}},
    ]
    found = curves_of(rows)
    assert found.steps.tolist() == [1.0, 2.0, 3.0]
    np.testing.assert_array_equal(found.values["loss"], [3.0, np.nan, np.nan])
    np.testing.assert_array_equal(found.values["gain"], [np.nan, 1.0, np.nan])
    assert found.typical is found.values
    np.testing.assert_array_equal(found.fractions["0"], [np.nan, 1.0, np.nan])
    assert np.isnan(found.fractions["3"]).all()
    assert found.lost == ((2.0, "NaN"),)
    assert found.names == ("step", "loss", "gain", "straggler_fractions")


def test_a_group_has_its_extremes_in_their_order_and_its_median_as_the_typical_value() -> None:
    losses = [5.0, 1.0, 9.0, 2.0, 8.0, 7.0, None, 6.0, 4.0]
    rows = [{"step": step, "loss": loss, "size": 2} for step, loss in enumerate(losses, start=1)]
    found = curves_of(rows, per_group=4)
    assert found.steps.tolist() == [1.0, 4.0, 5.0, 8.0, 9.0]
    assert found.values["loss"].tolist() == [1.0, 9.0, 8.0, 6.0, 4.0]
    assert found.typical["loss"].tolist() == [3.5, 3.5, 7.0, 7.0, 4.0]
    assert found.values["size"].tolist() == [2.0] * 5


def test_a_long_record_is_drawn_from_some_thousand_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "_EXACT_STEPS", 200)
    monkeypatch.setattr(curves, "_GROUPS", 100)
    rows = [measured(step, loss="NaN" if step > 500 else -9.0 if step == 300 else 1.0) for step in range(1, 601)]
    found = read_curves(written(tmp_path, GROWN, metrics=rows))
    assert len(found.steps) == 200
    assert (found.steps[0], found.steps[-1]) == (1.0, 600.0)
    assert np.nanmin(found.values["loss"]) == -9.0
    assert np.nanmin(found.typical["loss"]) == 1.0, "a lone step is not typical"
    assert found.lost[0] == (501.0, "NaN")
    assert len(found.lost) == 17, "one of each group"
    assert draw_run(tmp_path, tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(measured(601)) + "\n")
    assert read_curves(tmp_path).steps[-1] == 601.0
