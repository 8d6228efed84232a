"""Explain: what a person reads about a plan."""

from __future__ import annotations

import re
from typing import Any

from kungfu import control, ops
from kungfu.compiler import compile_policies
from kungfu.policies import gns_batch, schedule
from kungfu.policy import Policy, at_most


def ignore(control: Any, *values: float) -> None:
    """A hook that does nothing."""


def test_both_policies_and_both_together_cost_no_extra_message() -> None:
    gns, fixed = gns_batch(max_peers=8), schedule({10: 4})
    for policies in ([gns], [fixed], [at_most(gns, fixed)]):
        assert "  0 extra messages per step\n" in compile_policies(policies).explain()


def test_the_noise_scale_is_explained_by_stage_name_placement_and_cost() -> None:
    text = compile_policies([gns_batch(max_peers=8)]).explain()
    assert "rule gns_batch\n  looks only in steps with ((step % 50) == 0)\n" in text
    assert re.search(r"\n  logs noise_scale, local_batch_size, size, target %\d+\n", text)
    assert "\n  grads: local float32[nest]; this peer's own gradients\n" in text
    before, after = text.split("rides on the gradient all-reduce: 3 floats (12 bytes)\n")
    assert re.search(r"%\d+ = norm_squared\(grads\): local float32  \[gns_batch.py:\d+\]", before)
    assert re.search(r"%\d+ = all_reduce sum\(%\d+\): agreed float32", after)
    assert re.search(r"noise_scale = where\(%\d+, %\d+, nan\): agreed float32", after)
    assert text.endswith(
        "costs\n  0 extra messages per step\n  3 floats (12 bytes) per step on the gradient all-reduce\n"
        "  16 bytes of state in 2 folds\n"
    )


def test_messages_of_their_own_are_shown_where_they_happen_and_counted() -> None:
    def late(training: Any) -> Any:
        each_step = ops.all_reduce(training.loss - training.mean_loss, "sum").ema(0.5).named("gap")
        gated = ops.all_gather(training.busy_seconds - training.mean_loss)
        return control.every(5).call(ignore, each_step, ops.max(gated))

    text = compile_policies([Policy("late", late)]).explain()
    assert "  1 extra message per step\n  1 small message more in the steps of their gates\n" in text
    assert "one message of 1 float (4 bytes)\n" in text
    assert "one message of 0 + 1 x size floats (0 + 4 x size bytes)\n" in text
    assert re.search(r"gap = ema\(%\d+\), keep on rescale: agreed float32", text)
    assert re.search(r"fires where %\d+: call ignore\(gap, %\d+\)", text)


def test_a_gathered_signal_rides_with_one_float_a_peer() -> None:
    def gathered(training: Any) -> Any:
        return control.every(5).call(ignore, ops.max(ops.all_gather(training.busy_seconds)))

    text = compile_policies([Policy("gathered", gathered)]).explain()
    assert "rides on the gradient all-reduce: 0 + 1 x size floats (0 + 4 x size bytes)\n" in text


def test_a_sampled_fold_says_in_which_steps_it_runs() -> None:
    def sampled(training: Any) -> Any:
        return control.always().call(ignore, training.mean_loss.ema(0.5).sampled(10))

    assert (
        "ema(mean_loss) where ((step % 10) == 0), keep on rescale"
        in compile_policies([Policy("sampled", sampled)]).explain()
    )


def test_every_node_is_shown_once_and_before_it_is_used() -> None:
    text = compile_policies([at_most(gns_batch(max_peers=8), schedule({10: 4}))]).explain()
    shown = [line.split(" = ")[0].strip() for line in text.splitlines() if re.match(r" +(%\d+|\w+) = ", line)]
    assert len(shown) == len(set(shown))
    for number, line in enumerate(text.split("before the gradient all-reduce\n")[1].splitlines()):
        label, _, made = line.strip().partition(" = ")
        for used in re.findall(r"%\d+", made):
            assert shown.index(used) < shown.index(label), f"line {number}: {line}"


def test_an_empty_plan_is_explained_too() -> None:
    text = compile_policies([]).explain()
    assert text.startswith("reads\nbefore the gradient all-reduce\n")
    assert "0 floats (0 bytes)" in text
