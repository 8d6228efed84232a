"""A trace read back: whole steps, in order, and a remark for everything else."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from kungfu.compiler import compile_policies, explain
from kungfu.errors import UsageError
from kungfu.policies import gns_batch
from kungfu.trace import parse_trace, read_plan, read_trace, replay
from tests.trace.recorded import recorded, texts, written

PLAN = compile_policies([gns_batch(max_peers=4, every=4, decay=0.5, min_estimates=2)])


def lines() -> list[dict[str, Any]]:
    return recorded(PLAN)


def test_a_record_gives_every_step_with_all_its_peers_in_rank_order(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, lines()))
    assert [one.step for one in trace.steps] == list(range(1, 19))
    assert [one.size for one in trace.steps] == [2] * 6 + [3] * 6 + [2] * 6
    assert [one.view for one in trace.steps] == [1] * 6 + [2] * 6 + [3] * 6
    assert [own["busy_seconds"] for own in trace.steps[8].local] == [0.01, 0.02, 0.03]
    assert [own["rank"] for own in trace.steps[8].local] == [0, 1, 2]
    assert trace.steps[8].agreed["global_batch_size"] == 24
    assert math.isnan(trace.steps[0].local[0]["step_seconds"])
    assert trace.remarks == ()


def test_it_holds_the_plan_and_the_snapshots_with_their_peers() -> None:
    trace = parse_trace(texts(lines()))
    assert trace.plan is not None
    assert explain(trace.plan) == explain(PLAN)
    assert [(one.after, one.view, one.peers) for one in trace.snapshots] == [
        (0, 1, (0, 1)), (5, 1, (0, 1)), (6, 2, (0, 1, 2)), (10, 2, (0, 1, 2)), (12, 3, (0, 2)), (15, 3, (0, 2)),
    ]  # fmt: skip
    assert all(len(one.folds) == len(one.peers) for one in trace.snapshots)


def test_the_plan_of_a_run_that_goes_on_is_read_from_the_beginning_of_its_trace(tmp_path: Path) -> None:
    header, *rest = texts(lines())
    assert read_plan(tmp_path) is None, "no trace is kept"
    (tmp_path / "trace.jsonl").write_text("\n".join([*rest[:3], header, rest[3][:9]]))
    found = read_plan(tmp_path)
    assert found is not None
    assert explain(found) == explain(PLAN)
    (tmp_path / "trace.jsonl").write_text("\n".join([*rest, header[:40]]))
    assert read_plan(tmp_path) is None, "the header is half-written"
    (tmp_path / "trace.jsonl").write_text('{"trace": 7}\n')
    with pytest.raises(UsageError, match="a trace of schema 7"):
        read_plan(tmp_path)


def test_the_order_in_which_peers_write_does_not_matter() -> None:
    header, *rest = texts(lines())
    assert parse_trace([*reversed(rest), header]).steps == parse_trace([header, *rest]).steps


@pytest.mark.parametrize(
    ("steps", "ranks", "remark"),
    [
        ({9}, {2}, "step 9 lacks the report of rank 2; it was left out"),
        ({9, 10, 11}, {0}, "steps 9 to 11 lack the report of rank 0; they were left out"),  # it was killed
        ({9, 10, 11}, {0, 1, 2}, "steps 9 to 11 are not in the record"),
    ],
)
def test_steps_that_peers_did_not_report_are_left_out_in_one_remark(
    steps: set[int], ranks: set[int], remark: str
) -> None:
    trace = parse_trace(texts([one for one in lines() if not (one.get("step") in steps and one["rank"] in ranks)]))
    assert steps.isdisjoint(one.step for one in trace.steps)
    assert trace.remarks == (remark,)


def test_a_step_that_was_done_again_in_a_later_view_counts_once() -> None:
    (last,) = (one for one in lines() if one.get("step") == 18 and one["rank"] == 0)
    again = {**last, "view": 9, "agreed": {**last["agreed"], "size": 1}}
    trace = parse_trace(texts([*lines(), again]))
    assert [(one.step, one.view, one.size) for one in trace.steps][-2:] == [(17, 3, 2), (18, 9, 1)]


@pytest.mark.parametrize("line", ['{"step":3,"vi', "[]", '{"step":"3","view":1,"rank":0,"local":{}}', '{"step":4}'])
def test_a_line_that_is_none_of_a_trace_is_remarked_by_file_and_line(line: str) -> None:
    trace = parse_trace([*texts(lines()), line, '{"cut": true, "limit_bytes": 5000}'], name="run/trace.jsonl")
    last = len(lines()) + 1
    assert trace.remarks == (
        f"run/trace.jsonl:{last}: this line is none of a trace, or half-written; it was left out",
        f"run/trace.jsonl:{last + 1}: the record ends here, at its limit of 5000 bytes",
    )


def test_of_a_program_that_trains_again_the_record_is_that_of_its_first_fit() -> None:
    header, *rest = lines()
    trace = parse_trace(texts([header, *rest, {**header, "first_step": 15}, {**header, "first_step": 11}]))
    assert [one.step for one in trace.steps] == list(range(1, 11))
    assert [one.after for one in trace.snapshots] == [0, 5, 6]
    assert trace.remarks == ("from step 11 on the program trained again: this is the record of its first phase",)


def test_a_folder_without_a_trace_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"trace\.jsonl: there is no such file.*--trace-limit 0"):
        read_trace(tmp_path)


def test_a_trace_without_a_whole_step_or_of_another_schema_is_refused() -> None:
    with pytest.raises(UsageError, match=r"no step of it is whole.*\(step 1 lacks the report of rank 1"):
        parse_trace(texts([one for one in lines() if one.get("step") == 1 and one["rank"] == 0]))
    with pytest.raises(UsageError, match=r"trace\.jsonl:1: a trace of schema 7; .* reads schema 1"):
        parse_trace(texts([{"trace": 7}]))


def test_a_snapshot_that_a_peer_did_not_take_is_none() -> None:
    given = [one for one in lines() if not (one.get("after") == 5 and one["rank"] == 1)]
    assert [one.after for one in parse_trace(texts(given)).snapshots] == [0, 6, 10, 12, 15]


def test_steps_of_older_views_after_the_beginning_of_a_newer_one_were_undone() -> None:
    """The job was started again from a checkpoint of step 10, and has not come as far as before."""
    before = recorded(PLAN)
    again = [
        {**line, "view": 5, "peer": line["peer"] + 9} if "peer" in line else {**line, "view": 5}
        for line in before
        if line.get("view") == 2 and (line.get("after") == 10 or line.get("step", 0) > 10)
    ]
    trace = parse_trace(texts([*before, *again]))
    assert [(one.step, one.view) for one in trace.steps] == [
        (step, 1 if step < 7 else 2 if step < 11 else 5) for step in range(1, 13)
    ]
    assert trace.remarks == ()
    replayed = replay(PLAN, trace, whose="the run's")
    assert (replayed.differences, replayed.remarks) == ((), ())
    assert [one.step for one in replayed.decisions] == [one.step for one in trace.steps if one.fired]
