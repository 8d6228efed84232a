"""`run_policy`: a policy over arrays, records, and modelled clusters."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kungfu as kf
from kungfu import control, monitor, ops
from kungfu.control import Checkpoint, Evict, Rescale
from kungfu.errors import PolicyError, UsageError
from kungfu.policies import gns_batch, linear_scaling, schedule
from kungfu.policy_definition import Policy, policy, shadow
from kungfu.testing import ClusterModel, Start, run_policy


@policy
def by_loss(training: Any) -> Any:
    return control.always().rescale(training.mean_loss)


def steps_and_values(*args: Any, **settings: Any) -> list[tuple[int, float]]:
    return [(one.step, one.value) for one in run_policy(*args, **settings)]


def test_what_is_no_policy_is_refused_with_the_line() -> None:
    for wrong, message in ((gns_batch, "policies must be a list, and the function"), ([gns_batch], "makes a policy")):
        with pytest.raises(PolicyError, match=f"{message}.*test_run_policy"):
            run_policy(wrong, {"mean_loss": [1.0]})  # type: ignore[arg-type]  # a mistake of a user


# ---- arrays ----------------------------------------------------------------------------------------------------------


def test_arrays_are_played_by_step_with_what_is_usual_filled_in() -> None:
    decisions = run_policy(by_loss(), {"mean_loss": [1.0, 3.0, math.nan, 2.0], "max_size": [4] * 4})
    found = [(one.step, one.rule, one.value, one.inputs["mean_loss"]) for one in decisions]
    assert found == [(2, "by_loss", 3.0, 3.0), (4, "by_loss", 2.0, 2.0)]
    assert all(isinstance(one.action, Rescale) for one in decisions)


def test_whole_numbers_are_seen_with_all_their_digits() -> None:
    made = Policy("far", lambda t: control.always().when(t.samples_done > 1).call(ignore, t.samples_done, t.mean_loss))
    (one,) = run_policy(made, {"samples_done": [2_560_000_001], "mean_loss": [0.5]})
    assert one.inputs == {"samples_done": 2_560_000_001, "mean_loss": 0.5}
    assert [type(value) for value in one.inputs.values()] == [int, float]


def test_local_arrays_hold_a_row_a_step_whose_length_is_the_size() -> None:
    def by_slowest(training: Any) -> Any:
        return control.always().evict(ops.all_gather(training.busy_seconds) > 1)

    decisions = run_policy(Policy("slow", by_slowest), {"busy_seconds": [[1, 2], [1, 1, 1], [0, 3, 4]]})
    assert [(one.step, one.ranks) for one in decisions] == [(1, (1,)), (3, (1, 2))]
    assert all(isinstance(one.action, Evict) and math.isnan(one.value) for one in decisions)


def test_what_a_plan_makes_of_gradients_is_given_by_its_name() -> None:
    steps = 4
    arrays = {
        "samples": np.ones((steps, 2)),
        "norm_squared(grads)": [[9.0, 1.0]] * steps,
        "norm_squared(mean_grads)": [4.0] * steps,
        "total_samples": [2.0] * steps,
        "local_batch_size": [0.125] * steps,
        "max_size": [16] * steps,
    }
    (*_, last) = run_policy(gns_batch(max_peers=8, every=2, min_estimates=2), arrays)
    assert (last.step, last.value) == (4, 5)  # 2/3 sample over 1/8 sample a peer
    np.testing.assert_allclose(last.inputs["noise_scale"], 2 / 3, rtol=1e-6)


def test_gradients_themselves_can_be_given() -> None:
    grads = [[[np.array([3.0, 0.0])], [np.array([1.0, 0.0])]]]
    once = {"samples": [[1.0, 1.0]], "grads": grads, "local_batch_size": [0.25], "max_size": [9]}
    arrays = {**{name: values * 2 for name, values in once.items()}, "step": [49, 50]}
    assert steps_and_values(gns_batch(max_peers=8, min_estimates=2), arrays) == [(50, 3)]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"mean_loss": [1.0], "loss": [1.0, 2.0]}, "arrays of a trace have one length"),
        ({"mean_loss": 3.0}, "arrays of a trace have one length"),
        ({"main_loss": [1.0]}, "'main_loss' is no source; a step offers barrier_due, base_global_batch_size"),
        ({"norm_squared(gradients)": [1.0]}, "is no source"),
        ({"learning_rate": [1.0]}, "the plan reads 'mean_loss': give it, or 'loss' to compute it from"),
        ({"loss": [[1.0, 2.0]], "mean_loss": [1.0], "size": [3]}, "'loss' has 2 values in entry 0"),
    ],
)
def test_arrays_that_do_not_do_are_refused(arrays: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run_policy(by_loss(), arrays)


# ---- records ---------------------------------------------------------------------------------------------------------


def recorded() -> list[str]:
    """A record of four steps of two peers, whose loss is the size that is wanted."""
    cluster = {"size": 2, "min_size": 1, "max_size": 8, "refused_size": 0, "pending": False}
    cluster |= {"change_due": False, "target_size": 0}
    lines = []
    for step in range(1, 5):
        line = {"step": step, "view": 1, "local": {"loss": 0.5}}
        lines += [{**line, "rank": 0, "agreed": {**cluster, "mean_loss": float(step)}}, {**line, "rank": 1}]
    return [json.dumps(line) for line in lines]


def test_a_record_is_played_from_its_lines_its_folder_and_its_file(tmp_path: Path) -> None:
    expected = [(1, 1.0), (3, 3.0), (4, 4.0)]
    assert steps_and_values(by_loss(), recorded()) == expected
    (tmp_path / "trace.jsonl").write_text("\n".join(recorded()) + "\n")
    assert steps_and_values(by_loss(), tmp_path) == expected
    assert steps_and_values(by_loss(), str(tmp_path / "trace.jsonl")) == expected


def test_what_a_record_does_not_hold_is_named() -> None:
    with pytest.raises(UsageError, match="total_samples"):
        run_policy(Policy("one", lambda t: control.always().rescale(t.total_samples)), recorded())


# ---- modelled clusters -----------------------------------------------------------------------------------------------

SMALL = ClusterModel({1: 100, 4: 400}, steps=40, start=Start(size=2, max_size=4))


def test_throughput_is_that_of_the_model() -> None:
    def watching(training: Any) -> Any:
        return control.every(10).checkpoint(), control.every(10).call(ignore, monitor.throughput(training, decay=1.0))

    decisions = run_policy([Policy("watching", watching), schedule({15: 4})], SMALL)
    speeds = {one.step: one.inputs["throughput"] for one in decisions if "throughput" in one.inputs}
    # Step 20 is the second one of the larger view, which knows of no whole step yet.
    np.testing.assert_allclose(list(speeds.values()), [200, math.nan, 400, 400], rtol=1e-5)
    assert list(speeds) == [10, 20, 30, 40]
    assert [one.step for one in decisions if isinstance(one.action, Checkpoint)] == [10, 20, 30, 40]


def ignore(control: Any, *values: float) -> None:
    """A hook that does nothing."""


def test_a_hook_is_called_and_what_it_asks_for_is_done() -> None:
    def hook(control: Any, size: float) -> None:
        control.rescale(size + 5)

    made = Policy("hooked", lambda t: control.every(10).call(hook, t.size))
    assert [one.inputs["size"] for one in run_policy(made, SMALL)] == [2, 4, 4, 4]


def test_a_hook_of_the_last_step_is_called_and_told_that_training_is_over() -> None:
    seen = []

    def hook(control: Any, step: int) -> None:
        seen.append(step)
        control.rescale(3)

    made = Policy("hooked", lambda t: control.every(10).call(hook, t.step))
    decided = run_policy(made, ClusterModel({1: 100}, steps=20))
    assert seen == [10, 20]
    assert [one.unmet for one in decided] == ["", "training is over"]


def test_a_stop_ends_the_run() -> None:
    made = Policy("short", lambda t: (control.every(7).stop(), control.every(5).checkpoint()))
    assert [one.step for one in run_policy(made, SMALL)] == [5, 7]


def test_settings_are_carried_out_a_step_later_and_ramps_take_their_time() -> None:
    def setting(training: Any) -> Any:
        return (
            control.always().when(training.step == 3).set_learning_rate(0.5, over_steps=4),
            control.always().when(training.step == 3).set_global_batch_size(128),
            control.always().call(ignore, training.learning_rate, training.global_batch_size),
        )

    start = Start(learning_rate=0.1)
    seen = [
        (one.step, round(one.inputs["learning_rate"], 6), one.inputs["global_batch_size"])
        for one in run_policy(Policy("setting", setting), ClusterModel({1: 100}, steps=11, start=start))
        if "target" not in one.inputs
    ]
    # The call holds still in every second step, in which its own post is under way.
    assert seen == [(1, 0.1, 64), (3, 0.1, 64), (5, 0.1, 128), (7, 0.3, 128), (9, 0.5, 128), (11, 0.5, 128)]


def test_rules_on_a_rescale_are_among_the_decisions() -> None:
    decisions = run_policy([schedule({5: 4}), linear_scaling()], SMALL)
    assert [(one.step, one.rule) for one in decisions] == [(5, "schedule"), (8, "linear_scaling")]
    assert [one.value for one in decisions] == [4, pytest.approx(0.2)]


def test_a_shadow_decides_and_changes_nothing() -> None:
    decisions = run_policy([shadow(schedule({3: 4})), schedule({9: 3})], SMALL)
    found = [(one.step, one.rule, one.inputs["size"]) for one in decisions]
    assert found == [(3, "shadow(schedule)", 2), (9, "schedule", 2)]


def test_a_table_of_throughput_is_a_line_between_its_entries() -> None:
    model = ClusterModel({2: 100, 4: 300}, steps=1)
    assert [model.throughput(size) for size in (1, 2, 3, 4, 9)] == [100, 100, 200, 300, 300]


# ---- several rules in one step ---------------------------------------------------------------------------------------


def slow_ones(training: Any) -> Any:
    busy = ops.all_gather(training.busy_seconds)
    return busy > 1.2 * ops.mean(busy)


LAME = ClusterModel({1: 100, 8: 800}, steps=30, start=Start(size=4, max_size=8), speed_by_peer={0: 0.3})


@pytest.mark.parametrize("order", [1, -1])
def test_a_size_and_an_eviction_in_one_step_are_one_request_whichever_comes_first(order: int) -> None:
    def rules(training: Any) -> Any:
        once = control.every(5).until(training.step > 5)
        return (once.rescale(2), once.evict(slow_ones(training)))[::order]

    watching = Policy("watching", lambda t: control.every(10).call(ignore, t.size))
    decided = run_policy([Policy("rules", rules), watching], LAME)
    assert {one.step: one.inputs["size"] for one in decided if one.rule == "ignore"} == {10: 2, 20: 2, 30: 2}
    decided = run_policy(Policy("rules", lambda t: control.every(5).evict(slow_ones(t))), LAME)
    assert len(decided) == 1, "the lame one is gone"
    two = ClusterModel(LAME.throughput_by_size, steps=30, start=Start(size=2), speed_by_peer={0: 0.3})
    both = Policy("rules", lambda t: (control.every(5).rescale(1), control.every(5).evict(slow_ones(t))))
    assert [(one.step, one.rule) for one in run_policy(both, two)] == [(5, "rescale"), (5, "evict")]


def test_what_a_hook_asks_for_beside_a_rule_is_told_as_unmet() -> None:
    def shrink(control: Any) -> None:
        control.rescale(1)

    hooked = Policy("hooked", lambda t: control.every(5).until(t.step > 5).call(shrink))
    decided = run_policy([schedule({5: 6}), hooked], LAME)
    assert [(one.rule, one.unmet) for one in decided] == [("schedule", ""), ("shrink", "schedule came before it")]


@kf.policy
def stop_when_accurate(training):
    accuracy = kf.ops.weighted_mean(training.published("accuracy"), training.samples)
    return kf.control.always().when(accuracy > 0.9).stop()


@kf.policy
def stop_when_dear(training):
    return kf.control.always().when(training.fed("price") > 2).stop()


ACCURACIES = {"accuracy": [[0.5, 0.9], [0.9, 1.0], [1.0, 1.0]], "samples": [[1.0, 1.0]] * 3}
PUBLISHED = {"published_by_step": {"accuracy": lambda step: 0.15 * step}}
FED = {"fed_by_step": {"price": lambda step: 3.0 if step == 5 else math.nan}}


@pytest.mark.parametrize(
    ("made", "arrays", "model", "step"),
    [
        (stop_when_accurate(), ACCURACIES, PUBLISHED, 7),
        (stop_when_dear(), {"price": [1.0, 3.0, math.nan, 1.0]}, FED, 5),
    ],
)
def test_what_a_program_publishes_or_feeds_is_given_as_an_array_or_by_the_model(made, arrays, model, step):
    assert [one.step for one in run_policy(made, arrays)] == [2, 3]
    assert [one.step for one in run_policy(made, ClusterModel({1: 100}, steps=9, **model))] == [step]


def test_an_array_under_a_name_that_nobody_declares_is_refused_with_those_that_are():
    with pytest.raises(UsageError, match=r"'acuracy' is no source.*and the policy declares accuracy"):
        run_policy(stop_when_accurate(), {"acuracy": [1.0]})
