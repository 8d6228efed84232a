"""The summary of a plan: what a person reads about policies first."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import kungfu as kf
from kungfu import control, monitor, ops
from kungfu.compiler import CompiledPolicies, compile_policies, explain, summarize
from kungfu.compiler.serialize import plan_from_json, plan_to_json
from kungfu.control import Budget, Evict, Replace, Rescale
from kungfu.policies import gns_batch, linear_scaling, replace_stragglers, schedule
from kungfu.policy_definition import Policy, at_most, policy, shadow
from tests.compiler.small import ignore, plan_of

ROOT = Path(__file__).parents[2]
PREBUILT: dict[str, Policy] = runpy.run_path(str(ROOT / "tools" / "policy_costs.py"))["POLICIES"]
# What each of them asks for, and when, in the words of the summary.
ASKED = {
    "autoscale": ("every 10 steps", "a size: a number computed from these values", "keeps the local batch size"),
    "gns_batch": (
        "every 50 steps", "a size: clip(round(noise_scale / local_batch_size) if moves else now, 2, 8)",
        "local batch size",
    ),
    "hybrid_scaling": (
        "in every barrier in which the size changes", "a global batch in samples: a number computed from these values",
        "a learning rate: learning_rate * (global_batch_size / previous_global_batch_size), over 100 steps",
    ),
    "linear_scaling": (
        "in every barrier in which the size changes",
        "a learning rate: learning_rate * (global_batch_size / previous_global_batch_size)",
    ),
    "replace_stragglers": ("every 10 steps", "new peers in place of the peers with straggler_fractions < 0.8",
                           "8 replacements, and one more every 100 steps"),
    "schedule": ("in every step", "a size: 4 if step >= 100 else nan (nan: no request), rounded"),
    "stop_on_nan": ("in every step, if steps_not_finite >= 3", "the end of training"),
    "utility": (
        "every 10 steps", "a size: a number computed from these values", "_tell(samples_done, 100000)",
        "if not is_finite(remaining_samples), not within 1,099,511,627,776 steps of the last time",
    ),
}  # fmt: skip


def summary_of(body: Callable[[Any], Any]) -> str:
    """The summary of a policy of this function, as one long line."""
    return " ".join(summarize(plan_of(body)).split())


def acting(plan: CompiledPolicies) -> list[Any]:
    return [one for one in (*plan.rules, *plan.on_rescale) if one.mode != "held"]


@pytest.mark.parametrize("name", PREBUILT)
def test_a_prebuilt_policy_takes_thirty_lines_with_its_settings_rules_and_costs(name: str) -> None:
    made = PREBUILT[name]
    plan = compile_policies([made])
    lines = summarize(plan).splitlines()
    assert len(lines) <= 30
    assert max(map(len, lines)) <= 100
    text = " ".join(" ".join(lines).split())
    assert made.about in text
    assert all(f"{key}=" in text for key in made.settings)
    assert [line.removeprefix("rule ") for line in lines if line.startswith("rule ")] == [r.name for r in acting(plan)]
    assert all(part in text for part in ASKED[made.name])
    for rule in acting(plan):
        is_change = isinstance(rule.action, (Rescale, Evict, Replace))
        budgets = [f"budget of {owner}: {one.rescales} rescales" for owner, one in rule.budgets.items()]
        assert not is_change or all(one in text for one in budgets)
    costs = explain(plan).partition("\ncosts\n")[2]
    assert costs
    assert summarize(plan).partition("\ncosts\n")[2].startswith(costs)


def test_every_prebuilt_policy_is_among_them() -> None:
    assert {one.name for one in PREBUILT.values()} == {*ASKED} == {*kf.policies.__all__}


def test_a_policy_with_a_batch_an_eviction_and_a_hook_is_told_rule_by_rule() -> None:
    def told(control: Any, loss: float) -> None:
        """A hook."""

    @policy(budget=Budget(4, 100, 2))
    def mixed(training: Any, *, least: float = 0.25, batch: int = 128) -> Any:
        """Drops slow peers, and grows the batch on a plateau.

        The rest is not shown.
        """
        falls = training.mean_loss.window(20).min()
        return (
            control.every(10).when(falls > least).cooldown(steps=40).set_global_batch_size(batch * 2),
            control.every(20).evict(monitor.straggler_fractions(training) < 0.5),
            control.every(7).after(100).call(told, training.mean_loss),
        )

    assert summarize(compile_policies([mixed(batch=64)])).splitlines()[:21] == [
        f"policy mixed  [test_summary.py:{mixed.__wrapped__.__code__.co_firstlineno}]",
        "  Drops slow peers, and grows the batch on a plateau.",
        "  with least=0.25, batch=64",
        "rule mixed",
        "  watches  mean_loss",
        "  fires    every 10 steps, if min(window_of_20(mean_loss)) > 0.25, not within 40 steps of the last",
        "           time, for another batch than the present one",
        "  asks for a global batch in samples: 128, at least one per peer",
        "rule mixed_2",
        "  watches  straggler_fractions (from busy_seconds, host_joiners, samples)",
        "  fires    every 20 steps, if a peer is marked, and at least --min peers remain",
        "  asks for the removal of the peers with straggler_fractions < 0.5",
        "  limited  by the budget of mixed: 4 rescales, and one more every 25 steps; apart from them 2",
        "           replacements, and one more every 50 steps",
        "rule mixed_3",
        "  watches  mean_loss",
        "  fires    every 7 steps, where step > 100",
        "  calls    told(mean_loss), whose requests are known when it is called",
        "  limited  by the budget of mixed: 4 rescales, and one more every 25 steps; apart from them 2",
        "           replacements, and one more every 50 steps",
        "when the job shrinks, peers below 0.9 of the median speed leave first, by",
    ]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (lambda t: control.every(5).set_learning_rate(t.learning_rate / 2, over_samples=640),
         "asks for a learning rate: learning_rate / 2, over 640 samples"),
        (lambda t: control.always().when((t.mean_loss < 1) & ~(t.size > 3)).checkpoint(),
         "fires in every step, if mean_loss < 1 and not size > 3 asks for a checkpoint"),
        (lambda t: control.always().when((t.mean_loss > 1) == (t.size > 2)).checkpoint(),
         "if (mean_loss > 1) == (size > 2)"),
        (lambda t: control.always().when(t.mean_loss.ema(0.25) > 2 * (t.mean_loss.ema(0.5) + 1)).stop(),
         "if ema(mean_loss, weight 0.25) > 2 * (ema(mean_loss, weight 0.5) + 1)"),
        (lambda t: control.every(5).until(t.mean_loss < 1).cooldown(seconds=2.5).stop(),
         "every 5 steps, if not has_held(mean_loss < 1, where step % 5 == 0), not within 2.5 s of the last time"),
        (lambda t: control.every(20).when(t.mean_loss.hold(20).delta() > -1).stop(),
         "watches mean_loss fires every 20 steps, if delta(hold(mean_loss, where step % 20 == 0)) > -1"),
        (lambda t: control.always().when(t.step % 10 == 9).stop(), "in every step, where step % 10 == 9"),
        (lambda t: control.every(4).rescale(t.size + 1, keep="local_batch_size", max_global_batch=512),
         "a size: size + 1, rounded, from --min to --max peers; it keeps the local batch size up to a global batch "),
        (lambda t: control.every(4).rescale(3), "watches nothing that changes fires every 4 steps, for a size other"),
        (lambda t: control.every(4).call(ignore, ops.max(ops.all_gather(t.loss)), ops.all_reduce(t.loss, "mean")),
         "calls ignore(max(of_each_peer(loss)), mean_of_peers(loss))"),
        (lambda t: control.every(4).rescale(t.mean_loss.by_size(4)[t.size - 1]),
         "a size: table_by_size(mean_loss, size)[size - 1]"),
        (lambda t: control.every(4).rescale(t.fed("wanted")), "watches wanted fires every 4 steps"),
    ],
)  # fmt: skip
def test_a_condition_and_a_request_are_written_in_the_words_of_the_policy(body: Any, told: str) -> None:
    assert told in summary_of(body)


def test_a_combination_tells_what_each_policy_asks_for_and_the_budget_of_all() -> None:
    @policy
    def calm(training: Any) -> Any:
        """Grows by one."""
        return control.every(5).cooldown(steps=30).rescale(training.size + 1)

    lines = summarize(compile_policies([at_most(gns_batch(max_peers=8), calm())])).splitlines()
    assert [line for line in lines if line.startswith(("rule", "policy"))] == [
        f"policy at_most(gns_batch, calm)  [test_summary.py:{lines[0].rpartition(':')[2]}",
        "rule at_most(gns_batch, calm)",
        next(line for line in lines if line.startswith("policy gns_batch  [")),
        "rule gns_batch, for at_most(gns_batch, calm) to choose from",
        next(line for line in lines if line.startswith("policy calm  [")),
        "rule calm, for at_most(gns_batch, calm) to choose from",
    ]
    text = " ".join(" ".join(lines).split())
    assert "a size: the number that at_most(gns_batch, calm) chooses from those of gns_batch and calm, rounded" in text
    assert "fires every 5 steps, not within 30 steps of the last time asks for a size: size + 1" in text
    assert text.count("budget of gns_batch") == 1
    assert len(lines) <= 30


def test_a_shadow_and_a_job_of_several_policies_are_told_as_such() -> None:
    text = summarize(compile_policies([shadow(gns_batch(max_peers=8)), schedule({10: 4}), linear_scaling()]))
    assert "\nrule shadow(gns_batch), a shadow: nothing acts on it\n" in text
    assert text.count("\ncosts\n") == 1
    assert [line.split()[1] for line in text.splitlines() if line.startswith("policy")] == [
        "gns_batch", "schedule", "linear_scaling",
    ]  # fmt: skip
    assert "budget" not in text


def test_what_policies_share_is_told_once_and_a_recorded_plan_has_no_policies() -> None:
    def watching(training: Any) -> Any:
        return control.every(7).call(ignore, monitor.noise_scale_estimate(training).value)

    plan = compile_policies([gns_batch(max_peers=8), policy(watching)(), replace_stragglers()])
    text = summarize(plan)
    assert re.search(r"\ngns_batch and watching share noise_scale\n", text)
    assert "2 numbers of all gradients: norm_squared(grads), norm_squared(mean_grads)" in text
    read = summarize(plan_from_json(plan_to_json(plan)))
    assert "policy " not in read
    assert [line for line in read.splitlines() if line.startswith("rule")] == [
        line for line in text.splitlines() if line.startswith("rule")
    ]


def test_a_long_setting_is_shortened_and_a_policy_without_words_has_none() -> None:
    long = summarize(compile_policies([schedule({step: 2 + step % 3 for step in range(10, 500, 10)})]))
    assert re.search(r"with sizes=\{10: 3, .*\.\.\., keep='", " ".join(long.split()))
    assert "a number computed from these values" in long
    assert summarize(plan_of(lambda training: control.always().stop())).startswith("policy policy_0  [")
