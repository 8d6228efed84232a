"""A plan over a recorded trace: its own decisions again, and another policy's on the same record."""

from __future__ import annotations

import pytest

from kungfu import monitor, ops
from kungfu.compiler import CompiledPolicies, compile_policies
from kungfu.errors import UsageError
from kungfu.policies import gns_batch, schedule
from kungfu.trace import Trace, parse_trace, replay
from tests.compiler.small import plan_showing
from tests.trace.recorded import recorded, texts

GNS = compile_policies([gns_batch(max_peers=8, every=4, decay=0.5, min_estimates=2)])


# Each peer remembers its own busy time, which a replay must carry with the peer from view to view.
LOCAL = plan_showing(
    lambda t: ops.all_reduce(t.busy_seconds.ema(0.1), "sum").named("busy"), monitor.throughput, every=3
)
RATE = plan_showing(lambda t: t.learning_rate, every=2)
BOTH = pytest.mark.parametrize("plan", [GNS, LOCAL], ids=["gns", "local"])


def trace_of(plan: CompiledPolicies) -> Trace:
    return parse_trace(texts(recorded(plan)))


def trace_without(source: str, *, but_every: int) -> Trace:
    """The trace of a run that recorded this source in every so many steps only."""
    lines = recorded(GNS)
    for one in lines:
        if one.get("step", 0) % but_every:
            one["local"].pop(source, None)
            one.get("agreed", {}).pop(source, None)
    return parse_trace(texts(lines))


@pytest.mark.parametrize(
    "plan", [GNS, LOCAL, compile_policies([schedule({3: 4, 9: 1})])], ids=["gns", "local", "sizes"]
)
def test_the_runs_own_plan_decides_in_the_replay_what_it_decided_in_the_run(plan: CompiledPolicies) -> None:
    trace = trace_of(plan)
    again = replay(trace.plan or plan, trace, whose="the run's")
    fired = [(one.step, name, value) for one in trace.steps for name, value in one.fired.items()]
    assert fired
    assert [(one.step, one.rule) for one in again.decisions] == [(step, name) for step, name, _ in fired]
    assert [one.value for one in again.decisions] == pytest.approx([value for *_, value in fired], nan_ok=True)
    assert again.differences == ()


@BOTH
def test_a_replay_continues_after_unwritten_steps_from_the_next_snapshot(plan: CompiledPolicies) -> None:
    lines = [one for one in recorded(plan) if one.get("step") not in (2, 3, 8) and one.get("after") != 10]
    trace = parse_trace(texts(lines))
    again = replay(plan, trace, whose="the run's")
    assert again.differences == ()
    assert [remark.split(":")[0] for remark in again.remarks] == [
        "steps 4 to 5 were not replayed",
        "steps 9 to 12 were not replayed",
    ], "view 2 begins with step 7, and view 3, with its snapshot, with step 13"
    assert {2, 3, 4, 5, 8, 9, 10, 11, 12}.isdisjoint(one.step for one in again.decisions)
    assert {one.step for one in again.decisions} >= {step for step in (6, 15) if plan is LOCAL}


@pytest.mark.parametrize("start", [2, 6, 9, 17])
@BOTH
def test_a_replay_may_start_in_the_middle(plan: CompiledPolicies, start: int) -> None:
    trace = trace_of(plan)
    whole, part = (replay(plan, trace, whose="the run's", start=at) for at in (0, start))
    assert part.differences == ()
    late = [one for one in whole.decisions if one.step >= start]
    assert [(one.step, one.rule) for one in part.decisions] == [(one.step, one.rule) for one in late]
    for one, other in zip(part.decisions, late, strict=True):
        assert one.inputs == pytest.approx(dict(other.inputs), rel=1e-5)


def test_a_start_that_no_snapshot_leads_to_is_refused() -> None:
    lines = [one for one in recorded(GNS) if "after" not in one and one.get("step") != 1]
    with pytest.raises(UsageError, match=r"no snapshot of the record lies before step 9"):
        replay(GNS, parse_trace(texts(lines)), whose="the run's", start=9)


def test_a_record_whose_beginning_is_lost_is_replayed_from_its_first_snapshot() -> None:
    lines = [one for one in recorded(GNS) if one.get("step", 99) > 3]
    again = replay(GNS, parse_trace(texts(lines)), whose="the run's")
    assert again.differences == ()
    assert [one.step for one in again.decisions] == [8, 12, 16]


def test_a_run_that_did_something_else_is_reported_step_by_step() -> None:
    lines = recorded(GNS)
    for one in lines:
        if one.get("step") == 8 and one["rank"] == 0:
            one["fired"] = {"gns_batch": 6.0}
        if one.get("step") == 12 and one["rank"] == 0:
            del one["fired"]
        if one.get("after") == 15 and one["rank"] == 0:
            one["folds"] = dict.fromkeys(one["folds"], 123.0)
    first, second, third, *_ = replay(GNS, parse_trace(texts(lines)), whose="the run's").differences
    assert "step 8: gns_batch asks for" in first
    assert first.endswith("in the replay, and asked for 6 in the run")
    assert second == "step 12: gns_batch fires in the replay, and did not in the run"
    assert third.startswith("after step 15: kungfu/fold_")


def test_another_policy_sees_the_same_record_and_changes_nothing_in_it() -> None:
    other = compile_policies([schedule({2: 5})])
    found = replay(other, trace_of(GNS), whose="another")
    assert [one.value for one in found.decisions] == [5.0] * 17, "it asks in every step, since no size follows"
    assert found.differences == ()


@pytest.mark.parametrize(
    ("plan", "source", "but_every", "message"),
    [
        (GNS, "norm_squared(grads)", 100, r"needs norm_squared\(grads\), which this run did not record"),
        (RATE, "learning_rate", 100, "the source learning_rate, which is not in this record"),
        (GNS, "norm_squared(mean_grads)", 5, "^step 1: the plan reads 'mean_grads'.*in other steps only"),
    ],
)
def test_what_the_record_lacks_of_a_plan_is_named(
    plan: CompiledPolicies, source: str, but_every: int, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        replay(plan, trace_without(source, but_every=but_every), whose="another")
