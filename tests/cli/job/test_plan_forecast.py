"""``kungfu resize N --plan``: what is told of a change before it is made, from what the job has measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kungfu import Policy, control
from kungfu.cli.job import plan_forecast
from kungfu.cli.job.plan_forecast import SpeedsBySize, read_measured
from kungfu.compiler import compile_policies
from kungfu.compiler.serialize import plan_to_json
from kungfu.event_log.record_follower import NewRecords
from kungfu.policies import gns_batch, hybrid_scaling, linear_scaling
from kungfu.runtime.core.cluster.cluster import Hosts
from kungfu.signal import Signal, Source
from kungfu.trace.lines import header_line
from tests.cli.conftest import Printed
from tests.cli.recorded import GROWN, measured, written
from tests.event_log.made import made
from tests.runtime.job_api.served_job import serve_job

# 700 samples/s with two peers, 1,000 with three.
STEPS = [
    measured(step, size=2 if step <= 20 else 3, samples_per_s=700.0 if step <= 20 else 1000.0, learning_rate=0.1)
    for step in range(1, 41)
]
ROW = {"step": 40, "epoch": 1, "size": 2, "batch": 32, "loss": 0.5, "samples_per_s": 128.0}


def told(printed: Printed, folder: Path, *words: object, code: int = 0) -> str:
    """What a command about a job that has measured a step prints."""
    with serve_job(folder) as place:
        hosts, alive = Hosts({0: 4}, of={0: 0, 1: 0}), replace(place.cluster.processes, next_id=2)
        place.cluster = replace(place.cluster, hosts=hosts, processes=alive)
        place.put(NewRecords(rows=(ROW,)))
        text = printed(*words, "--plan", "--logdir", folder, code=code)
        assert place.told == [], "nothing was asked of the job"
    return text


def with_plan(folder: Path, *policies: Policy) -> None:
    """Writes a trace with the plan of these policies."""
    header = header_line(plan_to_json(compile_policies(policies)), policies=(), every=100)
    (folder / "trace.jsonl").write_text(json.dumps(header) + "\n")


def test_a_plan_tells_peers_batch_rate_pause_speed_and_cost(tmp_path: Path, printed: Printed) -> None:
    with_plan(written(tmp_path, GROWN, metrics=STEPS), linear_scaling())
    assert told(printed, tmp_path, "resize", 3, "--keep", "local_batch_size").splitlines() == [
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
    tmp_path: Path, printed: Printed
) -> None:
    """A growth from one peer that kept the batch of 32, and the return: as it was, and not half of what it is now."""
    with_plan(tmp_path, hybrid_scaling({32: 2}))
    base = {"base_global_batch_size": 32, "base_size": 1}
    grown = made(event="rescale", step=301, **{"from": 1}, to=2, view=3, global_batch_size=32, **base)
    set_since = made(event="set", step=310, rule="mine", what="global batch size", to=32.0)
    whole, half = "  batch     32 samples, 32 per peer", "  batch     32 -> 16 (-50%) samples, 16 per peer"
    for since, line in (([], whole), ([set_since], half), ([made(event="phase", phase=2, view=3)], half)):
        written(tmp_path, [*GROWN[:4], grown, *since], metrics=STEPS)
        assert line in told(printed, tmp_path, "resize", 1).splitlines()


def test_on_a_terminal_no_line_of_a_plan_is_wider(
    tmp_path: Path, printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, GROWN, metrics=STEPS)
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes the output for a terminal
    monkeypatch.setenv("COLUMNS", "60")
    text = told(printed, tmp_path, "resize", 3)
    assert max(len(line) for line in text.splitlines()) <= 60
    note = "the record holds no plan, so whether a rule sets\n            batch, learning rate or size is not known"
    assert f"  note: {note}\n" in text


def test_a_guess_and_what_is_not_known_are_noted(tmp_path: Path, printed: Printed) -> None:
    written(tmp_path, GROWN[:4], metrics=STEPS)
    text = told(printed, tmp_path, "resize", 4)
    assert "  speed     700 -> 1,300 (+86%) samples/s" in text
    for note in (
        "4 peers were never seen: their throughput is a guess from 2 to 3; `kungfu profile` measures it",
        "no rescale of this job was measured, so the pause is not known",
        "nobody has joined this job yet",
        "the record holds no plan, so whether a rule sets batch, learning rate or size is not known",
    ):
        assert f"note: {note}" in text
    written(tmp_path, GROWN[:4], metrics=STEPS[:20])
    assert "never seen, nor any size but 2" in told(printed, tmp_path, "scale-out", 1)
    text = told(printed, tmp_path, "scale-in", 1)
    assert "  speed     700 -> 350 (-50%) samples/s" in text
    assert "  leaves    peer 1 on 127.0.0.1" in text


def test_without_a_record_the_plan_is_told_and_what_is_expected_is_not(tmp_path: Path, printed: Printed) -> None:
    text = told(printed, tmp_path, "migrate", 1, "localhost")
    assert "  starts    peer 2 on 127.0.0.1" in text
    assert "note: nothing is expected from what was measured: " in text
    (tmp_path / "events.jsonl").write_text('{"event": "record", "version": 99}\n')
    assert "is of version 99" in told(printed, tmp_path, "resize", 3)


def test_a_plan_names_the_rules_that_may_undo_it_and_the_hold_that_keeps_them(tmp_path: Path, printed: Printed) -> None:
    with_plan(written(tmp_path, GROWN, metrics=STEPS), gns_batch(max_peers=4, every=50))
    again = "gns_batch may change the size again at step 50, and every 50 steps"
    assert f"  undone    {again}" in told(printed, tmp_path, "resize", 3).splitlines()
    shown = told(printed, tmp_path, "resize", 3, "--hold", 600).splitlines()
    assert shown[-3:-1] == [
        "  held      at 3 for 10 min 0 s; lost peers are still replaced",
        "  undone    after the hold, gns_batch may change the size again, every 50 steps",
    ], "the step in which the hold ends is not known"
    assert "  held      at 2 until it is released; lost peers are still replaced" in told(
        printed, tmp_path, "resize", 2, "--hold"
    )


def test_a_plan_says_that_a_hold_stays_or_ends_with_the_request(tmp_path: Path, printed: Printed) -> None:
    written(tmp_path, GROWN, metrics=STEPS)
    with serve_job(tmp_path):
        printed("resize", 2, "--hold", "--logdir", tmp_path)
        assert "  held      at 2 until it is released; " in printed(
            "migrate", 1, "localhost", "--plan", "--logdir", tmp_path
        )
        text = printed("resize", 3, "--plan", "--logdir", tmp_path)
    assert "note: the hold at 2 ends with this request" in text
    assert "  held " not in text


@pytest.mark.parametrize("where", [Source("step") % 50 == 7, (Source("step") % 50 == 0) & (Source("step") > 1000)])
def test_a_plan_names_a_first_step_only_if_it_is_known(where: Signal, tmp_path: Path, printed: Printed) -> None:
    mine = Policy("mine", lambda _: control.every(1).when(where).rescale(2))
    with_plan(written(tmp_path, GROWN, metrics=STEPS), mine)
    assert "may change the size again, every 50 steps" in told(printed, tmp_path, "resize", 3)


def test_a_refused_plan_is_code_1_with_its_reason(tmp_path: Path, printed: Printed) -> None:
    written(tmp_path, GROWN, metrics=STEPS)
    limits = "this job takes 1 to 4 (kungfu-run --min, --max)"
    first, *_ = told(printed, tmp_path, "resize", 9, code=1).splitlines()
    assert first == f"resize 9 would be refused: a size of 9: {limits}"
    document = json.loads(told(printed, tmp_path, "resize", 3, "--json"))
    assert (document["after"], document["refusal"]) == (3, "")
    assert document["forecast"]["samples_per_s"] == pytest.approx(1000.0)
    assert document["refused_sizes"] == [{"first": 5, "last": None, "reason": f"a size of 5: {limits}"}]


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
