"""Pictures are written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from kungfu.errors import UsageError
from kungfu_planning.schedule import fifo, simulate
from kungfu_planning.schedule.report import save_plot
from tests.planning.schedule.instances import rows


@pytest.mark.slow
def test_a_plot_is_a_picture_and_nothing_else_is_left(tmp_path: Path) -> None:
    result = simulate(rows((0, 1, 10.0), (1, 1, 10.0)), gpus=1, policy=fifo())
    assert save_plot([result], path=tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UsageError, match=r"cannot write the plot .*plot\.abc"):
        save_plot([result], path=tmp_path / "plot.abc")
    with pytest.raises(UsageError, match="cannot write the plot"):
        save_plot([result], path=tmp_path / "nowhere" / "plot.png")
    assert [path.name for path in tmp_path.iterdir()] == ["plot.png"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("runs_s", "unit"), [(1.0, "seconds"), (150.0, "minutes"), (36_000.0, "hours"), (864_000.0, "days")]
)
def test_time_is_told_in_the_largest_unit_of_which_there_are_two(tmp_path: Path, runs_s: float, unit: str) -> None:
    result = simulate(rows((0, 1, runs_s)), gpus=1, policy=fifo())
    assert f"<!-- {unit} -->" in save_plot([result], path=tmp_path / "plot.svg").read_text(encoding="utf-8")
