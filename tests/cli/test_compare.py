"""Runs beside each other: what each took to a loss, what it cost, and a plot."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kungfu.cli import compare
from kungfu.cli.compare import figures_of, read_run
from kungfu.cli.main import main
from kungfu.event_log.codec import event_to_line
from kungfu.event_log.events import RECORD_VERSION, RecordEvent
from tests.cli.conftest import Printed
from tests.cli.recorded import GROWN, measured, written


def recorded(folder: Path, *, every_s: float, steps: int = 400, first: int = 1, size: int = 2) -> Path:
    """A run whose loss is 400 less a step, one step each so many seconds."""
    folder.mkdir()
    rows = [
        measured(step, time=107.3 + every_s * (step - first + 1), loss=400.0 - step, size=size, batch=16 * size)
        for step in range(first, first + steps)
    ]
    return written(folder, GROWN, metrics=rows)


def test_time_steps_samples_and_cost_to_a_loss_are_told(tmp_path: Path) -> None:
    told = figures_of(read_run(recorded(tmp_path / "a", every_s=0.5), name="a"), goal=300.0)
    assert told.to_loss == pytest.approx({"time": 50.0, "steps": 100, "samples": 3200, "peer-seconds": 100.0})
    assert (told.steps, told.samples, told.seconds) == (400, 12800, pytest.approx(200.0))
    assert (told.peer_seconds, told.sizes) == (pytest.approx(400.0), (2,))
    assert told.decisions == {"gns_batch": 1, "at_most(gns_batch, schedule)": 1}
    assert (told.changes, told.stopped_s) == ("2 rescales", pytest.approx(0.2))
    assert (told.note, told.loss) == ("", pytest.approx(6.0, abs=7.0))
    assert figures_of(read_run(tmp_path / "a", name="a"), goal=-5.0).to_loss is None


def test_steps_done_again_count_once_and_a_resumed_run_says_where_it_begins(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "a", every_s=1.0, steps=20, first=101)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(measured(120, time=130.0, loss="NaN", size=3, batch=48)) + "\n")
    compared = read_run(folder, name="a")
    assert (len(compared.loss), compared.figures.curve("size").values[-1]) == (20, 3)
    assert np.isfinite(compared.loss).all(), "a typical loss around a step that has none"
    assert figures_of(compared, goal=None).note.startswith("its record begins with step 101")


def test_a_long_run_is_compared_by_groups_of_steps_with_the_same_sums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = recorded(tmp_path / "a", every_s=0.5)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for row in rows[200:250]:
        row["size"] = 3
    whole = read_run(written(folder, GROWN, metrics=rows), name="a")
    monkeypatch.setattr(compare, "MOST_GROUPS", 100)
    thinned = read_run(folder, name="a")
    assert (len(whole.loss), len(thinned.loss)) == (400, 100)
    exact, told = figures_of(whole, goal=300.0), figures_of(thinned, goal=300.0)
    assert exact.sizes == told.sizes == (2, 3, 2)
    for name in ("steps", "samples", "seconds", "peer_seconds", "stopped_s", "changes"):
        assert getattr(told, name) == getattr(exact, name)
    assert told.to_loss == pytest.approx(exact.to_loss, rel=0.1), "within some groups of the step itself"
    assert exact.to_loss is not None


@pytest.mark.slow
@pytest.mark.parametrize("steps", [5_000, 30_000])
def test_a_plot_draws_the_loss_that_is_typical_and_a_jump_where_it_is(tmp_path: Path, steps: int) -> None:
    draw, third = np.random.default_rng(4), steps // 3
    rows = [
        {"time": float(step), "step": step, "size": 2, "loss": one, "samples_per_s": one * (3 if step >= third else 1)}
        for step, one in enumerate(draw.lognormal(0.0, 0.2, steps).tolist(), start=1)
    ]
    compared = read_run(written(tmp_path, GROWN, metrics=rows), name="a")
    assert np.mean((compared.loss > 0.9) & (compared.loss < 1.1)) >= 0.99
    at = int(np.searchsorted(compared.over["steps"], third))
    assert compared.speed[: at - 1].max() < 1.5
    assert compared.speed[at + 2 :].min() > 2.4
    figure = compare.drawn([compared], None, over="steps")
    loss, size, _ = figure.axes
    assert loss.lines[0].get_ydata().tolist() == compared.loss.tolist()
    assert (len(loss.collections), len(size.lines)) == (1, 1), "a band behind the line"


def test_a_loss_that_is_no_number_in_most_steps_of_a_part_is_a_gap_and_noted(tmp_path: Path) -> None:
    rows = [
        measured(step, loss="NaN" if step > 2_500 and step % 4 else step % 3, samples_per_s=1.0 if step < 2_500 else 3)
        for step in range(1, 5_001)
    ]
    compared = read_run(written(tmp_path, GROWN, metrics=rows), name="a")
    assert figures_of(compared, goal=None).note == "loss: no number in 38 % of the steps"
    loss, size, _ = compare.drawn([compared], None, over="steps").axes
    line, half = loss.lines[-1], int(np.searchsorted(compared.over["steps"], 2_500))
    assert line.get_label() == "a (no number in 38 % of the steps)"
    assert not np.isnan(line.get_ydata()[: half + 1]).any()
    assert np.isnan(line.get_ydata()[half + 1 :]).all()
    assert {*line.get_ydata()[: half - 20]} == {1.0}, "what is typical, and a band behind it"
    assert (len(loss.collections), len(size.lines)) == (1, 1)
    assert compared.speed[half - 1] == 1.0
    assert compared.speed[half + 2] == 3.0, "a jump where it is"


def test_the_command_prints_a_table_and_draws_a_plot(
    tmp_path: Path, printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    slow, fast = recorded(tmp_path / "slow", every_s=1.0), recorded(tmp_path / "fast", every_s=0.5, size=4)
    lines = printed("compare", slow, fast, "--loss", "300").splitlines()
    assert any("slow" in line and "fast" in line for line in lines)
    assert any("time to loss 300" in line and "1 min 40 s" in line and "50.0 s" in line for line in lines)
    assert any("peer-seconds to loss 300" in line and line.count("200") == 2 for line in lines)
    assert any("gns_batch: 1" in line for line in lines)
    assert (tmp_path / "compare.png").read_bytes().startswith(b"\x89PNG")
    for over in ("steps", "samples", "peer-seconds"):
        assert main(["compare", str(slow), str(fast), "--over", over, "--to", "other.png", "--json"]) == 0
    assert (tmp_path / "other.png").exists()


def test_json_has_the_figures_and_the_loss_that_all_reach(tmp_path: Path, printed: Printed) -> None:
    first, second = recorded(tmp_path / "a", every_s=1.0), recorded(tmp_path / "b", every_s=1.0, steps=200)
    plot = tmp_path / "plot.png"
    document = json.loads(printed("compare", first, second, "--json", "--to", plot))
    assert 200.0 <= document["loss"] <= 215.0
    assert [one["name"] for one in document["runs"]] == ["a", "b"]
    assert all(one["to_loss"]["steps"] > 180 for one in document["runs"])
    written(first, GROWN, metrics=[{"time": 1.0 + step, "step": step, "size": 2, "batch": 4} for step in range(1, 9)])
    document = json.loads(printed("compare", first, first, "--json", "--to", plot))
    assert (document["loss"], document["runs"][0]["to_loss"]) == (None, None), "runs without a loss"
    assert [one["name"] for one in document["runs"]] == [str(first)] * 2, "one name would not tell them apart"


def test_what_cannot_be_compared_is_refused_with_its_reason(tmp_path: Path, printed: Printed) -> None:
    good, empty, other = recorded(tmp_path / "a", every_s=1.0, steps=9), tmp_path / "empty", tmp_path / "other"
    for folder in (empty, other):
        folder.mkdir()
        written(folder, GROWN)
    (other / "events.jsonl").write_text(event_to_line(RecordEvent(version=RECORD_VERSION + 1)) + "\n")
    for words, text in (
        ([good], "one run is compared with nothing"),
        ([good, empty], "no line of it is a record"),
        ([good, other], f"is of version {RECORD_VERSION + 1}"),
        ([good, tmp_path / "nowhere"], "there is no such folder"),
        ([good, good, "--loss", "nan"], "must be a number"),
        ([good, good, "--to", tmp_path / "no" / "x.png"], "No such file or directory"),
    ):
        assert text in printed("compare", *words, code=2)
