"""The requests of the rules that fired to a barrier, for real peers and modelled ones alike."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from kungfu.compiler.fired import FiredRule
from kungfu.control import Call, Checkpoint, Evict, Replace, Rescale, SetGlobalBatchSize, SetLearningRate
from kungfu.control.hook import Control, HookRequest, HookRequestKind
from kungfu.errors import PolicyError
from kungfu.policy_definition.policy import in_brackets
from kungfu.runtime.core.barrier_requests import BarrierRequests, Leave, RescaleRequest, When
from kungfu.runtime.core.terms import Keep, SettingChange, SettingKind
from kungfu.runtime.core.view import View, is_slow
from kungfu.signal.source_location import location_in_traceback

__all__ = [
    "HookAnswer",
    "call_hook",
    "call_last_hook",
    "requests_of",
    "setting_change_of",
    "within_replacements",
]

_CHANGING_THE_SIZE: tuple[HookRequestKind, ...] = ("rescale", "evict")
_REPLACING: tuple[HookRequestKind, ...] = ("replace",)
_CHANGING_THE_CLUSTER = (*_CHANGING_THE_SIZE, *_REPLACING)
_SETTINGS: Mapping[HookRequestKind, SettingKind] = {
    "set_global_batch_size": "global_batch_size",
    "set_learning_rate": "learning_rate",
    "stop": "stop",
}
_OF_LATER_STEPS = (*_CHANGING_THE_CLUSTER, *_SETTINGS)
_BUDGET_USED_UP, _OVER = "its budget of rescales is used up", "training is over"
_REPLACEMENTS_USED_UP = "its budget of replacements is used up"


@dataclass(frozen=True)
class HookAnswer:
    """The answer of a hook.

    Args:
        requests: What the barrier is asked for.
        asked: The size that it asked for, granted by the budget or not; ``None`` if it asked for none.
        ignored: Why some of what it asked for is passed over; empty where nothing is.
    """

    requests: tuple[HookRequest, ...]
    asked: int | None
    ignored: str = ""

    def without(self, kinds: Collection[HookRequestKind], *, why: str) -> HookAnswer:
        """The answer without requests of some kinds; it says why, where there are any."""
        rest = tuple(one for one in self.requests if one.kind not in kinds)
        if len(rest) == len(self.requests):
            return self
        return HookAnswer(rest, self.asked, "; ".join(filter(None, (self.ignored, why))))

    def with_replacements(self, left: int) -> HookAnswer:
        """The answer with at most so many peers to replace, the first of those that it names; it says so."""
        asked = next((one for one in self.requests if one.kind == "replace"), None)
        if asked is None or len(asked.ranks) <= left:
            return self
        if left == 0:
            return self.without(_REPLACING, why=_REPLACEMENTS_USED_UP)
        fewer = replace(asked, ranks=asked.ranks[:left])
        why = f"of {asked} {left} {'is' if left == 1 else 'are'} within its budget"
        requests = tuple(fewer if one is asked else one for one in self.requests)
        return HookAnswer(requests, self.asked, "; ".join(filter(None, (self.ignored, why))))


def call_hook(fired: FiredRule, action: Call, *, size: int) -> HookAnswer:
    """Calls the hook of a rule that fired, in a view of ``size`` peers.

    Every peer calls it with the same agreed values.

    Raises:
        PolicyError: It asked for what makes no sense; the error names the rule and the line.

    Reference:
        Listing 1 of the KungFu paper.
    """
    # The inputs of such a rule begin with the signals of the call, in their order.
    control = Control(size=size, step=fired.step)
    try:
        action.fn(control, *list(fired.inputs.values())[: len(action.signals)])
    except PolicyError as error:
        if error.policy:
            raise
        origin = location_in_traceback(error.__traceback__)
        text = f"hook {fired.rule!r}{in_brackets(origin)}: {error}"
        raise PolicyError(text, policy=fired.rule, origin=origin) from error
    answer = HookAnswer(control.requests, control.wanted, control.passed_over)
    left = fired.replacements_left
    if fired.over_budget:
        # No rescale is left; replacements may be counted apart.
        limited = _CHANGING_THE_CLUSTER if left is None else _CHANGING_THE_SIZE
        answer = answer.without(limited, why=_BUDGET_USED_UP)
    return answer if left is None else answer.with_replacements(left)


def call_last_hook(fired: FiredRule, action: Call, *, size: int) -> HookAnswer:
    """Calls the hook of a rule that fired in the last step of a job: only a checkpoint and values are left to it."""
    return call_hook(fired, action, size=size).without(_OF_LATER_STEPS, why=_OVER)


def requests_of(
    fired: Iterable[FiredRule],
    view: View,
    *,
    call: Callable[[FiredRule, Call], Iterable[HookRequest]],
    speeds: Callable[[], Mapping[int, float]] = dict,
) -> BarrierRequests:
    """The requests of rules that fired to a barrier of ``view``, in the order of the policies.

    Args:
        fired: The rules; those that act.
        view: The view whose ranks the masks name.
        call: Calls a hook, and gives what it asks for.
        speeds: Gives the speeds of peers by id, where they are measured. Where the budget allows fewer replacements
            than a rule asks for, the slowest peers are replaced.
    """
    asked = BarrierRequests()
    for one in fired:
        if isinstance(one.action, Call):
            for request in call(one, one.action):
                asked = _with_hook(asked, one, request, view)
        else:
            asked = _with_rule(asked, within_replacements(one, view, speeds), view)
    return asked


def within_replacements(fired: FiredRule, view: View, speeds: Callable[[], Mapping[int, float]]) -> FiredRule:
    """A rule with as many peers as its budget lets it replace: slow ones first, slowest first, then by rank."""
    left = fired.replacements_left
    if left is None or len(fired.ranks) <= left:
        return fired
    known = speeds()
    slow = [view.rank_of(peer) for peer in view.leave_order(known) if is_slow(peer, known)]
    order = sorted(fired.ranks, key=lambda rank: (slow.index(rank) if rank in slow else len(slow), rank))
    return replace(fired, ranks=tuple(sorted(order[:left])))


def _with_rule(asked: BarrierRequests, fired: FiredRule, view: View) -> BarrierRequests:
    action = fired.action
    if isinstance(action, Rescale):
        request = _request(fired, round(fired.value), keep=action.keep)
        return _and_rescale(asked, replace(request, max_global_batch=action.max_global_batch))
    if isinstance(action, Evict):
        return _and_rescale(asked, _leave_request(fired, view, fired.ranks, when="now"))
    if isinstance(action, Replace):
        return _and_rescale(asked, _leave_request(fired, view, fired.ranks, when="replaced"))
    if isinstance(action, Checkpoint):
        return replace(asked, checkpoints=(*asked.checkpoints, fired.rule))
    return replace(asked, settings=(*asked.settings, setting_change_of(fired)))


def _with_hook(asked: BarrierRequests, fired: FiredRule, request: HookRequest, view: View) -> BarrierRequests:
    """What a hook asks for is asked for as by a rule of its name."""
    match request.kind:
        case "rescale":
            return _and_rescale(asked, _request(fired, request.value, keep=request.keep))
        case "evict":
            return _and_rescale(asked, _leave_request(fired, view, request.ranks, when="now"))
        case "replace":
            return _and_rescale(asked, _leave_request(fired, view, request.ranks, when="replaced"))
        case "checkpoint":
            return replace(asked, checkpoints=(*asked.checkpoints, fired.rule))
        case "set_value":  # it is the program's, and no barrier's
            return asked
    kind = _SETTINGS[request.kind]
    change = SettingChange(kind, request.value, fired.rule, fired.step, fired.inputs, request.ramp_length, request.unit)
    return replace(asked, settings=(*asked.settings, change))


def _and_rescale(asked: BarrierRequests, request: RescaleRequest | None) -> BarrierRequests:
    # A mask may name ranks that have left since.
    return asked if request is None else replace(asked, rescale=(*asked.rescale, request))


def setting_change_of(fired: FiredRule) -> SettingChange:
    """The setting that a rule that fired asks for."""
    name, step, action = fired.rule, fired.step, fired.action
    if isinstance(action, SetLearningRate):
        return SettingChange("learning_rate", fired.value, name, step, fired.inputs, action.ramp_length, action.unit)
    if isinstance(action, SetGlobalBatchSize):
        return SettingChange("global_batch_size", fired.value, name, step, fired.inputs)
    return SettingChange("stop", fired.value, name, step, fired.inputs)


def _leave_request(fired: FiredRule, view: View, ranks: Iterable[int], *, when: When) -> RescaleRequest | None:
    """The peers of these ranks, by id, for a rule knows ranks; ``None`` where it names none."""
    peers = tuple(view.ids[rank] for rank in ranks if rank < view.size)
    if not peers:
        return None
    return _request(fired, view.size - len(peers) if when == "now" else view.size, leave=Leave(peers, when))


def _request(
    fired: FiredRule, size: int, *, keep: Keep = "local_batch_size", leave: Leave | None = None
) -> RescaleRequest:
    return RescaleRequest(size, keep, fired.rule, fired.step, fired.inputs, fired.won, fired.lost, leave)
