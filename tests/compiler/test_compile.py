"""Compiling: from policies to one plan that is the same on every peer."""

from __future__ import annotations

from typing import Any

import pytest

from kungfu import control, monitor, ops
from kungfu.compiler import compile_policies, explain
from kungfu.errors import PolicyError
from kungfu.policies import gns_batch, schedule
from kungfu.policy_definition import Policy


def ignore(control: Any, *values: float) -> None:
    """A hook that does nothing."""


def test_no_policy_is_an_empty_plan() -> None:
    plan = compile_policies([])
    assert (plan.rules, plan.watched, plan.rule_inputs, plan.sources) == ((), (), (), frozenset())
    assert (plan.piggybacked.floats(4), plan.messages_per_step) == (0, 0)


def test_a_plan_names_the_sources_that_it_reads() -> None:
    read = compile_policies([schedule({10: 2})]).sources
    assert read == {"step", "size", "min_size", "max_size", "refused_size", "pending"}


def test_a_monitor_is_watched_by_its_name() -> None:
    assert compile_policies([gns_batch(max_peers=4)]).watched == ("noise_scale",)


def test_different_signals_of_one_name_are_watched_under_two() -> None:
    def watching(training: Any) -> Any:
        slow, fast = (monitor.gradient_noise_scale(training, decay=one) for one in (0.01, 0.1))
        return control.always().call(ignore, slow, fast)

    assert compile_policies([Policy("watching", watching)]).watched == ("noise_scale", "noise_scale_2")


def test_a_local_or_many_valued_signal_is_not_watched_even_with_a_name() -> None:
    def watching(training: Any) -> Any:
        times = ops.all_gather(training.busy_seconds.named("own")).named("all")
        return control.always().call(ignore, ops.max(times).named("slowest"))

    assert compile_policies([Policy("watching", watching)]).watched == ("slowest",)


def test_rules_of_one_name_are_told_apart() -> None:
    def hooked(training: Any) -> Any:
        return control.every(2).call(ignore), control.every(3).call(ignore)

    policies = [Policy("a", hooked), Policy("b", hooked)]
    assert [one.name for one in compile_policies(policies).rules] == ["ignore", "ignore_2", "ignore_3", "ignore_4"]


def test_compiling_twice_gives_the_same_plan() -> None:
    def plan() -> Any:
        return compile_policies([gns_batch(max_peers=4)])

    assert explain(plan()) == explain(plan())


def test_an_error_while_a_policy_is_built_comes_before_any_step() -> None:
    with pytest.raises(PolicyError, match=r"schedule\(\{\}\): takes at least one step: size"):
        compile_policies([schedule({})])


@pytest.mark.slow
def test_two_hundred_nodes_compile_within_a_second() -> None:
    import time

    def wide(training: Any) -> Any:
        value = training.mean_loss
        for number in range(200):
            value = value + ops.sqrt(training.step * number)
        return control.every(5).call(ignore, value)

    started = time.perf_counter()
    plan = compile_policies([Policy("wide", wide)])
    assert time.perf_counter() - started < 1
    assert len(plan.nodes) > 400
