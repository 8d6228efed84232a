"""Hooks on a change of membership."""

from __future__ import annotations

from typing import Any

import pytest

from kungfu.errors import UsageError
from kungfu.runtime.core.barrier import BarrierResult, Decision, LossRecovery
from kungfu.runtime.core.terms import Terms
from kungfu.runtime.core.view import Peer, View
from kungfu.runtime.settings import CheckpointSettings
from kungfu.training.loop.between_steps import complete_pending, left_pending
from kungfu.training.state.rescale_hooks import Rescaled, RescaleHooks
from tests.training.linear import linear_run, points


def view(version: int, *peers: int) -> View:
    return View(version, tuple(Peer(peer, f"a:{peer}") for peer in peers))


def came(before: View | None, after: View, **more: Any) -> BarrierResult:
    """The result of a barrier on peer 1."""
    known = None if before is None else Decision(before, Terms())
    return BarrierResult(known, Decision(after, Terms()), 1, **more)


LOST = LossRecovery({1: "killed by SIGKILL"}, "rank 1 is gone", 0)
TWO = view(1, 0, 1)


@pytest.mark.parametrize(
    ("result", "founders", "told"),
    [
        (came(TWO, view(2, 0, 1, 2), sources=(0, 1)), 2, [Rescaled("grew", 2, 3, 1, 40)]),
        (came(TWO, view(2, 1), sources=(0,)), 2, [Rescaled("shrank", 2, 1, 0, 40)]),
        (came(TWO, view(2, 1, 2), sources=(0,)), 2, [Rescaled("exchanged", 2, 2, 0, 40)]),
        (came(TWO, view(3, 1), recovery=LOST, sources=(0,)), 2, [Rescaled("recovered", 2, 1, 0, 40)]),
        (came(None, view(2, 0, 2, 1), sources=(0, 1)), 0, [Rescaled("joined", 0, 3, 2, 40)]),
        (came(None, TWO, sources=(0,)), 2, []),
        (came(TWO, TWO), 2, []),
        (came(TWO, view(2, 0)), 2, []),
    ],
)
def test_a_hook_hears_of_each_change_as_its_peer_sees_it(result, founders, told):
    run, heard = linear_run().training._run, list[Rescaled]()
    run.checkpoints._settings = CheckpointSettings(founders=founders)
    run.hooks.add(heard.append)
    left_pending(run, result, step=40)
    assert heard == [], "hooks are called before the next step, where all programs are at the same place"
    complete_pending(run)
    assert heard == told


def test_hooks_are_called_in_their_order_and_an_error_names_the_one_that_raised():
    hooks, calls = RescaleHooks(), []

    def failing(rescaled: Rescaled) -> None:
        raise LookupError("of the hook")

    for function in (lambda _: calls.append(1), failing, lambda _: calls.append(3)):
        hooks.add(function)
    with pytest.raises(UsageError, match=r"failing of training\.on_rescale.*LookupError: of the hook"):
        hooks.call(Rescaled("grew", 1, 2, 0, 5))
    assert calls == [1]


def test_what_cannot_be_called_is_refused():
    with pytest.raises(UsageError, match="takes a function"):
        linear_run().training.on_rescale(3)


def test_a_hook_may_be_a_decorator_and_hears_nothing_of_an_unchanged_run():
    run, heard = linear_run(), []

    @run.training.on_rescale
    def hook(rescaled):
        heard.append(rescaled)

    assert hook.__name__ == "hook"
    run.step(points(2))
    assert heard == []
