"""The requests of fired rules and of the hooks that they call, for real and simulated peers alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kungfu.compiler.fired import FiredRule
from kungfu.control import (
    Call,
    Checkpoint,
    Evict,
    Replace,
    Rescale,
    Restore,
    SetGlobalBatchSize,
    SetLearningRate,
    SetVariable,
    Synchronise,
)
from kungfu.control.hook import Control, HookRequest, HookRequestKind
from kungfu.errors import PolicyError, UsageError
from kungfu.policy_definition.policy import in_brackets
from kungfu.runtime.core import request
from kungfu.runtime.core.terms import Terms
from kungfu.runtime.core.view import View, is_slow
from kungfu.runtime.settings import Limits
from kungfu.signal.source_location import location_in_traceback

_CHANGING_THE_SIZE: tuple[HookRequestKind, ...] = ("rescale", "evict")
_REPLACING: tuple[HookRequestKind, ...] = ("replace",)
_CHANGING_THE_CLUSTER = (*_CHANGING_THE_SIZE, *_REPLACING)
_OF_LATER_STEPS: tuple[HookRequestKind, ...] = (
    *_CHANGING_THE_CLUSTER,
    "set_global_batch_size",
    "set_learning_rate",
    "synchronise",
    "stop",
)
_BUDGET_USED_UP, _OVER = "its budget of rescales is used up", "training is over"
_REPLACEMENTS_USED_UP = "its budget of replacements is used up"


@dataclass(frozen=True)
class HookAnswer:
    """The requests that a hook made when it was called."""

    requests: tuple[HookRequest, ...]
    asked: int | None  # the requested size, granted by the budget or not; ``None`` if no size was requested
    ignored: str = ""  # the reason why some requests are ignored; empty if none are

    def without(self, kinds: Collection[HookRequestKind], *, why: str) -> HookAnswer:
        """Removes the hook's requests of these `kinds`; if there were any, adds `why` to the reasons in `ignored`."""
        rest = tuple(one for one in self.requests if one.kind not in kinds)
        if len(rest) == len(self.requests):
            return self
        return HookAnswer(rest, self.asked, "; ".join(filter(None, (self.ignored, why))))

    def with_replacements(self, left: int) -> HookAnswer:
        """Limits the replacements that the hook requests to the first ``left`` peers; `ignored` states the limit."""
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

    Every peer calls the hook with the same values.

    Raises:
        PolicyError: The hook made an invalid request; the error names the rule and the line.

    Reference:
        Listing 1 of the KungFu paper.
    """
    # The inputs of a rule with a hook begin with the signals of the call, in order.
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
        # The budget of rescales is used up; replacements may have a separate budget.
        limited = _CHANGING_THE_CLUSTER if left is None else _CHANGING_THE_SIZE
        answer = answer.without(limited, why=_BUDGET_USED_UP)
    return answer if left is None else answer.with_replacements(left)


def call_last_hook(fired: FiredRule, action: Call, *, size: int) -> HookAnswer:
    """Calls the hook of a rule that fired in the last step of a job; keeps requests about checkpoints and values."""
    return call_hook(fired, action, size=size).without(_OF_LATER_STEPS, why=_OVER)


def refuse_interval(answer: HookAnswer, *, rule: str, averages_models: bool) -> None:
    """Raises ``UsageError`` for a hook's request for averages of models in a run that averages gradients."""
    asked = next((one for one in answer.requests if one.kind == "synchronise"), None)
    if asked is not None and not averages_models:
        raise UsageError(
            f'hook {rule!r} called control.{asked}, but this run is attached with sync="gradients": attach with '
            "sync=kf.control.average_models(every=1), which the hook then changes"
        )


def requests_of(
    fired: Iterable[FiredRule],
    view: View,
    *,
    call: Callable[[FiredRule, Call], Iterable[HookRequest]],
    speeds: Callable[[], Mapping[int, float]] = dict,
) -> Iterator[request.Asked]:
    """Yields, for a barrier of ``view``, the requests of the rules that fired, in the order of the policies.

    Args:
        fired: The fired rules, without shadow rules.
        view: The view to which the ranks in the masks belong.
        speeds: Returns the speeds of peers by id, if measured. If the budget allows fewer replacements
            than a rule requests, the slowest peers are replaced.
    """
    for one in fired:
        if isinstance(one.action, Call):
            requests = [_of_hook(made, view) for made in call(one, one.action)]
        else:
            requests = [_of_rule(within_replacements(one, view, speeds), view)]
        # A mask may name ranks that have left in the meantime.
        yield from (asked_by(one, what) for what in requests if what is not None)


def rescale_sources(
    sizes: tuple[int, int], terms: tuple[Terms, Terms], *, limits: Limits, step: int, epoch_samples: int
) -> dict[str, float]:
    """The signals that rules on a rescale may read, as values by name; the learning rate is added later.

    ``sizes`` and ``terms`` are pairs: before and after the rescale. ``epoch_samples`` is 0 without a loader."""
    (previous_size, size), (before, decided) = sizes, terms
    base_batch, base_size = before.base(previous_size)
    return {
        "size": size,
        "previous_size": previous_size,
        "step": step,
        "global_batch_size": decided.global_batch_size,
        "previous_global_batch_size": before.global_batch_size,
        "base_size": base_size,
        "base_global_batch_size": base_batch,
        "min_size": limits.minimum,
        "max_size": limits.maximum,
        "epoch_samples": epoch_samples,
    }


def asked_by(fired: FiredRule, what: request.AnyRequest | None = None) -> request.Asked:
    """The request ``what`` with the rule that made it; by default, ``what`` is the setting that the rule requests."""
    what = _setting(fired) if what is None else what
    return request.Asked(what, fired.rule, fired.step, fired.inputs, fired.won, fired.lost)


def within_replacements(fired: FiredRule, view: View, speeds: Callable[[], Mapping[int, float]]) -> FiredRule:
    """Limits a fired rule to the replacements left in its budget: slow peers (slowest first), then the lowest ranks."""
    left = fired.replacements_left
    if left is None or len(fired.ranks) <= left:
        return fired
    known = speeds()
    slow = [view.rank_of(peer) for peer in view.leave_order(known) if is_slow(peer, known)]
    order = sorted(fired.ranks, key=lambda rank: (slow.index(rank) if rank in slow else len(slow), rank))
    return replace(fired, ranks=tuple(sorted(order[:left])))


def _of_rule(fired: FiredRule, view: View) -> request.AnyRequest | None:
    match fired.action:
        case Rescale(keep=keep, max_global_batch=most, ramp_length=length, unit=unit):
            samples, rate = (fired.inputs.get(name, math.nan) for name in ("target_batch", "target_rate"))
            return request.Resize(round(fired.value), keep, most, **_with_peers(samples, rate, length, unit))
        case Evict():
            return _leave(view, fired.ranks, when="now")
        case Replace():
            return _leave(view, fired.ranks, when="replaced")
        case Checkpoint(name):
            return request.SaveCheckpoint(name)
        case Restore(name):
            return request.RestoreCheckpoint(name)
    return _setting(fired)


def _with_peers(samples: float, rate: float, ramp_length: float, unit: request.RampUnit) -> dict[str, Any]:
    """The fields of a `Resize` for the batch and the rate that come with the peers; a NaN requests nothing."""
    batch = None if math.isnan(samples) else request.SetBatch(samples)
    return {"batch": batch, "rate": None if math.isnan(rate) else request.SetRate(rate, ramp_length, unit)}


def _setting(fired: FiredRule) -> request.Request:
    """The setting requested by a rule that fired."""
    match fired.action:
        case SetLearningRate(ramp_length=length, unit=unit):
            return request.SetRate(fired.value, length, unit)
        case SetGlobalBatchSize():
            return request.SetBatch(fired.value)
        case SetVariable(name=name):
            return request.SetNumber(name, fired.value)
        case Synchronise():
            return request.SetAverageInterval(fired.value)
    return request.StopTraining()


def _of_hook(made: HookRequest, view: View) -> request.AnyRequest | None:
    match made.kind:
        case "rescale":
            beside = _with_peers(made.batch, made.rate, made.ramp_length, made.unit)
            return request.Resize(made.value, made.keep, **beside)
        case "evict":
            return _leave(view, made.ranks, when="now")
        case "replace":
            return _leave(view, made.ranks, when="replaced")
        case "checkpoint":
            return request.SaveCheckpoint(made.name)
        case "restore":
            return request.RestoreCheckpoint(made.name)
        case "set_value":
            return request.SetValue(made.name, made.value)
        case "set_global_batch_size":
            return request.SetBatch(made.value)
        case "set_learning_rate":
            return request.SetRate(made.value, made.ramp_length, made.unit)
        case "synchronise":
            return request.SetAverageInterval(made.value)
        case "stop":
            return request.StopTraining()


def _leave(view: View, ranks: Iterable[int], *, when: request.When) -> request.Leave | None:
    """The request that the peers of these ranks leave, naming their ids; ``None`` if the view has no such ranks."""
    peers = tuple(view.ids[rank] for rank in ranks if rank < view.size)
    size = view.size - len(peers) if when == "now" else view.size
    return request.Leave(peers, when, size, "local_batch_size") if peers else None
