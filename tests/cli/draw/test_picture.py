"""The picture of a run: what becomes one, and what is said beside it."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from kungfu.cli.draw.picture import _title, draw_command
from kungfu.cli.draw.recorded_run import read_run
from kungfu.errors import UsageError
from tests.cli.conftest import Printed
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
    assert min(drawn(tmp_path, steps)) >= 1000
    events = [made(event="decision", step=2), made(event="rescale", step=2), made(event="rescale")]
    assert drawn(tmp_path, steps[:2], events=events), "also of events with empty fields"


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


def test_what_cannot_be_drawn_or_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no step of the run was measured"):
        drawn(tmp_path, [{"loss": 1.0}])
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
    width, height = drawn(tmp_path, [measured(step) for step in range(1, 30)])
    two = [measured(step, gain=1.0 / step, rescales_left=step % 3, cap=4) for step in range(1, 30)]
    assert drawn(tmp_path, two) == (width, height + 2 * round(1.9 * 120))


def test_the_command_says_what_is_not_in_the_picture(tmp_path: Path, printed: Printed) -> None:
    rows = [measured(step, **{f"s{nth}": 1.0 * nth * step for nth in range(1, 7)}) for step in range(1, 9)]
    run, other = written(tmp_path, GROWN, metrics=rows), tmp_path / "two.png"
    note = "note: not drawn: s5, s6 (--signals NAME,NAME draws up to 12)"
    assert printed("draw", run) == f"{tmp_path / 'run.png'}\n{note}\n"
    assert printed("draw", run, "--signals", "s5, s6", "--to", other) == f"{other}\n"
    assert len(printed("draw", run, "--signals", "").splitlines()) == 1


def test_a_run_without_signals_says_so(tmp_path: Path, printed: Printed) -> None:
    rows = [{"step": step, "size": 2, "batch": 8, "loss": 1.0, "samples_per_s": 9.0} for step in range(1, 9)]
    run = written(tmp_path, GROWN, metrics=rows)
    note = "note: no signal of a policy is in the record: the picture shows size, batch, loss and samples/s"
    assert printed("draw", run).splitlines()[1] == note
    refused = printed("draw", run, "--signals", "gain", code=2)
    assert "--signals gain: no signal of this name is in the record; it has none" in refused


def test_the_data_are_those_of_the_picture(tmp_path: Path, printed: Printed) -> None:
    rows = [
        measured(step, gain=1.0 * step, other=2.0 * step, loss="NaN" if step == 3 else 0.5, size=2 if step < 6 else 3,
                 straggler_fractions={"0": 1.0, "7": 0.5})
        for step in range(1, 302)
    ]  # fmt: skip
    run = written(tmp_path, GROWN, metrics=rows)
    given = json.loads(printed("draw", run, "--json", "--signals", "gain,straggler_fractions"))
    assert not (tmp_path / "run.png").exists()
    assert given["steps"] == list(range(1, 302))
    assert list(given["curves"]) == ["size", "batch", "noise_scale", "loss", "samples_per_s", "gain"]
    loss = given["curves"]["loss"]
    assert (loss["median"][1:4], loss["not_finite_share"][1:4]) == ([0.5, None, 0.5], [0.0, 1.0, 0.0])
    assert given["curves"]["samples_per_s"]["median"][0] is None, "the first step was not timed"
    assert given["curves"]["gain"] == {**given["curves"]["gain"], "median": [1.0 * step for step in range(1, 302)]}
    assert given["peers"]["7"]["high"][:2] == [0.5, 0.5]
    assert given["not_finite"] == {"loss": "NaN", "steps": [3]}
    assert [(one["event"], one["step"]) for one in given["events"]] == [
        ("decision", 50), ("rescale", 163), ("decision", 300), ("rescale", 301)
    ]  # fmt: skip
    assert (given["signals"], given["not_drawn"]) == (
        ["noise_scale", "gain", "other", "straggler_fractions"],
        ["other"],
    )


def test_a_long_run_is_given_in_groups_and_an_unknown_signal_is_refused(tmp_path: Path, printed: Printed) -> None:
    run = written(tmp_path, GROWN, metrics=[measured(step) for step in range(1, 10_001)])
    given = json.loads(printed("draw", run, "--json"))
    assert 1024 <= len(given["steps"]) <= 2048
    assert given["steps"][-1] == 10_000
    assert {len(curve) for one in given["curves"].values() for curve in one.values()} == {len(given["steps"])}
    assert given["curves"]["noise_scale"]["low"] < given["curves"]["noise_scale"]["high"]
    assert given["peers"] == {}
    assert "no signal of this name" in printed("draw", run, "--json", "--signals", "gain", code=2)
    assert "give one of the two" in printed("draw", run, "--json", "--to", tmp_path / "a.png", code=2)
