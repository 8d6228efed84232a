"""``kungfu resize N --plan``: what is told of a change before it is made, from what the job has measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kungfu.cli.job import plan_forecast
from kungfu.cli.job.plan_forecast import SpeedsBySize, read_measured
from kungfu.cli.main import main
from kungfu.compiler import compile_policies
from kungfu.compiler.serialize import plan_to_json
from kungfu.event_log.record_follower import NewRecords
from kungfu.policies import hybrid_scaling, linear_scaling
from kungfu.runtime.core.cluster.cluster import Hosts
from kungfu.trace.lines import header_line
from tests.cli.recorded import GROWN, measured, written
from tests.event_log.made import made
from tests.runtime.job_api.served_job import serve_job

# 700 samples/s with two peers, 1,000 with three.
STEPS = [
    measured(step, size=2 if step <= 20 else 3, samples_per_s=700.0 if step <= 20 else 1000.0, learning_rate=0.1)
    for step in range(1, 41)
]
ROW = {"step": 40, "epoch": 1, "size": 2, "batch": 32, "loss": 0.5, "samples_per_s": 128.0}


def told(capsys: pytest.CaptureFixture[str], folder: Path, *words: object, row: Any = ROW) -> tuple[int, str]:
    """The exit code of a command about a job that has measured a step, and what it prints."""
    with serve_job(folder) as place:
        hosts, alive = Hosts({0: 4}, of={0: 0, 1: 0}), replace(place.cluster.processes, next_id=2)
        place.cluster = replace(place.cluster, hosts=hosts, processes=alive)
        place.put(NewRecords(rows=(row,)))
        code = main([*map(str, words), "--plan", "--logdir", str(folder)])
        assert place.told == [], "nothing was asked of the job"
    return code, capsys.readouterr().out


def test_a_plan_tells_peers_batch_rate_pause_speed_and_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, GROWN, metrics=STEPS)
    header = header_line(plan_to_json(compile_policies([linear_scaling()])), policies=(), every=100)
    (tmp_path / "trace.jsonl").write_text(json.dumps(header) + "\n")
    code, text = told(capsys, tmp_path, "resize", 3, "--keep", "local_batch_size")
    assert code == 0
    assert text.splitlines() == [
        "resize 3 would take view 3 from 2 -> 3 peers; nothing was changed",
        "  starts    peer 2 on 127.0.0.1",
        "  leaves    nobody",
        "  batch     32 -> 48 (+50%) samples, 16 per peer",
        "  rate      0.100 -> 0.150 (+50%), as linear_scaling sets it",
        "  pause     5.3 s to get ready while the others train, then 100 ms in which training stands still",
        "  speed     700 -> 1,000 (+43%) samples/s",
        "  cost      2.86 -> 3.00 (+5%) peer-seconds per 1,000 samples",
        "  refused   5 and more: this job takes 1 to 4 (kungfu-run --min, --max)",
    ]


def test_a_plan_counts_from_the_batch_from_which_the_rules_of_the_job_will_choose(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A growth from one peer that kept the batch of 32, and the return: as it was, and not half of what it is now."""
    header = header_line(plan_to_json(compile_policies([hybrid_scaling({32: 2})])), policies=(), every=100)
    (tmp_path / "trace.jsonl").write_text(json.dumps(header) + "\n")
    base = {"base_global_batch_size": 32, "base_size": 1}
    grown = made(event="rescale", step=301, **{"from": 1}, to=2, view=3, global_batch_size=32, **base)
    set_since = made(event="set", step=310, rule="mine", what="global batch size", to=32.0)
    for events, line in (
        ([*GROWN[:4], grown], "  batch     32 samples, 32 per peer"),
        ([*GROWN[:4], grown, set_since], "  batch     32 -> 16 (-50%) samples, 16 per peer"),
        ([*GROWN[:4], grown, made(event="phase", phase=2, view=3)], "  batch     32 -> 16 (-50%) samples, 16 per peer"),
    ):
        written(tmp_path, events, metrics=STEPS)
        assert line in told(capsys, tmp_path, "resize", 1)[1].splitlines()


def test_on_a_terminal_no_line_of_a_plan_is_wider(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, GROWN, metrics=STEPS)
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes the output for a terminal
    monkeypatch.setenv("COLUMNS", "60")
    _, text = told(capsys, tmp_path, "resize", 3)
    assert max(len(line) for line in text.splitlines()) <= 60
    assert (
        "  note: the record holds no plan, so whether a rule sets\n            batch or learning rate is not known\n"
        in text
    )


def test_a_guess_and_what_is_not_known_are_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, GROWN[:4], metrics=STEPS)
    code, text = told(capsys, tmp_path, "resize", 4)
    assert code == 0
    assert "  speed     700 -> 1,300 (+86%) samples/s" in text
    assert (
        "note: 4 peers were never seen: their throughput is a guess from 2 to 3; `kungfu profile` measures it" in text
    )
    assert "note: no rescale of this job was measured, so the pause is not known" in text
    assert "note: nobody has joined this job yet" in text
    assert "note: the record holds no plan, so whether a rule sets batch or learning rate is not known" in text
    written(tmp_path, GROWN[:4], metrics=STEPS[:20])
    assert "never seen, nor any size but 2" in told(capsys, tmp_path, "scale-out", 1)[1]
    _, text = told(capsys, tmp_path, "scale-in", 1)
    assert "  speed     700 -> 350 (-50%) samples/s" in text
    assert "  leaves    peer 1 on 127.0.0.1" in text


def test_without_a_record_the_plan_is_told_and_what_is_expected_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = told(capsys, tmp_path, "migrate", 1, "localhost")
    assert code == 0
    assert "  starts    peer 2 on 127.0.0.1" in text
    assert "note: nothing is expected from what was measured: " in text
    (tmp_path / "events.jsonl").write_text('{"event": "record", "version": 99}\n')
    assert "is of version 99" in told(capsys, tmp_path, "resize", 3)[1]


def test_a_refused_plan_is_code_1_with_its_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path, GROWN, metrics=STEPS)
    code, text = told(capsys, tmp_path, "resize", 9)
    assert (code, text.splitlines()[0]) == (
        1, "resize 9 would be refused: a size of 9: this job takes 1 to 4 (kungfu-run --min, --max)"
    )  # fmt: skip
    code, text = told(capsys, tmp_path, "resize", 3, "--json")
    document = json.loads(text)
    assert (code, document["after"], document["refusal"]) == (0, 3, "")
    assert document["forecast"]["samples_per_s"] == pytest.approx(1000.0)
    assert document["refused_sizes"] == [
        {"first": 5, "last": None, "reason": "a size of 5: this job takes 1 to 4 (kungfu-run --min, --max)"}
    ]


def test_the_first_steps_of_a_size_do_not_count() -> None:
    rows = [{"size": 2, "batch": 10, "samples_per_s": speed} for speed in (1.0, None, 1.0, 100.0, 100.0)]
    rows += [{"size": 3, "batch": 10, "samples_per_s": 1.0}, {"size": "x"}, {}]
    assert SpeedsBySize(rows).measured() == {2: pytest.approx(100.0)}


def test_of_a_long_record_the_newest_steps_of_each_size_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_forecast, "_STEPS_OF_A_SIZE", 10)
    speeds = {2: 700.0, 3: 1000.0}
    rows = [
        measured(step, size=2 if step <= 163 or step > 301 else 3, samples_per_s=1.0 if step < 290 else 700.0)
        for step in range(1, 480)
    ]
    for row in rows[285:301]:
        row["samples_per_s"] = speeds[3]
    found = read_measured(written(tmp_path, GROWN, metrics=rows))
    assert found.speeds == {2: pytest.approx(700.0), 3: pytest.approx(1000.0)}, "what was long ago does not count"
    assert [one.after for one in found.job.rescales] == [3, 2]
    monkeypatch.setattr(plan_forecast, "_STEPS_OF_A_SIZE", 1000)
    assert read_measured(tmp_path).speeds == SpeedsBySize(rows).measured()
