"""Settings that a barrier may change beside the membership: the batch, the learning rate, and whether to go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from kungfu.runtime.core.decide import Terms
from kungfu.runtime.core.ramp import Ramp, RampUnit

__all__ = ["Moment", "Setting", "SettingKind", "settled"]

SettingKind = Literal["global_batch_size", "learning_rate", "stop"]


@dataclass(frozen=True)
class Setting:
    """A rule that fired and asks for another setting; ``over`` is the length of a learning rate's ramp."""

    kind: SettingKind
    value: float
    rule: str
    step: int
    saw: Mapping[str, float] = field(default_factory=dict)
    over: float = 0.0
    unit: RampUnit = "steps"


@dataclass(frozen=True)
class Moment:
    """Where the job stands at a barrier: steps and samples done, peers, samples of an epoch (0: unknown), the rate."""

    steps: int
    samples: int
    size: int
    epoch_samples: int
    learning_rate: float


def settled(terms: Terms, settings: Sequence[Setting], now: Moment) -> Terms:
    """The terms with these settings in force, the later ones over the earlier.

    A batch is held between one sample a peer and the samples of an epoch. A learning rate begins to move at the next
    step, from where it is.

    >>> now = Moment(steps=40, samples=4000, size=4, epoch_samples=1000, learning_rate=0.1)
    >>> settled(Terms(64, 16.0), [Setting("global_batch_size", 128.4, "rule", 39)], now).batch_per_peer
    32.0
    """
    for setting in settings:
        if setting.kind == "global_batch_size":
            most = now.epoch_samples or round(setting.value)
            whole = max(now.size, min(round(setting.value), most))
            terms = replace(terms, global_batch_size=whole, batch_per_peer=whole / now.size)
        elif setting.kind == "learning_rate":
            since = now.steps if setting.unit == "steps" else now.samples
            terms = replace(terms, ramp=Ramp(now.learning_rate, setting.value, since, setting.over, setting.unit))
        else:
            terms = replace(terms, stopped=True)
    return terms
