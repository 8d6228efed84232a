"""Explain: what a person reads about a plan."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from kungfu import control, monitor, ops
from kungfu.compiler import compile_policies, explain, explain_json
from kungfu.compiler.explain.units import units_of
from kungfu.control import Budget
from kungfu.monitor.noise_scale import noise_scale_estimate
from kungfu.policies import gns_batch, schedule
from kungfu.policy_definition import at_most, policy, shadow
from kungfu.signal import Filled, Signal, TrainingSignals, fold, topological
from tests.compiler.small import ignore, plan_of, plan_showing


def test_the_noise_scale_is_explained_by_stage_name_placement_and_cost() -> None:
    text = explain(compile_policies([gns_batch(max_peers=8)]), monitors="open")
    assert re.search(
        r"^rule gns_batch  \[gns_batch.py:\d+\]\n  looks only in steps with \(\(step % 50\) == 0\)\n  fires where .*\n"
        r"  budget of gns_batch: 10 rescales, and one more every 100 steps.*\n  logs ",
        text,
    )
    assert text.count("budget of ") == 1, "the twin that records what the budget holds back has no other budget"
    assert re.search(
        r"\n  logs noise_scale, noise_scale_error estimate, local_batch_size, size, target %\d+, rescales_left\n", text
    )
    assert "\n  grads: local float32[nest]; this peer's own gradients\n" in text
    before, after = text.split("rides on the gradient all-reduce: 5 floats (20 bytes)\n")
    assert re.search(r"%\d+ = norm_squared\(grads\): local float32  \[gns_batch.py:\d+\]", before)
    assert re.search(r"%\d+ = all_reduce sum\(%\d+\): agreed float32", after)
    assert re.search(
        r"= fold\(view, size, replaced_peers\), keep on rescale: agreed int64  \[gns_batch.py:\d+\]", after
    ), "of the budget"
    assert re.search(r"noise_scale = where\(%\d+, %\d+, nan\): agreed float32", after)
    assert text.endswith(
        "costs\n  0 extra messages per step\n  5 floats (20 bytes) per step on the gradient all-reduce\n"
        "  99 bytes of state in 5 folds\n"  # averages, their count, the budget and whether it was reported, the request
    )


def test_messages_of_their_own_are_shown_where_they_happen_and_counted() -> None:
    def late(training: Any) -> Any:
        each_step = ops.all_reduce(training.loss - training.mean_loss, "sum").ema(0.5).named("gap")
        gated = ops.all_gather(training.busy_seconds - training.mean_loss)
        return control.every(5).call(ignore, each_step, ops.max(gated))

    text = explain(plan_of(late))
    assert "  1 extra message per step\n  1 small message more in the steps of their gates\n" in text
    assert "one message of 1 float (4 bytes)\n" in text
    assert "one message of 0 + 1 x size floats (0 + 4 x size bytes)\n" in text
    assert re.search(r"gap = ema\(%\d+\), keep on rescale: agreed float32", text)
    assert re.search(r"fires where %\d+: call ignore\(gap, %\d+\)", text)


def test_a_sampled_fold_says_in_which_steps_it_runs() -> None:
    text = explain(plan_showing(lambda t: t.mean_loss.ema(0.5).sampled(10)))
    assert "ema(mean_loss) where ((step % 10) == 0), keep on rescale" in text


def test_every_node_is_shown_once_and_before_it_is_used() -> None:
    text = explain(compile_policies([at_most(gns_batch(max_peers=8), schedule({10: 4}))]), monitors="open")
    shown = [line.split(" = ")[0].strip() for line in text.splitlines() if re.match(r" +(%\d+|\w+) = ", line)]
    assert len(shown) == len(set(shown))
    for number, line in enumerate(text.split("before the gradient all-reduce\n")[1].splitlines()):
        label, _, made = line.strip().partition(" = ")
        for used in re.findall(r"%\d+", made):
            assert shown.index(used) < shown.index(label), f"line {number}: {line}"


# ---- the user's names and units ------------------------------------------------------------------------------------


def test_a_signal_is_called_by_the_variable_that_holds_it() -> None:
    def measured(training: Any) -> Any:
        speed = ops.all_reduce(training.samples / training.step_seconds, "sum")
        half = speed / 2
        return control.every(5).call(ignore, half)

    text = explain(plan_of(measured))
    assert re.search(r"\n +speed = all_reduce sum\(%\d+\): agreed float32, samples/s  \[test_explain.py:\d+\]\n", text)
    assert re.search(r"\n +half = speed / 2: agreed float32, samples/s  ", text)


def test_two_variables_of_one_name_are_told_apart() -> None:
    def one(training: Any) -> Any:
        value = training.mean_loss * 2
        return control.every(5).call(ignore, value)

    def other(training: Any) -> Any:
        value = training.mean_loss * 3
        return control.every(5).call(ignore, value)

    text = explain(plan_of(one, other))
    assert "value = mean_loss * 2: " in text
    assert "value_2 = mean_loss * 3: " in text


def entries(training: Any) -> Signal:
    """A fold whose vector holds the seconds of a step, the samples per second of the step before, and its samples."""

    def update(state: Signal, seconds: Signal, samples: Signal) -> Signal:
        moved = ops.scatter(state, 1, ops.where(state[0] > 0, state[2] / state[0], 0.0))
        return ops.scatter(ops.scatter(moved, 0, seconds), 2, samples)

    return fold(update, Filled(3, 0.0), training.step_seconds, training.samples)


@pytest.mark.parametrize(
    ("make", "unit"),
    [
        (lambda t: t.samples / t.step_seconds, "samples/s"),
        (lambda t: 1 / t.step_seconds, "1/s"),
        (lambda t: t.step_seconds * t.step_seconds, "s^2"),
        (lambda t: t.samples * t.step_seconds, "s samples"),
        (lambda t: t.total_samples / t.size / t.step_seconds, "samples/peers/s"),
        (lambda t: t.samples / t.total_samples, ""),
        (lambda t: t.samples + t.step_seconds, ""),
        (lambda t: (t.samples + t.step_seconds) * t.size, ""),
        (lambda t: ops.where(t.pending, t.samples, 0.0), "samples"),
        (lambda t: ops.clip(t.step_seconds, 0.1, 2), "s"),
        (lambda t: ops.exp(t.step_seconds), ""),
        (lambda t: ops.median(ops.all_gather(t.busy_seconds)), "s"),
        (lambda t: t.step_seconds.ema(0.5), "s"),
        (lambda t: t.step_seconds.window(5).median(), "s"),
        (lambda t: t.step_seconds.by_size(4)[t.size], "s"),
        (lambda t: t.step_seconds.previous() + t.step_seconds.delta() + t.step_seconds.cumulative(), "s"),
        (lambda t: fold(lambda total, x, y: total + x * y, 0.0, t.samples, t.step_seconds), "s samples"),
        (lambda t: (t.loss > 1).count(), ""),
        (lambda t: t.step_seconds + 1, "s"),
        (lambda t: t.step_seconds.ema(0.5) + t.samples / t.total_samples, "s"),
        (lambda t: 2 * t.learning_rate + t.samples, "samples"),
        (lambda t: ops.maximum(t.samples, ops.cast(t.size > 1, "int64")), "samples"),
        (lambda t: t.samples.previous(), "samples"),
        (lambda t: t.samples.previous(on_rescale="reset") / t.step_seconds, "samples/s"),
        (lambda t: t.samples.previous().previous(), "samples"),
        (lambda t: fold(lambda product, x: product * x, 1.0, t.samples), ""),
        (lambda t: entries(t)[0], "s"),
        (lambda t: entries(t)[2], "samples"),
        (lambda t: entries(t)[1], "samples/s"),
        (lambda t: entries(t)[1] * entries(t)[0], "samples"),
        (lambda t: entries(t)[t.size], ""),
        (lambda t: ops.sum(entries(t)), ""),
        (lambda t: noise_scale_estimate(t).value, "samples"),
        (lambda t: noise_scale_estimate(t).standard_error, "samples"),
    ],
)
def test_a_unit_follows_from_those_of_the_sources_or_is_not_told(make: Callable[[Any], Signal], unit: str) -> None:
    made = make(TrainingSignals())
    assert units_of(topological((made,)))[made] == unit


# ---- what is shared ------------------------------------------------------------------------------------------------


def test_two_composed_policies_show_what_they_share() -> None:
    def slower(training: Any) -> Any:
        return control.every(9).rescale(ops.floor(monitor.noise_scale_estimate(training).value / 100))

    text = explain(compile_policies([at_most(gns_batch(max_peers=8), policy(slower)())]))
    assert re.search(r"\ngns_batch and slower share noise_scale, and \d+ nodes under it\n", text)
    assert "rides on the gradient all-reduce: 5 floats" in text


@pytest.mark.parametrize(
    ("signals", "shared"),
    [
        (lambda loss: [loss.ema(0.5).named("a")], "a"),
        (lambda loss: [(loss.ema(0.5) + 1).named("a")], "a, and 1 node under it"),
        (
            lambda loss: [loss.ema(0.5).ema(0.5).named("a"), (loss.ema(0.6) + loss.ema(0.7)).named("b")],
            "a, b, and 3 nodes under them",
        ),
    ],
)
def test_nodes_that_are_computed_once_for_two_policies_are_counted(signals: Any, shared: str) -> None:
    one, other = (lambda t, n=n: control.every(n).call(ignore, *signals(t.mean_loss)) for n in (5, 7))
    assert f"\nignore and ignore_2 share {shared}\n" in explain(plan_of(one, other))


def test_policies_that_share_nothing_but_sources_say_nothing_of_it() -> None:
    one = lambda t: control.every(5).call(ignore, t.mean_loss * 2)  # noqa: E731
    other = lambda t: control.every(7).call(ignore, t.mean_loss * 3, t.size + 1)  # noqa: E731
    assert " share " not in explain(plan_of(one, other))


# ---- monitors ------------------------------------------------------------------------------------------------------


def test_a_monitor_is_one_line_that_says_of_how_many_nodes_and_floats_it_is_made() -> None:
    def watching(training: Any) -> Any:
        noise = monitor.gradient_noise_scale(training)
        speed = monitor.throughput(training)
        slow = monitor.stragglers(training)
        return (
            control.every(50).when(speed > 10).rescale(noise / training.local_batch_size + 1),
            control.every(100).replace(slow),
        )

    plan = compile_policies([policy(watching)()])
    folded, opened = explain(plan), explain(plan, monitors="open")
    where = r"  \[test_explain.py:\d+\]\n"
    for line in (
        r"    noise_scale = monitor.gradient_noise_scale, \d+ nodes: agreed float32, samples",
        r"    throughput = monitor.throughput, 5 nodes: agreed float32, samples/s",
        r"    slow = monitor.stragglers, \d+ nodes: agreed bool\[size\]",
    ):
        assert len(re.findall("\n" + line + where, folded)) == 1
    assert "rides on the gradient all-reduce: 6 + 2 x size floats" in folded
    for line in ("1 float (4 bytes) of throughput", "5 floats (20 bytes) of noise_scale"):
        assert f"\n  {line}\n" in folded
    assert "norm_squared" not in folded
    assert "norm_squared(grads)" in opened
    assert opened.count("\n") > folded.count("\n") + 30


def test_what_a_policy_makes_of_the_inside_of_a_monitor_itself_is_shown() -> None:
    def sharing(training: Any) -> Any:
        norm = ops.norm_squared(training.mean_grads)  # the noise scale is made of it too
        return control.every(50).when(norm > 1).rescale(monitor.gradient_noise_scale(training))

    text = explain(compile_policies([policy(sharing)()]))
    assert re.search(r"\n    (norm|%\d+) = norm_squared\(mean_grads\): agreed float32", text)
    assert "norm_squared(grads)" not in text


def test_what_a_compiler_adds_to_a_rule_bears_the_line_of_the_rule() -> None:
    def calm(training: Any) -> Any:
        return control.every(5).cooldown(steps=20).rescale(training.size + 1)

    made = [policy(calm)(), shadow(at_most(gns_batch(max_peers=8), schedule({10: 4})))]
    plan = compile_policies(made, budget=Budget(2, 100))
    lines = [line for line in explain(plan, monitors="open").splitlines() if "  [" in line]
    assert any("held(calm)" in line for line in lines)
    known = ("test_explain.py:", "gns_batch.py:", "schedule.py:")
    assert {found for line in lines for found in re.findall(r"  \[([^\]]*:)\d+\]", line)} <= {*known}
    names = [one["name"] for one in explain_json(plan)["rules"] if "test_explain.py" in one["origin"]]
    assert names == ["calm", "shadow(at_most(gns_batch, schedule))", "held(calm)"]


# ---- rules that are no part of a step, and rules that nobody acts on -----------------------------------------------


def test_a_rule_on_a_rescale_is_explained_with_its_nodes() -> None:
    @policy
    def linear(training: Any) -> Any:
        factor = training.size / training.previous_size
        return control.on_rescale().set_learning_rate(training.learning_rate * factor)

    text = explain(compile_policies([linear()]))
    assert re.search(
        r"rule linear  \[test_explain.py:\d+\]\n  looks in every barrier in which the size changes\n", text
    )
    assert re.search(r"fires where %\d+: set the learning rate to %\d+\n", text)
    assert re.search(r"\n    factor = size / previous_size: agreed float32  \[", text)


def test_a_shadow_says_that_nobody_acts_on_it() -> None:
    text = explain(compile_policies([shadow(gns_batch(max_peers=8))]))
    assert "a shadow: nothing acts on it\n" in text


def test_a_carried_gate_and_an_entry_are_written_as_they_are_meant() -> None:
    def synchronized(training: Any) -> Any:
        on = ops.synchronized(training.mean_loss > 1)
        return control.always().when(on).call(ignore, ops.all_gather(training.loss)[-1])

    text = explain(plan_of(synchronized))
    assert re.search(r"on = carry from rank 0\(%\d+\): agreed bool", text)
    assert "only in steps with on" in text
    assert re.search(r"= %\d+\[-1\]: agreed float32", text)


# ---- for programs --------------------------------------------------------------------------------------------------


def test_the_document_says_what_the_text_says() -> None:
    plan = compile_policies([at_most(gns_batch(max_peers=8), schedule({10: 4}))])
    document = json.loads(json.dumps(explain_json(plan)))
    text = explain(plan, monitors="open")
    shown = [re.match(r" +(%\d+|\w+) = (.*?): (local|agreed)", line) for line in text.splitlines()]
    assert {(one[1], one[2]) for one in shown if one} == {(one["label"], one["made"]) for one in document["nodes"]}
    assert [one["name"] for one in document["rules"]] == [rule.name for rule in plan.rules]
    assert set(document["reads"]) == plan.source_kinds.keys()
    assert document["rides"] == [one for one in document["rides"] if f"\n  {one} = all_reduce" in text]
    placed = {label for part in ("before", "after") for one in document[part] for label in one["nodes"]}
    assert placed | set(document["rides"]) == {one["label"] for one in document["nodes"]}
