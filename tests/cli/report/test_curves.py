"""The curves of a page: bounded, whatever the length of a run, and without losing an extreme."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kungfu.cli.report.curves import MOST_CURVES, MOST_GROUPS, Curves

Points = dict[str, Any]
KEYS = ("low", "values", "high")
NOTHING: Points = {"from": 0, "firsts": [], "steps": [], "times": [], "curves": []}


def row(step: int, **numbers: Any) -> dict[str, Any]:
    return {"step": step, "time": 100.0 + step, **numbers}


def values(points: Points, name: str) -> list[float | None]:
    return next(one["values"] for one in points["curves"] if one["name"] == name)


def applied(known: Points, update: Points | None) -> Points:
    """What a browser has after an update, as ``run.js`` does it."""
    if update is None:
        return known
    at = update["from"]
    joined = {key: known[key][:at] + update[key] for key in ("firsts", "steps", "times")}
    before = {one["name"]: one for one in known["curves"]}
    curves = []
    for one in update["curves"]:
        old = before.get(one["name"], dict.fromkeys(KEYS, [None] * at))
        curves.append({**one, **{key: old[key][:at] + one[key] for key in KEYS}})
    return {"from": 0, **joined, "curves": curves}


@settings(max_examples=settings.default.max_examples // 4)
@given(st.lists(st.integers(min_value=1, max_value=700), min_size=1, max_size=12), st.data())
def test_updates_come_to_the_same_as_the_whole(bursts: list[int], data: st.DataObject) -> None:
    curves, known, step = Curves(), NOTHING, 0
    for burst in bursts:
        step = max(0, step - data.draw(st.sampled_from([0, 0, 1, 30, 5000])))
        for _ in range(burst):
            step += 1
            curves.add(row(step, loss=float(step % 13), **({"noise": 1.0} if step > 900 else {})))
        known = applied(known, curves.changed())
        assert known == curves.all()
    assert curves.changed() is None


def test_the_times_of_joined_steps_are_in_order_and_end_with_that_of_the_last_step() -> None:
    curves, last = Curves(), 5 * MOST_GROUPS - 1
    for step in range(1, last + 1):
        curves.add(row(step))
    times = curves.all()["times"]
    assert times == sorted(times)
    assert times[-1] == row(last)["time"]


def test_steps_that_are_done_again_replace_what_they_were() -> None:
    curves = Curves()
    for step in (1, 2, 3, 4):
        curves.add(row(step, loss=1.0))
    curves.changed()
    curves.add(row(3, loss=9.0))
    loss = {"name": "loss", "low": [9.0], "values": [9.0], "high": [9.0], "newest": (3, 9.0), "note": ""}
    assert curves.changed() == {"from": 2, "firsts": [3], "steps": [3], "times": [104.0], "curves": [loss]}
    assert curves.all()["steps"] == [1, 2, 3]
    curves.add(row(2))
    assert curves.all()["curves"][0]["newest"] is None, "what is done again is not known yet"


def test_what_is_no_number_is_a_gap_and_what_is_no_step_is_left_out() -> None:
    curves = Curves()
    for line in (
        row(1, loss=1.0), row(2, loss="NaN", text="<b>", flag=True, deep={"a": 1}), row(3, loss="Infinity"),
        row(True), {"step": "4"}, {"loss": 1.0}, {"step": -1}, {"step": 10**400}, {"step": 4, "time": None, "loss": 2},
    ):  # fmt: skip
        curves.add(line)
    points = curves.all()
    assert points["steps"] == [1, 2, 3, 4]
    assert [one["name"] for one in points["curves"]] == ["loss"]
    assert values(points, "loss") == [1.0, None, None, 2.0]


def test_more_curves_than_anybody_reads_are_counted_and_not_kept() -> None:
    curves = Curves()
    for step in range(1, 4):
        curves.add(row(step, **{f"signal_{step}_{nth}": 1.0 for nth in range(1000)}))
    assert len(curves.all()["curves"]) == MOST_CURVES
    assert len(curves.left_out) == MOST_CURVES
