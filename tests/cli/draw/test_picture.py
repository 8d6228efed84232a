"""The picture of a run: what becomes one, and what is said beside it."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from kungfu.cli.draw.picture import _title, draw_command
from kungfu.cli.draw.recorded_run import read_run
from kungfu.cli.main import main
from kungfu.errors import UsageError
from tests.cli.recorded import GROWN, Events, measured, written
from tests.event_log.made import made


def drawn(folder: Path, metrics: Sequence[Mapping[str, Any]], *, events: Events = GROWN) -> tuple[int, int]:
    """Width and height of the picture of a run with these metrics, in pixels, from the PNG itself."""
    assert draw_command(written(folder, events, metrics=metrics), folder / "a.png", signals=None) == 0
    image = (folder / "a.png").read_bytes()
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
        drawn(tmp_path, [{"loss": 1.0}])


def test_a_picture_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    run = written(tmp_path, GROWN, metrics=[measured(1)])
    with pytest.raises(UsageError, match=r"none/a\.png: No such file"):
        draw_command(run, tmp_path / "none" / "a.png", signals=None)


def test_the_title_counts_the_losses_of_peers_and_what_they_stopped(tmp_path: Path) -> None:
    lost = made(**{"event": "recovered", "step": 200, "from": 3, "to": 2, "lost": {"1": "killed"}, "stop_s": 11.8})
    metrics = [measured(step) for step in range(1, 300)]
    run = read_run(written(tmp_path, [*GROWN, lost], metrics=metrics))
    assert _title(run, tmp_path / "a") == (
        "a: 299 steps, 2 rescales and 1 recovery, for which training stood still for 12.0 s"
    )
    assert drawn(tmp_path, metrics, events=[*GROWN, lost]) == drawn(tmp_path, metrics)


def test_each_signal_that_changes_has_a_panel_of_its_own(tmp_path: Path) -> None:
    without = drawn(tmp_path, [measured(step) for step in range(1, 30)])
    with_two = drawn(
        tmp_path, [measured(step, gain=1.0 / step, rescales_left=step % 3, cap=4) for step in range(1, 30)]
    )
    assert with_two[0] == without[0]
    assert with_two[1] - without[1] == 2 * round(1.9 * 120)


def test_the_command_says_what_is_not_in_the_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [measured(step, **{f"s{nth}": 1.0 * nth * step for nth in range(1, 7)}) for step in range(1, 9)]
    run = str(written(tmp_path, GROWN, metrics=rows))
    assert main(["draw", run]) == 0
    note = "note: not drawn: s5, s6 (--signals NAME,NAME draws up to 12)"
    assert capsys.readouterr().out.splitlines() == [str(tmp_path / "run.png"), note]
    assert main(["draw", run, "--signals", "s5, s6", "--to", str(tmp_path / "two.png")]) == 0
    assert capsys.readouterr().out.splitlines() == [str(tmp_path / "two.png")]
    assert main(["draw", run, "--signals", ""]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_a_run_without_signals_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"step": step, "size": 2, "batch": 8, "loss": 1.0, "samples_per_s": 9.0} for step in range(1, 9)]
    run = str(written(tmp_path, GROWN, metrics=rows))
    assert main(["draw", run]) == 0
    assert capsys.readouterr().out.splitlines()[1] == (
        "note: no signal of a policy is in the record: the picture shows size, batch, loss and samples/s"
    )
    assert main(["draw", run, "--signals", "gain"]) == 2
    assert "--signals gain: no signal of this name is in the record; it has none" in capsys.readouterr().err
