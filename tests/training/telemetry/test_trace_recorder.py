"""The recorder: which lines a peer tells, and when."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

import kungfu as kf
from kungfu.compiler import compile_policies
from kungfu.compiler.lower import lower
from kungfu.policies import gns_batch
from kungfu.policy_definition import Policy
from kungfu.trace.lines import number_from_json
from kungfu.training.graph.step_record import make_step_record
from kungfu.training.telemetry.trace_recorder import SNAPSHOT_EVERY, TraceRecorder, _Layout
from tests.training.peers import ignore


def local_memory(training):
    own = training.busy_seconds.ema(0.5)
    together = kf.ops.all_reduce(own, "sum")
    norm = kf.ops.norm_squared(training.mean_grads)
    return kf.control.every(4).call(ignore, together.ema(0.5), norm)


class Recorded:
    """A recorder, and the lines that it told."""

    def __init__(self, plan, *, peer=0, policies=()):
        self.lines = []
        self.step_record, self.program = make_step_record(plan), lower(plan)
        unpacked = SimpleNamespace(columns=self.step_record.columns, row=list)
        self.recorder = TraceRecorder(
            self.record, step_record=unpacked, program=self.program, peer=peer, policies=policies
        )

    def record(self, stream, fields):
        told = fields()
        self.lines.append(json.loads(told if isinstance(told, str) else json.dumps(told, allow_nan=False)))

    def row(self, **given):
        """A row in which everything is 1 but what is given."""
        return [
            float(given.get(f"{one.group}_{one.name}", given.get(one.name, 1.0))) for one in self.step_record.columns
        ]


PLAN = compile_policies([Policy("local_memory", local_memory)])


def test_the_first_coordinator_tells_the_plan_and_every_peer_what_its_folds_hold():
    coordinator, other = Recorded(PLAN, policies=("a.py:b",)), Recorded(PLAN, peer=5)
    coordinator.recorder.entered(version=1, rank=0, after=0)
    other.recorder.entered(version=1, rank=1, after=0)
    header, snapshot = coordinator.lines
    assert (header["trace"], header["policies"], header["plan"]["schema"]) == (1, ["a.py:b"], 2)
    assert len(snapshot["folds"]) == len(coordinator.program.variables)
    local = [one.name for one in other.program.variables if one.placement == "local"]
    assert [(one["peer"], one["after"], list(one["folds"])) for one in other.lines] == [(5, 0, local)]


def test_the_plan_is_told_too_where_the_first_view_broke_before_it_trained():
    coordinator = Recorded(PLAN)
    coordinator.recorder.entered(version=3, rank=0, after=0)
    assert [sorted(line)[-1] for line in coordinator.lines] == ["trace", "view"]


@pytest.mark.parametrize(("rank", "after"), [(0, [7, 9]), (None, [7])])
def test_a_later_leader_tells_no_plan_and_a_peer_that_left_takes_no_snapshot(rank, after):
    recorded = Recorded(PLAN)
    recorded.recorder.entered(version=2, rank=1, after=7)
    recorded.recorder.entered(version=3, rank=rank, after=9)
    assert [one["after"] for one in recorded.lines] == after


def test_snapshots_come_at_their_steps_and_after_a_barrier_that_changed_nothing_too():
    recorded = Recorded(PLAN)
    recorded.recorder.entered(version=1, rank=1, after=0)
    for step in range(1, 2 * SNAPSHOT_EVERY + 1):
        if step == SNAPSHOT_EVERY:
            recorded.recorder.entered(version=1, rank=1, after=step)
        else:
            recorded.recorder.step_ended(after=step)
    assert [one["after"] for one in recorded.lines] == [0, SNAPSHOT_EVERY, 2 * SNAPSHOT_EVERY]


def test_a_step_is_this_peers_share_and_rank_0_tells_what_all_agree_on():
    recorded = Recorded(PLAN)
    recorded.recorder.stepped(
        recorded.row(step=8.0, view=2.0, rank=0.0, loss=np.nan, busy_seconds=np.float32(0.1), fired_ignore=0.0)
    )
    recorded.recorder.stepped(recorded.row(step=8.0, view=2.0, rank=1.0))
    first, second = recorded.lines
    assert (first["step"], first["view"], first["rank"]) == (8, 2, 0)
    assert first["local"]["loss"] is None
    assert first["local"]["busy_seconds"] == pytest.approx(0.1)
    assert first["agreed"]["pending"] is True
    assert "fired" not in first
    assert second.keys() == {"step", "view", "rank", "local"}


oddly = st.floats(width=32) | st.sampled_from([np.nan, np.inf, -np.inf, 0.0, 1e20, 3.0])
of_kind = {"float32": oddly, "int64": st.integers(0, 2**53).map(float), "bool": st.sampled_from([0.0, 1.0])}
columns = make_step_record(compile_policies([gns_batch(max_peers=4), Policy("100 % sure", local_memory)])).columns


@given(rows=st.lists(st.tuples(*(of_kind[one.dtype] for one in columns)), min_size=1, max_size=3))
def test_a_line_says_what_the_row_holds_whatever_came_before_it(rows):
    layout = _Layout(columns)
    for row in rows:
        line = json.loads(layout.line(row))
        held = {(one.group, one.name): value for one, value in zip(columns, row, strict=True)}
        leads = held["local", "rank"] == 0
        assert (line["step"], line["view"]) == (held["agreed", "step"], held["agreed", "view"])
        assert line.keys() - {"fired"} == {"step", "view", "rank", "local"} | ({"agreed"} if leads else set())
        fires = [name for group, name in held if group == "fired" and held[group, name] and leads]
        assert list(line.get("fired", ())) == fires
        for name in fires:
            target = number_from_json(line["fired"][name])
            np.testing.assert_equal(np.float32(target), np.float32(held["targets", name]))
        for one, value in zip(columns, row, strict=True):
            if one.group in {"local", "agreed"} & line.keys() and one.name not in ("step", "view", "rank"):
                if value == -np.inf and "(" in one.name:
                    assert one.name not in line[one.group]
                    continue
                told = number_from_json(line[one.group][one.name])
                assert (type(told) is bool) == (one.dtype == "bool")
                as_held = np.float32 if one.dtype == "float32" else float
                np.testing.assert_equal(as_held(told), as_held(value))


def test_what_the_folds_held_is_read_at_once_and_not_when_it_is_written():
    waiting = []
    program = lower(PLAN)
    recorder = TraceRecorder(
        lambda stream, fields: waiting.append(fields), step_record=make_step_record(PLAN), program=program, peer=0
    )
    recorder.entered(version=2, rank=0, after=0)
    for one in program.variables:
        one.variable.assign(tf.fill(one.variable.shape, tf.cast(9, one.variable.dtype)))
    assert 9.0 not in waiting[-1]()["folds"].values(), "behind the plan"
