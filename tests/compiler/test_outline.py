"""A plan part by part: what changes a part, and what does not."""

from __future__ import annotations

import functools
from typing import Any

from kungfu import control, ops
from kungfu.compiler import compile_policies
from kungfu.compiler.outline import outline
from kungfu.policies import gns_batch, schedule
from kungfu.policy_definition import Policy, policy
from tests.compiler.small import ignore


def note_else(control: Any, *values: float) -> None:
    """Another one."""


def parts(*policies: Policy, **options: Any) -> list[tuple[str, str]]:
    return list(outline(compile_policies(policies, **options)))


def texts(*policies: Policy) -> list[str]:
    return [text for _, text in parts(*policies)]


def news(one: Policy, other: Policy) -> list[str]:
    """What is shown of the parts of ``other`` that ``one`` lacks."""
    known = set(texts(one))
    return [shown for shown, text in parts(other) if text not in known]


@policy
def summed(training: Any, *, swapped: bool = False, decay: float = 0.5, hook: Any = ignore) -> Any:
    a = ops.all_reduce(training.loss, "mean")
    b = ops.all_reduce(training.samples, "sum")
    c = b + a if swapped else a + b
    return control.every(5).call(hook, c.ema(decay))


def test_a_policy_that_is_built_again_has_the_same_parts() -> None:
    assert parts(summed()) == parts(summed())
    assert parts(gns_batch(max_peers=8)) == parts(gns_batch(max_peers=8))


def test_the_order_of_a_sum_is_another_part_and_shown_with_rule_name_and_line() -> None:
    first = news(summed(), summed(swapped=True))[0]
    line = summed.__wrapped__.__code__.co_firstlineno + 4
    assert first == f"c = b + a in rule summed [test_outline.py:{line}]"


def test_a_number_inside_of_a_fold_is_another_part_and_shown() -> None:
    (first, *_) = news(summed(), summed(decay=0.25))
    assert "ema(c)" in first
    assert "0.25" in first
    assert "0.5" in next(shown for shown, _ in parts(summed()) if "ema(c)" in shown)


def test_a_hook_counts_by_its_module_and_name() -> None:
    (changed, *_) = news(summed(), summed(hook=note_else))
    assert changed.startswith("rule summed: call note_else(")
    partial = functools.partial(ignore, extra=1)
    assert texts(summed(hook=partial)) != texts(summed(hook=functools.partial(note_else, extra=1)))


def test_lines_and_names_of_variables_make_no_difference() -> None:
    def once(training: Any) -> Any:
        doubled = training.mean_loss * 2.0
        return control.every(3).when(doubled > 1.0).rescale(2)

    def again(training: Any) -> Any:

        twice = training.mean_loss * 2.0

        return control.every(3).when(twice > 1.0).rescale(2)

    assert texts(Policy("once", once)) == texts(Policy("once", again))


def test_rules_on_a_rescale_and_the_budget_and_the_order_of_policies_count() -> None:
    @policy
    def scaled(training: Any, *, rate: float) -> Any:
        return control.on_rescale().set_learning_rate(rate)

    assert any("on a rescale" in shown for shown in news(scaled(rate=0.1), scaled(rate=0.2)))
    budgeted = parts(schedule({3: 2}), budget=control.Budget(rescales=2, per_steps=100))
    assert [text for _, text in budgeted] != texts(schedule({3: 2}))
    one, other = summed(), scaled(rate=0.1)
    assert texts(one, summed(hook=note_else)) != texts(summed(hook=note_else), one)
    assert set(texts(one, other)) != set(texts(one))
