"""The requests of the rules that fired to a barrier, for real peers and modelled ones alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kungfu.compiler.fired import FiredRule
from kungfu.control import Call, Checkpoint, Evict, Replace, Rescale, SetGlobalBatchSize, SetLearningRate
from kungfu.control.hook import Control
from kungfu.runtime.core.barrier_requests import BarrierRequests, Leave, RescaleRequest
from kungfu.runtime.core.terms import Keep, SettingChange
from kungfu.runtime.core.view import View

__all__ = ["HookAnswer", "call_hook", "requests_of", "setting_change_of"]

_BUDGET_USED_UP = "the job's budget of rescales is used up"


@dataclass(frozen=True)
class HookAnswer:
    """The answer of a hook.

    Args:
        asked: The size that it asked for; ``None`` if it asked for none.
        ignored: Why that is passed over; empty where it is not.
        over_budget: Whether the budget is why.
    """

    asked: int | None
    ignored: str = ""
    over_budget: bool = False

    @property
    def size(self) -> int | None:
        """The size that the barrier is asked for."""
        return None if self.over_budget else self.asked


def call_hook(fired: FiredRule, action: Call, *, size: int) -> HookAnswer:
    """Calls the hook of a rule that fired, in a view of ``size`` peers.

    Reference: listing 1 of the KungFu paper. Every peer calls it with the same agreed values.
    """
    # The inputs of such a rule begin with the signals of the call, in their order.
    control = Control(size=size, step=fired.step)
    action.fn(control, *list(fired.inputs.values())[: len(action.signals)])
    over_budget = fired.over_budget and control.wanted is not None
    reasons = (control.passed_over, _BUDGET_USED_UP if over_budget else "")
    return HookAnswer(control.wanted, "; ".join(filter(None, reasons)), over_budget)


def requests_of(
    fired: Iterable[FiredRule], view: View, *, call: Callable[[FiredRule, Call], int | None]
) -> BarrierRequests:
    """The requests of rules that fired to a barrier of ``view``, in the order of the policies.

    Args:
        fired: The rules; those that act.
        view: The view whose ranks the masks name.
        call: Calls a hook, and gives the size that it wants; ``None`` if it wants none.
    """
    rescale, settings, checkpoints = list[RescaleRequest | None](), list[SettingChange](), list[str]()
    for one in fired:
        action = one.action
        if isinstance(action, Rescale):
            rescale.append(_request(one, round(one.value), keep=action.keep))
        elif isinstance(action, Call):
            wanted = call(one, action)
            rescale.append(None if wanted is None else _request(one, wanted))
        elif isinstance(action, Evict | Replace):
            rescale.append(_leave_request(one, view))
        elif isinstance(action, Checkpoint):
            checkpoints.append(one.rule)
        else:
            settings.append(setting_change_of(one))
    # A hook may have asked for nothing, and a mask may name ranks that have left since.
    taken = tuple(one for one in rescale if one is not None)
    return BarrierRequests(taken, None, tuple(settings), tuple(checkpoints))


def setting_change_of(fired: FiredRule) -> SettingChange:
    """The setting that a rule that fired asks for."""
    name, step, action = fired.rule, fired.step, fired.action
    if isinstance(action, SetLearningRate):
        return SettingChange("learning_rate", fired.value, name, step, fired.inputs, action.ramp_length, action.unit)
    if isinstance(action, SetGlobalBatchSize):
        return SettingChange("global_batch_size", fired.value, name, step, fired.inputs)
    return SettingChange("stop", fired.value, name, step, fired.inputs)


def _leave_request(fired: FiredRule, view: View) -> RescaleRequest | None:
    """The peers that a mask names, by id, for a rule knows ranks; ``None`` where it names none."""
    peers = tuple(view.ids[rank] for rank in fired.ranks if rank < view.size)
    if not peers:
        return None
    if isinstance(fired.action, Evict):
        return _request(fired, view.size - len(peers), leave=Leave(peers, "now"))
    return _request(fired, view.size, leave=Leave(peers, "replaced"))


def _request(
    fired: FiredRule, size: int, *, keep: Keep = "local_batch_size", leave: Leave | None = None
) -> RescaleRequest:
    return RescaleRequest(size, keep, fired.rule, fired.step, fired.inputs, fired.won, fired.lost, leave)
