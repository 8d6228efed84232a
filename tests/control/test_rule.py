"""Rules: what each action fires on and asks for, and what a rule shows to the log."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from kungfu import control, ops
from kungfu.compiler import Outcome, compile_policies
from kungfu.compiler.replay import Replay
from kungfu.control.rule import call_rule, distinct_name, inputs_under
from kungfu.errors import PolicyError
from kungfu.policy_definition import Policy
from kungfu.signal import Signal, TrainingSignals

training = TrainingSignals()
CALM = {
    "step": 1,
    "min_size": 2,
    "max_size": 4,
    "refused_size": 0,
    "epoch_samples": 0,
    "pending": False,
    "mean_loss": 3.0,
    "global_batch_size": 64,
    "learning_rate": 0.5,
}


def decided(rule: control.Rule, *, losses: tuple[float, ...] = (0.0, 0.0, 0.0), **changed: Any) -> Outcome:
    replay = Replay(compile_policies([Policy("alone", lambda training: rule)]), size=len(losses))
    return replay.step([{"loss": loss} for loss in losses], {**CALM, **changed})


def of_two(rule: control.Rule, **changed: Any) -> Outcome:
    """What the rule decides in one step of a cluster of two."""
    return decided(rule, losses=(0.0, 0.0), min_size=1, **changed)


@pytest.mark.parametrize(
    ("wanted", "changed", "target"),
    [
        (3.0, {}, 3),
        (2.6, {}, 3),
        (9.0, {}, 4),
        (0.0, {}, 1),
        (math.inf, {}, None),
        (math.nan, {}, None),
        (2.4, {}, None),
        (3.0, {"pending": True}, None),
        (3.0, {"refused_size": 3}, None),
        (9.0, {"refused_size": 4}, None),
        (9.0, {"max_size": 2}, None),
        (3.0, {"step": 2}, 3),
    ],
)
def test_a_rescale_fires_for_news_within_the_limits_only(wanted: float, changed: dict[str, Any], target: Any) -> None:
    measured = ops.where(training.mean_loss > 0, wanted, 1.0)  # a constant that is none is refused
    outcome = of_two(control.always().rescale(measured), **changed)
    assert outcome.fired.tolist() == [target is not None]
    np.testing.assert_array_equal(outcome.targets, [math.nan if target is None else target])


LOW, HIGH = training.mean_loss < 2, training.mean_loss > 2


@pytest.mark.parametrize(
    ("rule", "changes", "fires"),
    [
        (control.every(3).rescale(4), [{"step": step} for step in range(1, 7)], [False, False, True] * 2),
        (control.always().when(LOW).rescale(4), [{"mean_loss": one} for one in (3, 1, math.nan)], [False, True, False]),
        (
            control.every(2).when(HIGH).call(lambda control, loss: None, training.mean_loss),
            [{"step": 2}, {"step": 3}, {"step": 2, "mean_loss": 1.0}, {"step": 2, "change_due": True}],
            [True, False, False, False],
        ),
    ],
)
def test_a_rule_waits_for_its_gate_and_its_condition(
    rule: control.Rule, changes: list[dict[str, Any]], fires: list[bool]
) -> None:
    outcomes = [of_two(rule, **one) for one in changes]
    assert [bool(one.fired[0]) for one in outcomes] == fires
    assert rule.name == "rescale" or np.isnan([one.targets for one in outcomes]).all(), "a call has no target"


NOISE = (training.mean_loss * 2).named("noise")


@pytest.mark.parametrize(
    ("rule", "names", "values"),
    [
        # The arguments of a call in order: by their names, two of one name apart, numbered where the function has none.
        (
            control.always().call(lambda control, a, b, c: None, training.mean_loss, training.step, 7),
            ["mean_loss", "step", "c"],
            [3, 1, 7],
        ),
        (control.always().call(lambda control, a, b: None, training.step, training.step), ["step", "step_2"], [1, 1]),
        (
            control.always().call(lambda *values: None, training.mean_loss * 2, training.mean_loss * 3),
            ["argument_1", "argument_2"],
            [6, 9],
        ),
        # The values that the target is made of, the condition that held, and the target.
        (control.always().rescale(training.mean_loss * 2), ["mean_loss", "size", "target"], [3, 2, 4]),
        (
            control.always().when(NOISE > 1).rescale(training.total_samples),
            ["total_samples", "noise", "size", "target"],
            [2, 6, 2, 2],
        ),
        (control.every(5).when(NOISE > 1).stop(), ["step", "noise"], [math.nan, math.nan]),
        # Or what the rule says in their place.
        (
            control.always()
            .rescale(training.mean_loss.ema(0.5).named("smooth"))
            .showing(loss_now=training.mean_loss, two=2),
            ["loss_now", "two", "size", "target"],
            [3, 2, 2, 3],
        ),
        (
            control.always().call(lambda control, loss: None, training.mean_loss).showing(step_now=training.step),
            ["mean_loss", "step_now"],
            [3, 1],
        ),
    ],
)
def test_the_record_shows_what_a_rule_saw(rule: control.Rule, names: list[str], values: list[float]) -> None:
    assert list(rule.inputs) == names
    np.testing.assert_array_equal(of_two(rule, total_samples=2.0).inputs, values)


def test_a_function_that_cannot_be_called_so_is_refused() -> None:
    with pytest.raises(PolicyError, match=r"takes \(control\), and it would be called as fn\(control, argument_1\)"):
        control.always().call(lambda control: None, training.mean_loss)


def test_what_is_no_function_cannot_be_called() -> None:
    with pytest.raises(PolicyError, match=r"call\(3\): the first argument must be a function"):
        call_rule(3, (), trigger=control.always())  # type: ignore[arg-type]  # what a user might write


NOISY = ((training.mean_loss + training.total_samples) * 2).named("noise")


@pytest.mark.parametrize(
    ("signal", "names"),
    [
        (NOISY / training.local_batch_size, ["noise", "local_batch_size"]),
        ((training.size * 2).named("twice") + training.size, ["twice", "size"]),  # under a name and beside it
        (ops.all_reduce(training.loss, "mean") * training.step, ["step"]),  # nothing local
    ],
)
def test_a_log_sees_names_and_the_agreed_sources_under_no_name(signal: Signal, names: list[str]) -> None:
    assert list(inputs_under(signal)) == names


def test_a_used_name_gets_the_first_free_number() -> None:
    assert distinct_name("a", used={"a", "a_2"}) == "a_3"
    assert distinct_name("b", used={"a"}) == "b"


@pytest.mark.parametrize("shown", [training.loss, ops.ranks()])
def test_what_peers_do_not_agree_on_or_is_no_number_cannot_be_shown(shown: Any) -> None:
    with pytest.raises(
        PolicyError, match=r"showing\(seen=...\): takes one number that all peers agree on, and this is <"
    ):
        control.always().rescale(2).showing(seen=shown)


# ---- what each action's rule fires on --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "target"),
    [
        (96.0, 96),
        (96.4, 96),
        (1.0, 3),
        (0.4, 3),
        (64.0, None),
        (0.0, None),
        (-64.0, None),
        (math.nan, None),
        (math.inf, None),
    ],
)
def test_a_batch_is_asked_for_where_it_is_another_one(wanted: float, target: float | None) -> None:
    outcome = decided(control.always().set_global_batch_size(training.mean_loss), mean_loss=wanted)
    assert outcome.fired.tolist() == [target is not None]
    np.testing.assert_array_equal(outcome.targets, [math.nan if target is None else target])


@pytest.mark.parametrize(
    ("now", "samples", "target"), [(64, 80, 80), (80, 80, None), (64, 96, 96), (64, 2, 3), (64, 0, 96)]
)
def test_a_batch_beyond_the_samples_of_an_epoch_is_asked_for_once(now: int, samples: int, target: int | None) -> None:
    rule = control.always().set_global_batch_size(training.mean_loss)
    outcome = decided(rule, mean_loss=96.0, global_batch_size=now, epoch_samples=samples)
    np.testing.assert_array_equal(outcome.targets, [math.nan if target is None else target])


@pytest.mark.parametrize(
    ("wanted", "fires"), [(0.25, True), (0.5, False), (0.0, False), (-1.0, False), (math.nan, False), (math.inf, False)]
)
def test_a_learning_rate_is_asked_for_where_it_is_another_one_and_one(wanted: float, fires: bool) -> None:
    outcome = decided(control.always().set_learning_rate(training.mean_loss), mean_loss=wanted)
    assert outcome.fired.tolist() == [fires]


WAITING = (
    control.always().set_global_batch_size(7),
    control.always().set_learning_rate(0.125),
    control.always().rescale(4),
    control.always().call(lambda control: None),
)
ACTING = (
    control.always().stop(),
    control.always().checkpoint(),
    control.always().evict(ops.all_gather(training.loss) > 1),
    control.always().replace(ops.all_gather(training.loss) > 1),
)


@pytest.mark.parametrize("rule", [*WAITING, *ACTING], ids=lambda rule: rule.name)
@pytest.mark.parametrize(
    ("under_way", "waits"),
    [
        ({}, False),
        ({"pending": True, "target_size": 6}, False),  # joiners start
        ({"pending": True, "target_size": 6, "barrier_due": True, "change_due": True}, True),  # they are offered
        ({"barrier_due": True, "change_due": False}, False),  # a barrier for something else
    ],
)
def test_a_rule_waits_only_for_a_barrier_that_may_change_what_it_judges_by(
    rule: control.Rule, under_way: dict[str, Any], waits: bool
) -> None:
    """A rule waits at most for the barrier of its own step, and only where that may change what it judges by."""
    known = {"barrier_due": False, "change_due": False, "target_size": 0, "replacing": False, **under_way}
    assert decided(rule, losses=(0, 2, 0), **known).fired[0] == (not waits or rule in ACTING)


@pytest.mark.parametrize(
    "action", [lambda one: one.checkpoint(), lambda one: one.evict(ops.all_gather(training.loss) > 1)]
)
def test_what_is_asked_for_in_every_step_is_asked_for_once_in_a_barrier(action: Any) -> None:
    replay = Replay(compile_policies([Policy("alone", lambda training: action(control.always()))]), size=3)
    due, fired = False, []
    for step in range(1, 7):
        known = {**CALM, "step": step, "barrier_due": due, "change_due": due}
        fired.append(bool(replay.step([{"loss": loss} for loss in (0.0, 2.0, 0.0)], known).fired[0]))
        due = fired[-1]
    assert fired == [True, False] * 3


def test_a_size_replaces_the_one_under_way_and_only_its_own_rule_takes_it_back() -> None:
    rule = control.always().rescale(training.mean_loss)
    replay = Replay(compile_policies([Policy("alone", lambda training: rule)]), size=2)

    def asks(wanted: float, *, target: int = 0, view: int = 1, due: bool = False) -> float:
        known = {**CALM, "min_size": 1, "mean_loss": wanted, "target_size": target, "view": view, "change_due": due}
        return float(replay.step([{}, {}], known).targets[0])

    nothing = pytest.approx(math.nan, nan_ok=True)
    assert asks(2.0, target=4) == nothing, "somebody else asked for four, and this rule is content"
    assert asks(4.0) == 4
    assert asks(4.0, due=True) == nothing, "its post rides on this step"
    assert asks(4.0, target=4) == nothing
    assert asks(3.0, target=4) == 3, "another size"
    assert asks(2.0, target=3) == 2, "it takes its request back"
    assert asks(2.0, target=4) == nothing, "which is not what it wanted last"
    assert asks(math.nan, target=3) == nothing
    assert asks(2.0, target=3, view=2) == nothing, "in a view after a loss others come for those who were lost"
    assert asks(1.0, target=3, view=2) == 1


@pytest.mark.parametrize(
    ("kind", "losses", "marked"),
    [
        ("evict", (0, 2, 0), [1]),
        ("evict", (2, 2, 0), []),  # one would be left, and the job has at least two
        ("evict", (0, 0, 0), []),
        ("replace", (0, 2, 0), [1]),
        ("replace", (2, 2, 0), [0, 1]),
        ("replace", (2, 2, 2), []),
        ("replace", (0, math.nan, 0), []),
    ],
)
def test_peers_are_marked_within_what_the_job_can_spare(
    kind: str, losses: tuple[float, ...], marked: list[int]
) -> None:
    mask = ops.all_gather(training.loss) > 1
    outcome = decided(getattr(control.always(), kind)(mask), losses=losses)
    assert outcome.fired.tolist() == [bool(marked)]
    assert np.flatnonzero(outcome.masks[0]).tolist() == marked
    assert outcome.masks.shape == (1, 3)


def test_masks_stand_in_the_order_of_their_rules() -> None:
    def body(training: Any) -> Any:
        loss = ops.all_gather(training.loss)
        return control.always().replace(loss > 1), control.always().stop(), control.every(2).evict(loss > 0)

    replay = Replay(compile_policies([Policy("both", body)]), size=4)
    local = [{"loss": loss} for loss in (0.0, 1.0, 2.0, 0.0)]
    first, second = (replay.step(local, {**CALM, "step": step}).masks.tolist() for step in (1, 2))
    assert first == [[False, False, True, False], [False] * 4]
    assert second == [[False, False, True, False], [False, True, True, False]]
    assert decided(control.always().stop()).masks.shape == (0, 3), "there is no such rule"


@pytest.mark.parametrize("mask", [True, training.mean_loss > 1, ops.all_gather(training.loss)])
def test_what_is_no_choice_of_peers_is_refused(mask: Any) -> None:
    with pytest.raises(PolicyError, match=r"evict\(.*takes a truth value for each peer"):
        control.always().evict(mask)


def test_a_choice_that_peers_would_make_differently_is_refused() -> None:
    local = ops.all_gather(training.loss) > training.loss
    with pytest.raises(PolicyError, match=r"the choice of peers in policy 'alone'.* is made of the local .*'loss'"):
        decided(control.always().replace(local))


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        *(({"over_steps": one}, r"over_steps=.*takes a finite number") for one in (-1, math.nan, True)),
        ({"over_samples": math.inf}, r"over_samples=.*takes a finite number"),
        ({"over_steps": 3, "over_samples": 5}, "a ramp has one length"),
    ],
)
def test_a_ramp_without_one_length_is_refused(lengths: dict[str, float], message: str) -> None:
    with pytest.raises(PolicyError, match=rf"set_learning_rate\(.*{message}"):
        control.always().set_learning_rate(0.1, **lengths)
