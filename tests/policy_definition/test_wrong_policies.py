"""Wrong policies, as people write them: each is refused with its name, the line to mend, and what to write instead."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import kungfu as kf
from kungfu import control, monitor, ops
from kungfu.compiler import compile_policies
from kungfu.control import Keep
from kungfu.errors import PolicyError
from kungfu.policies import autoscale, gns_batch, linear_scaling, schedule
from kungfu.policy_definition import Policy, at_most, compose, policy, shadow

Body = Callable[[Any], Any]
WRONG: dict[str, tuple[Body, str]] = {}


def wrong(expected: str) -> Callable[[Body], Body]:
    """One more wrong policy; the line to mend ends in ``# here``, and the message says what is expected."""

    def kept(body: Body) -> Body:
        WRONG[body.__name__] = (body, expected)
        return body

    return kept


# ---- Python's own errors ---------------------------------------------------------------------------------------------


@wrong(r"TypeError: can only concatenate str .*; a policy computes with signals, Python numbers and kf.ops")
def adds_text(training: Any) -> Any:
    wanted = "one" + 1  # type: ignore[operator]  # here
    return control.always().rescale(wanted)


@wrong(r"AttributeError: .* has no attribute 'smoothed'")
def has_no_such_method(training: Any) -> Any:
    return control.always().rescale(training.mean_loss.smoothed(0.1))  # here


@wrong(r"ZeroDivisionError: division by zero")
def divides_by_zero(training: Any) -> Any:
    share = 1 / 0  # here
    return control.always().rescale(training.size * share)


@wrong(r"NameError: name 'peers_wanted' is not defined")
def forgets_a_name(training: Any) -> Any:
    return control.always().rescale(peers_wanted)  # type: ignore[name-defined]  # noqa: F821 - on purpose  # here


@wrong(r"KeyError: 3")
def misses_a_key(training: Any) -> Any:
    table = {1: 2}
    return control.always().rescale(table[3])  # here


@wrong(r"TypeError: .*rescale\(\) got an unexpected keyword argument 'peer'")
def misspells_an_argument(training: Any) -> Any:
    return control.always().rescale(peer=3)  # type: ignore[call-arg]  # here


@wrong(r"TypeError: .* does not support ufuncs")
def uses_numpy(training: Any) -> Any:
    return control.always().rescale(np.log(training.mean_loss))  # here


def _helper(training: Any) -> Any:
    return training.size + [][0]  # here


@wrong(r"IndexError: list index out of range")
def fails_in_a_helper(training: Any) -> Any:
    return control.always().rescale(_helper(training))


# ---- signals taken for numbers ---------------------------------------------------------------------------------------


@wrong(r"a Python `if`, .* write kf.ops.where")
def branches(training: Any) -> Any:
    if training.mean_loss > 1:  # here
        return control.always().rescale(2)
    return control.always().rescale(3)


@wrong(r"a Python number was requested of")
def asks_for_a_float(training: Any) -> Any:
    return control.always().rescale(math.sqrt(training.mean_loss))  # here


@wrong(r"a Python `for` over .* the gradients are known as a whole only")
def walks_the_gradients(training: Any) -> Any:
    total = sum(ops.norm_squared(one) for one in training.grads)  # here
    return control.always().rescale(total)


@wrong(r"take\(float32\[nest\], int64\): the gradients are a nest of tensors, .* kf.ops.norm_squared\(training.grads\)")
def takes_a_gradient(training: Any) -> Any:
    return control.always().rescale(ops.norm_squared(training.grads[0]))  # here


# ---- names that no step offers ---------------------------------------------------------------------------------------


@wrong(r"write kf.monitor.gradient_noise_scale\(training\): a step offers no 'noise_scale'")
def asks_for_the_noise_scale(training: Any) -> Any:
    return control.every(50).rescale(training.noise_scale / training.local_batch_size)  # here


@wrong(r"write training.learning_rate: a step offers no 'lr'")
def asks_for_the_lr(training: Any) -> Any:
    return control.always().set_learning_rate(training.lr / 2)  # here


@wrong(r"write training.mean_loss: a step offers no 'meanloss'")
def misspells_a_source(training: Any) -> Any:
    return control.always().when(training.meanloss < 1).stop()  # here


# ---- numbers ---------------------------------------------------------------------------------------------------------


@wrong(r"100000000000000000000 does not fit: whole numbers of a policy are int64")
def counts_too_far(training: Any) -> Any:
    return control.always().when(training.samples_done > 10**20).stop()  # here


@wrong(r"power\(bool, int64\): a bool is no number here")
def squares_a_truth_value(training: Any) -> Any:
    return control.always().rescale(training.pending**2)  # here


@wrong(r"every 0 steps: the period must be a whole number of at least 1")
def never_looks(training: Any) -> Any:
    return control.every(0).rescale(2)  # here


@wrong(r"\.after\(-1\): takes the number of a step")
def looks_before_the_first(training: Any) -> Any:
    return control.always().after(-1).rescale(2)  # here


@wrong(r"decay")
def smooths_with_nothing(training: Any) -> Any:
    return control.always().rescale(training.mean_loss.ema(2.0))  # here


@wrong(r"takes bool signals only; compare first")
def mistakes_the_order(training: Any) -> Any:
    return control.always().when(training.mean_loss > 1 & training.size).stop()  # here


# ---- rules that can never fire ---------------------------------------------------------------------------------------


@wrong(r"\.when\(False\): takes a bool signal; .* this would be False in every step")
def compares_constants(training: Any) -> Any:
    most, least = 2, 1
    return control.always().when(least > most).rescale(2)  # here


@wrong(r"can never fire: its trigger holds in no step")
def waits_for_step_zero(training: Any) -> Any:
    return control.always().when(training.step == 0).checkpoint()  # here


@wrong(r"can never fire: the size that it asks for never is a finite number other than what is")
def asks_for_nan_peers(training: Any) -> Any:
    return control.every(5).rescale(math.nan)  # here


# ---- what it gives back, and what all peers have to agree on ---------------------------------------------------------


@wrong(r"gave None; it must return a rule or a tuple of rules")  # here
def forgets_to_return(training: Any) -> Any:
    control.always().rescale(2)


@wrong(r"gave <agreed float32 signal .*; it must return a rule")  # here
def returns_a_signal(training: Any) -> Any:
    return training.mean_loss


@wrong(r"the size that policy 'asks_each_peer' asks for is made of the local signal 'loss'")
def asks_each_peer(training: Any) -> Any:
    return control.always().rescale(training.loss)  # here


@wrong(r"uses training.previous_size .*, which only a barrier that changes the size knows")
def looks_back_in_a_step(training: Any) -> Any:
    return control.always().rescale(training.previous_size)  # here


@wrong(r"takes a truth value for each peer")
def evicts_by_a_number(training: Any) -> Any:
    return control.always().evict(monitor.straggler_fractions(training))  # here


def _line_of(body: Body) -> int:
    """The first line from the body on that is marked."""
    with open(__file__, encoding="utf-8") as source:
        lines = source.read().splitlines()
    first = body.__code__.co_firstlineno
    if body.__name__ == "fails_in_a_helper":
        first = _helper.__code__.co_firstlineno
    return next(number for number in range(first, len(lines) + 1) if lines[number - 1].endswith("# here"))


@pytest.mark.parametrize("name", list(WRONG))
def test_a_wrong_policy_is_refused_with_its_name_its_line_and_what_to_write(name: str) -> None:
    body, expected = WRONG[name]
    with pytest.raises(PolicyError, match=expected) as caught:
        compile_policies([policy(body)()])
    line, message = _line_of(body), str(caught.value)
    assert name in message
    assert f"{__file__}:{line}" in message
    assert (caught.value.policy, caught.value.origin) == (name, f"{__file__}:{line}")


# ---- policies inside others, and prebuilt ones -----------------------------------------------------------------------


def here(offset: int = 0) -> str:
    """The line that calls this, with the file."""
    return f"{__file__}:{sys._getframe(1).f_lineno + offset}"


def test_an_error_inside_others_names_the_policy_that_is_wrong_once() -> None:
    body, expected = WRONG["divides_by_zero"]
    around = at_most(compose(schedule({1: 2}), shadow(policy(body)())), schedule({5: 4}))
    with pytest.raises(PolicyError, match=expected) as caught:
        compile_policies([around])
    assert str(caught.value).count("policy '") == 1
    assert caught.value.policy == "divides_by_zero"


def test_a_prebuilt_policy_that_is_given_something_wrong_names_the_line_that_made_it() -> None:
    made, line = schedule({-5: 2}), here()
    with pytest.raises(PolicyError, match=r"policy 'schedule' \(.*\): schedule: -5: 2 is no step and size") as caught:
        compile_policies([made])
    assert caught.value.origin == line


def test_two_that_set_the_same_thing_are_both_named_with_their_lines() -> None:
    def one(training: Any) -> Any:
        return control.always().rescale(2)

    def other(training: Any) -> Any:
        return control.always().rescale(3)

    with pytest.raises(PolicyError, match=r"'one', 'other' all rescale .* kf.at_most\(one, other\)") as caught:
        compile_policies([policy(one)(), policy(other)()])
    lines = [function.__code__.co_firstlineno + 1 for function in (one, other)]
    assert re.findall(re.escape(__file__) + r":(\d+)", str(caught.value)) == [str(line) for line in lines]


def test_prebuilt_ones_that_set_the_same_thing_are_named_with_the_users_lines() -> None:
    policies, line = [schedule({1: 2}), gns_batch(max_peers=4)], here()
    with pytest.raises(PolicyError, match=re.escape(f"first one that has any ({line}; {line})")) as caught:
        compile_policies(policies)
    assert caught.value.origin == line


def test_a_prebuilt_one_that_can_never_fire_is_named_with_the_users_line() -> None:
    made, line = linear_scaling(), here()
    wrong_rule = control.on_rescale().when(ops.constant(1) > 2).set_learning_rate(0.1)
    stays = replace(made, body=lambda t: tuple(replace(one, trigger=wrong_rule.trigger) for one in made.build(t)))
    with pytest.raises(
        PolicyError, match=f"^{re.escape(line)}: policy 'linear_scaling' has a rule that can never fire"
    ):
        compile_policies([stays])


def test_two_rules_of_one_policy_are_not_told_to_be_combined_by_its_name() -> None:
    @policy
    def torn(training: Any) -> Any:
        return control.every(5).rescale(2), control.every(7).rescale(3)

    for policies in ([torn()], [schedule({1: 2}), torn()], [compose(schedule({1: 2}), torn())]):
        with pytest.raises(
            PolicyError, match=r"ha(s|ve) [23] rules that all rescale .* of one policy's rules make"
        ) as caught:
            compile_policies(policies)
        assert "kf.at_most(" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            [autoscale],
            r"the function 'autoscale', which makes a policy, was given .*: call it, .*=\[autoscale\(max_peers=...\)\]",
        ),
        ([schedule], r"the function 'schedule', which makes a policy, was given .* policies=\[schedule\(sizes=...\)\]"),
        (
            gns_batch(max_peers=2),
            r"the policy 'gns_batch' was given .*: put it into a list, as in policies=\[gns_batch",
        ),
        (
            "gns_batch",
            r"the text 'gns_batch' was given .*policies=\[kf\.policies\.gns_batch\(max_peers=8\)\]; texts name",
        ),
        (["gns_batch(max_peers=2)"], r"the text 'gns_batch\(max_peers=2\)' was given .*kungfu-run --policy only"),
        (
            [control.every(5).rescale(2)],
            r"the rule 'rescale' \(.*\) was given .*decorate the function that does with @kf\.policy",
        ),
        (control.every(5).rescale(2), r"the rule 'rescale' .* was given"),
        ([asks_each_peer], r"the function 'asks_each_peer' was given .*: decorate it with @kf\.policy, and call it"),
        (None, r"None was given .*: a list of policies is needed, as in policies=\[gns_batch\(max_peers=8\)\]"),
        ([None], r"None was given"),
        ([Policy], r"<class .*Policy'> was given"),
        ({schedule({1: 2})}, r".* was given .* a list of policies is needed"),
        ({"a": schedule({1: 2})}, r".* was given .* a list of policies is needed"),
    ],
)
def test_what_is_no_list_of_policies_is_refused_with_the_line_and_what_to_write(given: Any, message: str) -> None:
    with pytest.raises(PolicyError, match=f"policies must be a list, and {message}") as caught:
        compile_policies(given)
    assert caught.value.origin == here(-1)
    assert f"was given ({caught.value.origin}): " in str(caught.value)


def test_what_is_combined_on_other_terms_names_the_line_that_combines() -> None:
    @policy
    def asking(training: Any, *, keep: Keep) -> Any:
        return control.always().rescale(2, keep=keep)

    combined, line = at_most(asking(keep="local_batch_size"), asking(keep="global_batch_size")), here()
    with pytest.raises(PolicyError, match=r"policies that share a setting must set it on the same terms") as caught:
        compile_policies([combined])
    assert caught.value.origin == line


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda t: control.always().when(t.step < -5).checkpoint(), "its trigger holds in no step"),
        (lambda t: control.always().after(100).when(t.step <= 50).rescale(2), "its trigger holds in no step"),
        (lambda t: control.always().when(t.step % 10 == 10).checkpoint(), "its trigger holds in no step"),
        (lambda t: control.always().when(t.samples_done % 4 == 4).checkpoint(), "its trigger holds in no step"),
        (lambda t: control.every(2).when(t.step % 4 == 1).rescale(2), "its trigger holds in no step"),
        (lambda t: control.every(10).when(t.step < 10).checkpoint(), "its trigger holds in no step"),
        (lambda t: control.always().when(t.mean_loss > math.nan).stop(), "its trigger holds in no step"),
        (
            lambda t: control.every(5).set_learning_rate(-0.1),
            "the learning rate .* never is a finite number above 0",
        ),
        (lambda t: control.every(5).set_global_batch_size(-64), "the global batch .* finite number above 0 other than"),
        (lambda t: control.every(5).replace(ops.ranks() >= 0), "marks every peer, and peers go only where others stay"),
        (lambda t: control.every(5).evict(ops.ranks() < 0), "its choice of peers marks no peer"),
    ],
)
def test_a_rule_that_can_never_fire_is_refused(made: Body, why: str) -> None:
    with pytest.raises(PolicyError, match=f"policy 'idle' has a rule that can never fire: .*{why}"):
        compile_policies([Policy("idle", made)])


# ---- what can fire is let through ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "made",
    [
        gns_batch(max_peers=8),
        schedule({0: 2, 100: 4}),
        Policy("size", lambda t: control.always().when(t.size == t.max_size).stop()),
        Policy("rest", lambda t: control.always().when(t.step % 10 == 9).stop()),
        Policy("one", lambda t: control.always().when(t.step == 1).checkpoint()),
        Policy("window", lambda t: control.always().after(99).when(t.step <= 100).checkpoint()),
        Policy("either", lambda t: control.always().when((t.step < 1) | (t.mean_loss > 3)).stop()),
        Policy("not", lambda t: control.always().when(~(t.size < 1)).stop()),
        Policy("nan", lambda t: control.always().when(t.mean_loss != t.mean_loss).stop()),
        Policy("choice", lambda t: control.always().rescale(kf.ops.where(t.step > 5, 2, math.nan))),
        Policy("halved", lambda t: control.always().set_learning_rate(t.learning_rate / 2)),
        Policy("clip", lambda t: control.always().when(kf.ops.clip(t.mean_loss, 0, 1) >= 1).stop()),
        Policy("sum", lambda t: control.always().when(-t.step + 10 > 0).stop()),
        Policy("tenths", lambda t: control.always().when(t.size * 0.1 + 0.2 <= 0.3).stop()),  # float32: size 1
    ],
)
def test_a_rule_that_may_fire_is_let_through(made: Policy) -> None:
    assert compile_policies([made]).rules
