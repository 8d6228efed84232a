"""A budget that counts replaced peers apart: policies that replace and those that scale do not use up each other's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kungfu import control, ops
from kungfu.compiler import CompiledPolicies, FiredRule, compile_policies, explain, fired_rules
from kungfu.compiler.replay import Replay
from kungfu.compiler.serialize import plan_from_json, plan_to_json
from kungfu.control import Budget
from kungfu.policies import replace_stragglers
from kungfu.policy_definition import Policy, at_most, compose, first, policy
from kungfu.testing import ClusterModel, PeerSpeeds, SlowPeer, Start
from kungfu.testing.simulated_run import SimulatedRun, run_on_model

CALM = {"min_size": 1, "max_size": 9, "refused_size": 0, "pending": False}
APART = Budget(2, 20, 3)


@policy(budget=APART)
def flapping(training: Any) -> Any:
    return control.always().rescale(5 - training.size)


@policy(budget=APART)
def exchanging(training: Any) -> Any:
    return control.always().replace(ops.all_gather(training.busy_seconds) > 1)


class Driven:
    """A plan over a cluster, in which what its rules ask for is carried out at once."""

    def __init__(self, *policies: Policy, size: int = 4, budget: Budget | None = None) -> None:
        self.plan = compile_policies(list(policies), budget=budget)
        self.replay, self.replaced, self.number = Replay(self.plan, size=size), 0, 0

    def step(self, *, slow: int = 0, pending: bool = False) -> dict[str, FiredRule]:
        """The rules that fire in the next step, in which so many peers are slow."""
        self.number += 1
        agreed = {**CALM, "step": self.number, "replaced_peers": self.replaced, "pending": pending}
        busy = [{"busy_seconds": 2.0 if rank < slow else 1.0} for rank in range(self.replay.size)]
        outcome = self.replay.step(busy, agreed)
        return {one.rule: one for one in fired_rules(self.plan, outcome, step=self.number)}

    def exchanged(self, peers: int, *, size: int | None = None) -> None:
        """The view changes: so many peers are replaced by decision, and perhaps the size changes too."""
        self.replaced += peers
        self.replay.rescale(size or self.replay.size)


# ---- what is charged -------------------------------------------------------------------------------------------------


def test_so_many_peers_are_replaced_at_once_and_then_one_more_as_the_steps_go_by() -> None:
    driven, fired = Driven(exchanging()), []
    for _ in range(30):
        if "exchanging" in driven.step(slow=1):
            fired.append(driven.number)
            driven.exchanged(1)
    # Of 60 parts, 20 a peer, 3 come back in each step: 9 are left in step 4, 21 in step 8.
    assert fired == [1, 2, 3, 8, 15, 21, 28]


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 30),
    st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=60),
)
def test_a_budget_bounds_the_replacements_of_any_run(
    replacements: int, per_steps: int, history: list[tuple[int, bool]]
) -> None:
    driven, total = Driven(replace(exchanging(), budget=Budget(1, per_steps, replacements))), 0
    for slow, grows in history:
        fired = driven.step(slow=slow)
        if "exchanging" in fired:
            assert fired["exchanging"].replacements_left is not None
            peers = min(slow, fired["exchanging"].replacements_left)
            assert peers >= 1
            total += peers
            driven.exchanged(peers, size=4 + grows)
        elif grows:
            driven.replay.rescale(9 - driven.replay.size)
        assert total <= replacements * (1 + driven.number / per_steps)


def test_an_exchange_costs_no_rescale_and_a_rescale_no_replacement() -> None:
    driven = Driven(exchanging(), flapping())
    driven.step()
    for _ in range(2):
        driven.exchanged(1)
        left = driven.step(slow=1)
    assert left["exchanging"].replacements_left == 1
    assert left["flapping"].inputs["rescales_left"] == pytest.approx(2.0)
    driven = Driven(exchanging(), flapping())
    driven.step()
    driven.replay.rescale(1)
    left = driven.step()
    assert left["flapping"].inputs["rescales_left"] == pytest.approx(1.1)
    driven.replay.rescale(4)
    assert driven.step(slow=1)["exchanging"].replacements_left == 3


def test_without_a_count_of_replacements_an_exchange_costs_a_rescale_as_ever() -> None:
    both = [replace(one, budget=Budget(2, 20)) for one in (exchanging(), flapping())]
    driven = Driven(*both)
    driven.step(pending=True)
    for _ in range(2):
        driven.exchanged(2)
        left = driven.step(pending=True)
    assert left == {}
    held = driven.step(slow=1)
    assert set(held) == {"held(exchanging)", "held(flapping)"}
    assert held["held(exchanging)"].inputs["rescales_left"] < 1
    assert held["held(exchanging)"].held_by == "2 rescales in 20 steps"


def test_one_change_that_grows_the_job_and_replaces_peers_costs_both() -> None:
    driven = Driven(exchanging(), flapping())
    driven.step(pending=True)
    driven.exchanged(2, size=6)
    fired = driven.step(slow=1)
    assert fired["exchanging"].replacements_left == 1
    assert fired["flapping"].inputs["rescales_left"] == pytest.approx(1.1)


def test_peers_that_come_for_lost_ones_are_no_replacement_and_cost_rescales_as_ever() -> None:
    driven = Driven(exchanging(), flapping())
    driven.step(pending=True)
    driven.replay.rescale(3)  # one of four was lost
    driven.step(pending=True)
    driven.replay.rescale(4)  # and another one came
    fired = driven.step(slow=1)
    assert fired["exchanging"].replacements_left == 3
    assert "flapping" not in fired
    assert fired["held(flapping)"].inputs["rescales_left"] == pytest.approx(0.2)
    assert fired["held(flapping)"].held_by == "2 rescales in 20 steps"


def test_a_job_that_is_resumed_counts_from_0_again_and_pays_for_nothing_twice() -> None:
    driven = Driven(exchanging())
    driven.step()
    driven.exchanged(2)
    assert driven.step(slow=1)["exchanging"].replacements_left == 1
    driven.replaced, driven.replay.view = 0, 1  # the states of the folds are those of the checkpoint
    assert driven.step(slow=1)["exchanging"].replacements_left == 1
    driven.exchanged(1)
    assert driven.step(slow=1).keys() == {"held(exchanging)"}, "the first one after that is counted"


def test_the_replay_of_an_older_record_knows_of_no_replacement() -> None:
    plan = compile_policies([exchanging()])
    outcome = Replay(plan, size=2).step([{"busy_seconds": 2.0}, {"busy_seconds": 1.0}], {**CALM, "step": 1})
    (fired,) = fired_rules(plan, outcome, step=1)
    assert fired.replacements_left == 3


# ---- several rules, hooks, merged rules ------------------------------------------------------------------------------


def test_the_second_of_two_replacing_rules_has_what_the_first_one_leaves() -> None:
    """If two rules replace in one step, the second has what the first one leaves."""

    @policy(budget=APART)
    def worn(training: Any) -> Any:
        return control.always().replace(ops.all_gather(training.busy_seconds) > 1)

    fired = Driven(exchanging(), worn()).step(slow=2)
    assert (fired["exchanging"].replacements_left, fired["worn"].replacements_left) == (3, 1)
    fired = Driven(exchanging(), worn(), flapping()).step(slow=3)
    assert set(fired) == {"exchanging", "held(worn)", "flapping"}, "the size is another budget's"
    fired = Driven(flapping(), exchanging(), worn()).step(slow=3)
    assert set(fired) == {"flapping", "exchanging", "held(worn)"}, "in whatever order"


def test_a_rule_of_a_budget_that_counts_them_apart_leaves_less_to_one_that_does_not() -> None:
    plain = replace(flapping(), budget=Budget(1, 100))
    assert set(Driven(exchanging(), plain).step(slow=1)) == {"exchanging", "held(flapping)"}
    assert set(Driven(plain, exchanging()).step(slow=1)) == {"flapping", "exchanging"}


def test_a_rule_that_would_replace_more_than_are_left_says_how_many_may_be() -> None:
    fired = Driven(exchanging()).step(slow=3)["exchanging"]
    assert (fired.ranks, fired.replacements_left) == ((0, 1, 2), 3)
    driven = Driven(replace(exchanging(), budget=Budget(1, 100, 2)))
    fired = driven.step(slow=3)["exchanging"]
    assert (fired.ranks, fired.inputs["marked"], fired.inputs["replacements_left"]) == ((0, 1, 2), 3, 2)


def test_that_replacements_are_used_up_is_told_once_and_by_how_many() -> None:
    driven = Driven(replace(exchanging(), budget=Budget(8, 800, 1)))
    driven.step(slow=1)
    driven.exchanged(1)
    held = driven.step(slow=1)["held(exchanging)"]
    assert (held.mode, held.held_by) == ("held", "1 replacement in 800 steps")
    assert "held(exchanging)" not in driven.step(slow=1)


def test_a_hook_is_told_both_and_replaces_at_most_so_many() -> None:
    def hook(control: Any) -> None: ...

    hooked = replace(Policy("hooked", lambda training: control.always().call(hook)), budget=APART)
    driven = Driven(hooked)
    one = driven.step()["hook"]
    assert (one.replacements_left, one.over_budget) == (3, False)
    assert (one.inputs["rescales_left"], one.inputs["replacements_left"]) == (2, 3)
    driven.exchanged(3)
    one = driven.step()["hook"]
    assert (one.replacements_left, one.over_budget) == (0, False)
    driven.replay.rescale(3)
    driven.step()
    driven.replay.rescale(2)
    assert driven.step()["hook"].over_budget


@pytest.mark.parametrize("combined", [first, at_most])
def test_a_merged_rule_needs_a_rescale_of_each_budget_and_an_exchange_costs_it_none(combined: Any) -> None:
    driven = Driven(combined(flapping(), replace(flapping(), budget=Budget(1, 100, 1))), exchanging())
    name = driven.plan.rules[0].name
    assert name in driven.step(slow=1)
    driven.exchanged(1)
    assert name in driven.step(), "the exchange was another budget's"
    driven.replay.rescale(1)
    held = driven.step()[f"held({name})"]
    assert held.held_by == "2 rescales in 20 steps or 1 rescale in 100 steps"


def test_the_budget_of_the_job_counts_them_apart_for_all_policies() -> None:
    driven = Driven(compose(exchanging(), flapping()), budget=Budget(1, 100, 2))
    assert set(driven.step(slow=1)) == {"exchanging", "flapping"}
    driven.exchanged(2)
    assert set(driven.step(slow=1)) == {"held(exchanging)", "flapping"}
    driven.replay.rescale(1)
    assert set(driven.step()) == {"held(flapping)"}


# ---- what it costs and tells -----------------------------------------------------------------------------------------


def test_explain_and_a_recorded_plan_tell_both_counts() -> None:
    plan = compile_policies([exchanging()])
    both = "budget of exchanging: 2 rescales, and one more every 10 steps; apart from them 3 replacements, and one more"
    assert f"  {both} every 7 steps\n" in explain(plan)
    assert explain(plan_from_json(plan_to_json(plan))) == explain(plan)


def test_a_plan_that_was_recorded_before_replacements_were_counted_can_still_be_read() -> None:
    content = plan_to_json(compile_policies([replace(flapping(), budget=Budget(2, 20))]))
    for rule in content["plan"]["rules"]:
        del rule["replacement_budget"]
        for _, budget in rule["budgets"]["entries"]:
            del budget["replacements"]
    again = plan_from_json(content)
    assert again.rules[0].budgets == {"flapping": Budget(2, 20)}


def test_the_counts_cost_no_message() -> None:
    plan: CompiledPolicies = compile_policies([exchanging()])
    assert (plan.messages_per_step, plan.piggybacked.floats(8)) == (0, 8), "the peers' own times"


# ---- on a modelled cluster -------------------------------------------------------------------------------------------


def replaced_on_model(*policies: Policy, slow: int, **settings: Any) -> SimulatedRun:
    speeds = PeerSpeeds(slow=[SlowPeer(0.5, peer=peer) for peer in range(slow)])
    start = Start(size=8, max_size=8)
    return run_on_model(
        list(policies), ClusterModel({1: 100, 8: 800}, steps=120, start=start, speeds=speeds), **settings
    )


def by_speed(budget: Budget) -> Policy:
    return replace(replace_stragglers(every=10), budget=budget)


def test_a_modelled_job_replaces_no_more_peers_than_its_budget_allows() -> None:
    run = replaced_on_model(by_speed(Budget(1, 1000, 2)), slow=3)
    assert [one.left for one in run.changes] == [(1, 2)], "of three equally slow ones the two that came last"
    run = replaced_on_model(by_speed(Budget(1, 1000, 3)), slow=3)
    assert [one.left for one in run.changes] == [(0, 1, 2)]


def test_the_slowest_are_replaced_where_not_all_can_be() -> None:
    speeds = PeerSpeeds(slow=[SlowPeer(0.7, peer=0), SlowPeer(0.4, peer=3), SlowPeer(0.6, peer=5)])
    model = ClusterModel({1: 100, 8: 800}, steps=120, start=Start(size=8, max_size=8), speeds=speeds)
    run = run_on_model([by_speed(Budget(1, 1000, 2))], model)
    assert [one.left for one in run.changes] == [(3, 5)]
