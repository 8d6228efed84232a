"""The points that a chart of the page is given, in node: a line that is typical, and extremes beside it."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from kungfu.cli.page import app
from kungfu.cli.report.curves import Curves

STATIC = Path(app.__file__).parent / "static"
PROGRAM = """
import { readFileSync } from "node:fs";
import { captionOf, chartsOf, isFlat, lonely, pointsOf, readoutOf } from "./points.js";
import { Run } from "./run.js";
const told = JSON.parse(readFileSync(0)).map((updates) => {
  const run = new Run();
  for (const curves of updates) run.add({ curves });
  const newest = run.steps.length - 1;
  return Object.fromEntries([...chartsOf(run)].map((shown) => [shown.key, {
    points: pointsOf(run, shown, "steps"), lonely: lonely(pointsOf(run, shown, "steps")[3]),
    flat: isFlat(run, shown), caption: captionOf(run, shown), readout: readoutOf(run, shown, newest),
  }]));
});
console.log(JSON.stringify(told));
"""
Rows = Iterable[dict[str, Any]]


def charts(folder: Path, *runs: Rows) -> list[dict[str, Any]]:
    """What each chart of these runs is given, by its key; a browser has come in the middle of each of them."""
    if not (node := shutil.which("node")):
        pytest.skip("no node here, which runs the page's JavaScript")
    shutil.copytree(STATIC, folder / "static")
    (folder / "static" / "package.json").write_text('{"type": "module"}')
    program, sent = folder / "static" / "program.js", json.dumps([updates(rows) for rows in runs])
    program.write_text(PROGRAM)
    done = subprocess.run([node, program], input=sent, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def updates(rows: Rows) -> list[dict[str, Any]]:
    curves, sent = Curves(), []
    for nth, row in enumerate(rows):
        curves.add(row)
        if nth == 700:
            curves.changed()
            sent.append(curves.all())
    if update := curves.changed():
        sent.append(update)
    return sent


def run_of(steps: int, **figures: Callable[[int], Any]) -> Rows:
    for step in range(1, steps + 1):
        yield {"time": float(step), "step": step, **{name: value(step) for name, value in figures.items()}}


def noise(*, step_at: float = float("inf")) -> Callable[[int], float]:
    """Log-normal noise of sigma 0.2 about 1, or from a step on about 3."""
    draw = random.Random(5)
    return lambda step: draw.lognormvariate(0.0, 0.2) * (3.0 if step >= step_at else 1.0)


def batch(step: int) -> int:
    return 157 if step % 6 == 0 else 256


@pytest.mark.slow
def test_noise_is_drawn_where_it_is_a_jump_at_once_and_a_batch_as_one_line(tmp_path: Path) -> None:
    """Of 5,000 and of 100,000 steps 99 % of the line lies near the middle; extremes stand beside it."""
    lengths = (5_000, 100_000)
    runs = [
        run_of(n, loss=noise(), mine=noise(), samples_per_s=noise(step_at=n // 3), size=lambda _: 2, batch=batch)
        for n in lengths
    ]
    for steps, drawn in zip(lengths, charts(tmp_path, *runs), strict=True):
        for name in ("loss", "mine"):
            x, high, low, line = drawn[name]["points"]
            assert len(x) == len(line) <= 1024
            assert sum(0.9 < one < 1.1 for one in line) >= 0.99 * len(line)
        assert min(low) < 0.6
        assert max(high) > 1.7
        assert all(one <= other for one, other in zip(low, high, strict=True))
        jump = drawn["samples_per_s"]["points"][3]
        at = next(nth for nth, last in enumerate(x) if last >= steps // 3)
        assert max(jump[: at - 1]) < 1.5
        assert min(jump[at + 2 :]) > 2.4
        assert set(drawn["size"]["points"][-1]) == {256}


def test_what_a_rule_sets_and_a_jump_are_drawn_at_once_and_odd_steps_are_not(tmp_path: Path) -> None:
    short = ({"time": 1.0, "step": step, "epoch": step // 2, "size": 1, "batch": 256 - 99 * (step % 2)}
             for step in range(60))  # fmt: skip
    halved = run_of(900, size=lambda _: 1, batch=lambda step: 256 if step < 400 else 128)
    rate = run_of(5_000, learning_rate=lambda step: 0.5 if 3_001 <= step <= 3_016 else 0.1)
    jump = run_of(300, loss=lambda step: 50.0 if step == 1 else 1.0 if step < 297 else 3.0)
    first, second, third, fourth = charts(tmp_path, short, halved, rate, jump)
    assert {one for one in first["size"]["points"][-1] if one is not None} == {256}, "of epochs of two steps"
    batches = second["size"]["points"][-1]
    assert batches[:398] + batches[402:] == [256] * 398 + [128] * 498
    assert third["learning_rate"]["points"][3].count(0.5) == 2, "set for as long as two groups of steps"
    assert fourth["loss"]["points"][3] == [1.0] * 296 + [3.0] * 4


def test_a_caption_has_the_value_of_the_step_that_it_names(tmp_path: Path) -> None:
    long = run_of(4_998, loss=float, size=lambda _: 2, batch=batch)
    short = run_of(3, loss=lambda step: step / 2)
    many, few = charts(tmp_path, long, short)
    assert many["loss"]["caption"] == "4,998 at step 4,998, from 1 to 4,998 so far"
    assert many["loss"]["readout"] == "steps 4,993 to 4,998: loss 4,996 (4,993 to 4,998)"
    assert many["size"]["caption"] == "size 2 at step 4,998, all the time; batch 256 at step 4,997, all the time"
    assert few["loss"]["caption"] == "1.50 at step 3, from 0.500 to 1.50 so far"
    assert few["loss"]["readout"] == "step 3: loss 1.50"


def test_a_noise_scale_that_is_no_number_in_many_steps_has_gaps_and_says_so(tmp_path: Path) -> None:
    """Beyond 1,024 steps too: a line where most steps of a group are numbers, and how many are none in the caption."""
    even = run_of(5_000, noise_scale=lambda step: "NaN" if step % 2 else 8.0)
    phases = run_of(5_000, noise_scale=lambda step: "NaN" if 1_001 <= step <= 3_400 and step % 4 else 8.0)
    known = {2: 10.0, 3: 11.0, 6: 12.0, 9: 13.0}
    few = run_of(9, size=lambda _: 2, noise_scale=lambda step: known.get(step, "NaN"))
    half, parts, lone = (one["noise_scale"] for one in charts(tmp_path, even, phases, few))
    assert half["caption"] == "8 at step 5,000, all the time, no number in 50 % of the steps"
    assert parts["caption"].endswith("no number in 36 % of the steps")
    x, high, _, line = parts["points"]
    unknown = [last for last, value in zip(x, line, strict=True) if value is None]
    assert (unknown[0], unknown[-1]) == (1008, 3400)
    assert all(value == 8.0 for last, value in zip(x, high, strict=True) if last in unknown), "a band, without a line"
    assert lone["points"][3] == [known.get(step) for step in range(1, 10)]
    assert [lone["points"][0][at] for at in lone["lonely"]] == [6, 9]
    assert lone["caption"] == "13 at step 9, from 10 to 13 so far, no number in 50 % of the steps"


def test_a_signal_with_one_value_or_none_is_folded_and_what_every_job_has_is_not(tmp_path: Path) -> None:
    run = run_of(9, size=lambda _: 2, loss=lambda _: 1.0, rate=lambda _: 0.1, mine=lambda step: step // 9)
    [drawn] = charts(tmp_path, run)
    assert [key for key, one in drawn.items() if one["flat"]] == ["rate"]
