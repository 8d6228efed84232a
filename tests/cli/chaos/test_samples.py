"""Whether samples were lost or used twice, as the record tells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kungfu.cli.chaos.samples import CountedStep, check_epochs, check_steps, read_steps, trace_offset


def steps(count: int) -> list[CountedStep]:
    return [CountedStep(step, 12 * (step - 1), 12) for step in range(1, count + 1)]


def row(step: int, epoch: int, batch: int = 10) -> dict[str, Any]:
    return {"step": step, "epoch": epoch, "batch": batch}


def test_steps_that_rank_0_took_with_it_are_bridged_by_the_position_after_them() -> None:
    check = check_steps([one for one in steps(9) if one.step not in (4, 5)])
    assert check.problems == ()
    assert check.notes == ("steps 4 to 5 are not recorded, and had 24 samples",)


def test_samples_that_were_left_out_or_used_twice_are_counted() -> None:
    first, second, third = steps(3)
    (lost,) = check_steps([first, CountedStep(2, 15, 12), CountedStep(3, 27, 12)]).problems
    assert "3 samples were left out" in lost
    (twice,) = check_steps([first, second, CountedStep(3, 20, 12)]).problems
    assert "4 samples were used twice" in twice
    (back,) = check_steps([first, CountedStep(5, 10, 12)]).problems
    assert "2 samples were used twice" in back, "also over steps that are not recorded"
    assert check_steps([third]).problems == ()


def test_a_step_beyond_the_end_of_its_epoch_is_a_problem() -> None:
    check = check_steps([CountedStep(step, 12 * (step - 1), 12, 24) for step in range(1, 6)])
    assert (check.samples, check.problems, check.notes) == (60, (), ()), "each second step ends an epoch"
    (beyond,) = check_steps([CountedStep(1, 0, 12, 20), CountedStep(2, 12, 12, 20)]).problems
    assert beyond == "step 2 went beyond the end of its epoch of 20 samples"


def test_nothing_recorded_is_no_problem_but_told() -> None:
    assert check_steps([]).notes == ("the record does not show the samples",)
    assert check_epochs([], since=0).notes


def test_the_trace_is_read_from_its_offset_and_a_step_done_again_counts_once(tmp_path: Path) -> None:
    def line(step: int, view: int, done: int, **more: Any) -> str:
        agreed = {"samples_done": done, "total_samples": 12, "epoch_samples": 200}
        return json.dumps({"step": step, "view": view, "rank": 0, "local": {}, "agreed": agreed, **more}) + "\n"

    path = tmp_path / "trace.jsonl"
    assert (trace_offset(tmp_path), read_steps(tmp_path, offset=0)) == (0, [])
    path.write_text(line(1, 1, 0))
    begin = path.stat().st_size - 5
    assert trace_offset(tmp_path) == 0, "some steps before the newest one"
    other = json.dumps({"step": 3, "view": 1, "rank": 1, "local": {}}) + "\n"
    with path.open("a") as file:
        file.write(line(3, 2, 24) + line(2, 1, 12) + line(3, 1, 99) + other + '{"step": 4, "agreed": {"sam')
    found = read_steps(tmp_path, offset=begin)
    assert found == [CountedStep(2, 12, 12, 200), CountedStep(3, 24, 12, 200)], "in their order, of the later view"


def test_epochs_are_counted_where_there_is_no_trace() -> None:
    rows = [row(step, (step - 1) // 4) for step in range(1, 21)]
    assert check_epochs(rows, since=6).found == "3 whole epochs of 40 samples each"
    (wrong,) = check_epochs([{**one, "batch": 9} if one["step"] == 10 else one for one in rows], since=6).problems
    assert wrong == "epoch 2 had 39 samples, where others have 40"
    without = [one for one in rows if one["step"] != 10]
    assert check_epochs(without, since=6).found == "2 whole epochs of 40 samples each", "without the one with a gap"
    again = [*rows[:10], row(9, 2, batch=7), *rows[9:]]
    (wrong,) = check_epochs(again, since=6).problems
    assert wrong == "epoch 2 had 37 samples, where others have 40", "of a repeated step the last line counts"
    assert check_epochs([{**one, "epoch": one["epoch"] % 2} for one in rows], since=6).notes, "a second fit counts anew"
    assert check_epochs(rows[:5], since=0).notes == ("no whole epoch is recorded: its samples were not counted",)
