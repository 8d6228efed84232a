"""What a Python hook may ask for."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from kungfu.control.hook import Control
from kungfu.errors import PolicyError


@pytest.mark.parametrize(
    ("sizes", "wanted"),
    [
        ([], None),
        ([3, 4.6], 5),  # the last one counts, rounded
        *(([peers], 1) for peers in (0, 0.4, -1, -1e300)),  # less than a peer is the fewest
        ([1e300], 1_000_000),  # more than any job can have is the most
    ],
)
def test_a_hook_wants_the_last_size_that_it_asks_for_within_those_of_any_job(
    sizes: list[float], wanted: int | None
) -> None:
    control = Control(size=2, step=7)
    control.barrier()
    for peers in sizes:
        control.rescale(peers)
    assert (control.wanted, control.passed_over) == (wanted, "")


@pytest.mark.parametrize("peers", [math.nan, math.inf, -math.inf, np.float32("nan")])
def test_what_is_not_finite_asks_for_nothing_and_what_was_asked_before_stands(peers: float) -> None:
    control = Control(size=2, step=7)
    control.rescale(peers)
    assert (control.wanted, control.passed_over) == (None, f"rescale({float(peers)}) asks for nothing")
    control.rescale(3)
    control.rescale(peers)
    assert control.wanted == 3


def test_a_whole_number_beyond_any_float_asks_for_nothing_either() -> None:
    control = Control(size=2, step=7)
    for ask in (control.rescale, control.set_global_batch_size, control.set_learning_rate):
        ask(10**400)
    assert (control.requests, control.passed_over) == ((), "set_learning_rate(inf) asks for nothing")


def asked(*calls: Any, size: int = 4) -> list[str]:
    """What a hook has asked for after these calls of its control, as text."""
    control = Control(size=size, step=7)
    for call in calls:
        call(control)
    return [str(one) for one in control.requests]


def test_everything_that_a_rule_can_ask_for_is_shown_as_it_was_written() -> None:
    calls = {
        "rescale(4, keep='global_batch_size')": lambda control: control.rescale(4.2, keep="global_batch_size"),
        "set_global_batch_size(101)": lambda control: control.set_global_batch_size(100.6),
        "set_learning_rate(0.5, over_steps=10)": lambda control: control.set_learning_rate(0.5, over_steps=10),
        "evict([2])": lambda control: control.evict(2),
        "replace([0, 3])": lambda control: control.replace([3, 0]),
        "checkpoint()": lambda control: control.checkpoint(),
        "checkpoint('best')": lambda control: control.checkpoint("best"),
        "restore('best')": lambda control: control.restore("best"),
        "stop()": lambda control: control.stop(),
        "set_value('temperature', 0.5)": lambda control: control.set_value("temperature", 0.5),
    }
    assert asked(*calls.values()) == [*calls]
    assert asked(lambda control: control.rescale(4, batch=256, rate=0.5, over_samples=9)) == [
        "rescale(4, batch=256, rate=0.5, over_samples=9)"
    ]


def test_the_last_call_of_a_method_counts_and_peers_add_up() -> None:
    requests = asked(
        lambda control: control.set_learning_rate(0.5),
        lambda control: control.evict(2),
        lambda control: control.set_learning_rate(0.25),
        lambda control: control.evict(np.array([1])),
        lambda control: control.evict([]),
        lambda control: control.set_value("a", 1),
        lambda control: control.set_value("b", 2),
        lambda control: control.set_value("a", 3),
        lambda control: control.restore("a"),
        lambda control: control.restore("b"),
    )
    values = ["set_value('a', 3)", "set_value('b', 2)"]
    assert requests == ["set_learning_rate(0.25)", "evict([1, 2])", *values, "restore('b')"]


@pytest.mark.parametrize(
    ("call", "passed_over"),
    [
        (lambda control: control.set_global_batch_size(0), "set_global_batch_size(0)"),
        (lambda control: control.set_global_batch_size(-64), "set_global_batch_size(-64)"),
        (lambda control: control.set_global_batch_size(math.nan), "set_global_batch_size(nan)"),
        (lambda control: control.set_learning_rate(math.inf), "set_learning_rate(inf)"),
        (lambda control: control.set_learning_rate(0.0), "set_learning_rate(0)"),
        (lambda control: control.set_learning_rate(-0.5), "set_learning_rate(-0.5)"),
        (lambda control: control.set_learning_rate(1e39), "set_learning_rate(1e+39)"),
        (lambda control: control.set_learning_rate(1e-46), "set_learning_rate(1e-46)"),
        (lambda control: control.rescale(4, batch=0), "rescale(batch=0)"),
        (lambda control: control.rescale(4, batch=math.nan), "rescale(batch=nan)"),
        (lambda control: control.rescale(4, batch=64, rate=-1), "rescale(rate=-1)"),
    ],
)
def test_what_no_rule_would_ask_for_a_hook_asks_for_in_vain(call: Any, passed_over: str) -> None:
    control = Control(size=2, step=7)
    call(control)
    assert (control.requests, control.passed_over) == ((), f"{passed_over} asks for nothing")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        *(
            (lambda control, one=one: control.rescale(one), r"control.rescale was given .*; give a number of peers")
            for one in ("four", None, [4])
        ),
        (lambda control: control.rescale(2, keep="batch"), "keep='batch'\\): write one of local_batch_size, global_"),
        (lambda control: control.set_global_batch_size("many"), "set_global_batch_size was given 'many', a str"),
        (lambda control: control.set_learning_rate(None), "set_learning_rate was given None, a NoneType"),
        (lambda control: control.set_learning_rate(1, over_steps=1, over_samples=1), "a ramp has one length"),
        (
            lambda control: control.rescale(4, over_steps=5),
            "rescale\\(over_steps=5\\): a ramp leads to a learning rate",
        ),
        (
            lambda control: control.rescale(4, batch="many"),
            "control.rescale was given 'many', a str; give a number of samples",
        ),
        (lambda control: control.evict(4), "there is no rank 4; ranks are 0 to 3"),
        (lambda control: control.replace([-1]), "there is no rank -1"),
        (lambda control: control.evict(1.5), "takes ranks, as in evict"),
        (lambda control: control.evict("1"), "takes ranks"),
        (lambda control: control.set_value(3, 4), "takes the name that training.register was given"),
    ],
)
def test_what_makes_no_sense_is_refused(call: Any, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        asked(call)
