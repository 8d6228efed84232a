"""Compiling: from policies to one plan that is the same on every peer."""

from __future__ import annotations

import math
import sys
from collections import Counter
from functools import partial, reduce
from typing import Any

import numpy as np
import pytest

from kungfu import control, monitor, ops
from kungfu.compiler import compile_policies, explain, explain_json
from kungfu.compiler.replay import NumpyBackend, Replay
from kungfu.compiler.serialize import plan_from_json, plan_to_json
from kungfu.control import Budget
from kungfu.policies import autoscale, gns_batch, replace_stragglers, schedule
from kungfu.policy_definition import Policy, shadow
from kungfu.signal import Map, Operation
from kungfu.signal.operation import rules
from tests.compiler import cluster
from tests.compiler.small import ignore, plan_of, plan_showing


def test_no_policy_is_an_empty_plan() -> None:
    plan = compile_policies([])
    assert (plan.rules, plan.watched_signals, plan.source_kinds) == ((), {}, {})
    assert (plan.piggybacked.floats(4), plan.messages_per_step) == (0, 0)


def test_a_plan_names_the_sources_that_it_reads() -> None:
    read = compile_policies([schedule({10: 2})]).source_kinds.keys()
    assert read == {"step", "size", "view", "min_size", "max_size", "refused_size", "target_size", "change_due"}


def test_a_row_is_all_that_an_operation_needs_in_python() -> None:
    """Its row is compiled, explained with its unit, and computed alike; its other place is the table of C++."""
    tanh = Operation("tanh", rules.fractional, np.tanh, "tf.math.tanh", unit="same")
    seen = lambda t: Map(tanh, (t.total_samples,)).named("seen")  # noqa: E731
    plan = compile_policies([Policy("new", lambda t: control.always().when(seen(t) > 0.5).call(ignore, seen(t)))])
    assert "seen = tanh(total_samples): agreed float32, samples" in explain(plan)
    local, agreed = cluster.invented(np.random.default_rng(0), number=1, size=2)
    expected = Replay(plan, size=2, backend=NumpyBackend).step(local, agreed)
    assert expected.inputs.tolist() == [pytest.approx(math.tanh(4))]
    cluster.assert_same(cluster.step(cluster.eager_cluster(plan, size=2), local, agreed), expected)


def test_a_monitor_is_watched_by_its_name() -> None:
    assert [*compile_policies([gns_batch(max_peers=4)]).watched_signals] == ["noise_scale", "rescales_left"]


def test_different_signals_of_one_name_are_watched_under_two() -> None:
    plan = plan_showing(*(partial(monitor.gradient_noise_scale, decay=one) for one in (0.01, 0.1)))
    assert [*plan.watched_signals] == ["noise_scale", "noise_scale_2"]


def test_a_local_or_many_valued_signal_is_not_watched_even_with_a_name() -> None:
    plan = plan_showing(lambda t: ops.max(ops.all_gather(t.busy_seconds.named("own")).named("all")).named("slowest"))
    assert [*plan.watched_signals] == ["slowest"]


def test_rules_of_one_name_are_told_apart() -> None:
    def hooked(training: Any) -> Any:
        return control.every(2).call(ignore), control.every(3).call(ignore)

    assert [one.name for one in plan_of(hooked, hooked).rules] == ["ignore", "ignore_2", "ignore_3", "ignore_4"]


@pytest.mark.parametrize("target_size", [1, 4])  # 1: one peer on its way replaces both
@pytest.mark.parametrize(("rescales", "fires"), [(1, False), (2, True)])
def test_an_eviction_leaves_those_on_their_way_the_change_that_they_cost(
    rescales: int, fires: bool, target_size: int
) -> None:
    lost = Policy("lost", lambda training: control.always().evict(ops.all_gather(training.loss) > 1))
    replay = Replay(compile_policies([lost], budget=Budget(rescales, 100)), size=2)
    _, known = cluster.invented(np.random.default_rng(0), number=1, size=2, view=1, replaced_peers=0)
    local = [{"loss": 0.0}, {"loss": 2.0}]
    assert bool(replay.step(local, {**known, "target_size": target_size}).fired[0]) == fires
    assert replay.step(local, {**known, "step": 9}).fired[0]


def test_compiling_takes_as_much_work_as_the_policy_has_nodes() -> None:
    """Twice the nodes take twice the calls, and not four times as many."""

    def calls(count: int) -> tuple[int, int]:
        counted = Counter[str]()
        sys.setprofile(lambda frame, event, argument: counted.update([event]))
        try:
            plan = plan_showing(
                lambda t: reduce(lambda value, n: value + ops.sqrt(t.step * n), range(count), t.mean_loss)
            )
        finally:
            sys.setprofile(None)
        return counted["call"], len(plan.nodes)

    (few, nodes), (many, more) = calls(100), calls(200)
    assert more > 400
    assert many / few < 1.2 * more / nodes


# ---- how fast the peers are ------------------------------------------------------------------------------------------


def test_the_speeds_of_peers_are_known_in_every_step_if_a_policy_measures_them() -> None:
    plan = compile_policies([replace_stragglers(every=50)])
    told = plan.straggler_fractions
    assert told is not None
    assert (told.monitor, told.placement, str(told.type)) == ("straggler_fractions", "agreed", "float32[size]")
    own = {"samples": 8.0, "busy_seconds": 0.1}
    agreed = {"pending": False, "min_size": 1, "max_size": 4}
    replay = Replay(plan, size=3)
    for step in range(1, 4):
        outcome = replay.step([own, own, {**own, "busy_seconds": 0.2}], {**agreed, "step": step})
    assert outcome.fractions.tolist() == [pytest.approx([1.0, 1.0, 0.905])], "1, 0.95, 0.905: as of the step before"


def test_policies_that_measure_the_speeds_share_them() -> None:
    one = compile_policies([replace_stragglers()]).piggybacked.floats(8)
    assert compile_policies([replace_stragglers(), shadow(replace_stragglers(every=7))]).piggybacked.floats(8) == one
    assert compile_policies([autoscale(max_peers=4)]).straggler_fractions is not None, "its table reads them"


def test_who_leaves_first_is_explained_and_survives_a_record() -> None:
    plan = compile_policies([replace_stragglers()])
    line = "when the job shrinks, peers below 0.9 of the median speed leave first, by monitor.straggler_fractions"
    assert line in explain(plan).splitlines()
    assert explain_json(plan)["leave_first"] == {"below": 0.9, "measured_by": "monitor.straggler_fractions"}
    again = plan_from_json(plan_to_json(plan)).straggler_fractions
    assert again is not None
    assert again.monitor == "straggler_fractions"
    unmeasured = compile_policies([schedule({10: 2})])
    assert unmeasured.straggler_fractions is None
    assert "leave first" not in explain(unmeasured)
    assert explain_json(unmeasured)["leave_first"] is None
