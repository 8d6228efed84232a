"""The picture of a run."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from kungfu.cli.draw import _draw_loss, _read, _Run, _title, _typical, draw_run, smoothed
from kungfu.errors import UsageError
from tests.cli.recorded import GROWN, Events, measured, written
from tests.event_log.made import made


def drawn(folder: Path, metrics: Sequence[Mapping[str, Any]], *, events: Events = GROWN) -> tuple[int, int]:
    """Width and height of the picture of a run with these metrics, in pixels, from the PNG itself."""
    image = draw_run(written(folder, events, metrics=metrics), folder / "a.png").read_bytes()
    assert image.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", image[16:24])
    return width, height


def test_a_run_becomes_a_picture_of_a_readable_size(tmp_path: Path) -> None:
    steps = [measured(step, size=2 if step < 163 else 3) for step in range(1, 480)]
    width, height = drawn(tmp_path, steps)
    assert width >= 1000
    assert height >= 1000


UNKNOWN = {"size": None, "batch": None, "loss": None, "samples_per_s": None, "noise_scale": None}


@pytest.mark.parametrize(
    "metrics",
    [
        [measured(1)],
        [measured(1, **UNKNOWN), measured(2, **UNKNOWN)],
        [{"step": 1}, {"step": 2}],
        [measured(3), measured(1), measured(2, loss="x"), {"no": "step"}],
        [measured(step, loss=0.0, samples_per_s=0.0) for step in range(1, 30)],
        [measured(step, loss=-1.0, noise_scale=10.0**step) for step in range(1, 12)],
    ],
    ids=["one step", "all unknown", "only steps", "disorder", "zeros", "negative loss and decades"],
)
def test_values_that_are_unknown_or_odd_leave_a_picture(tmp_path: Path, metrics: list[dict[str, Any]]) -> None:
    assert drawn(tmp_path, metrics) == drawn(tmp_path, [measured(1)])


def test_events_with_empty_fields_leave_a_picture(tmp_path: Path) -> None:
    events = [made(event="decision", step=2), made(event="rescale", step=2), made(event="rescale")]
    assert drawn(tmp_path, [measured(1), measured(2)], events=events)


def test_a_run_without_a_step_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no step of the run was measured"):
        draw_run(written(tmp_path, GROWN, metrics=[{"loss": 1.0}]), tmp_path / "a.png")


def test_a_picture_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    run = written(tmp_path, GROWN, metrics=[measured(1)])
    with pytest.raises(UsageError, match=r"none/a\.png: No such file"):
        draw_run(run, tmp_path / "none" / "a.png")


def test_smoothing_is_the_median_of_known_values_and_stops_at_a_change_of_size() -> None:
    speed = np.array([1.0, np.nan, 3.0, 10.0, 20.0, 900.0, np.nan])
    size = np.array([2.0, 2.0, 2.0, 3.0, 3.0, 3.0, 2.0])
    np.testing.assert_array_equal(smoothed(speed, size), [2.0, 2.0, 2.0, 20.0, 20.0, 20.0, np.nan])


def test_an_epochs_last_batch_does_not_break_the_line_of_the_batch() -> None:
    batch = np.array([32.0] * 6 + [29.0] + [32.0] * 5 + [48.0] * 6 + [5.0])
    np.testing.assert_array_equal(_typical(batch, among=9), [32.0] * 12 + [48.0] * 7)


def test_the_title_counts_the_losses_of_peers_and_what_they_stopped(tmp_path: Path) -> None:
    lost = made(**{"event": "recovered", "step": 200, "from": 3, "to": 2, "lost": {"1": "killed"}, "stop_s": 11.8})
    metrics = [measured(step) for step in range(1, 300)]
    run = _read(written(tmp_path, [*GROWN, lost], metrics=metrics))
    assert _title(run, tmp_path / "a") == (
        "a: 299 steps, 2 rescales and 1 recovery, for which training stood still for 12.0 s"
    )
    assert drawn(tmp_path, metrics, events=[*GROWN, lost]) == drawn(tmp_path, metrics)


def test_steps_whose_loss_is_no_number_are_marked_in_its_panel() -> None:
    rows = tuple(measured(step, loss="NaN" if step > 40 else 1.0) for step in range(1, 61))
    panel = Figure().subplots()
    _draw_loss(panel, _Run(np.arange(1.0, 61.0), rows, ()))
    (marks,) = panel.collections
    assert marks.get_label() == "NaN, first at step 41"
    assert marks.get_offsets()[:, 0].tolist() == list(range(41, 61))
