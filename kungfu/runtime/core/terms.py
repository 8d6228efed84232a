"""The terms of a view beside its members: batch sizes, the change under way, the ramp of the learning rate, the end.

A barrier changes them: by what happens to the membership (``core.barrier``), and by the settings that rules ask for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

__all__ = ["Keep", "Ramp", "RampUnit", "RunPosition", "SettingChange", "SettingKind", "Terms", "apply_settings"]

Keep = Literal["local_batch_size", "global_batch_size"]
RampUnit = Literal["steps", "samples"]


@dataclass(frozen=True)
class Ramp:
    """From ``start`` to ``target``, beginning after ``since`` steps (or samples) and lasting ``over`` of them.

    ``lr_t = start + (t - since) / over * (target - start)`` for ``since <= t < since + over``, and ``target`` from
    there on. (The paper's algorithm ends the ramp at ``over``, its equation at ``since + over``, as here.)
    """

    start: float
    target: float
    since: int
    over: float
    unit: RampUnit = "steps"

    def at(self, done: int) -> float:
        """The rate of the step before which ``done`` steps (or samples) are done.

        >>> [Ramp(0.1, 0.2, since=40, over=4).at(t) for t in (40, 41, 42, 44, 99)]
        [0.1, 0.125, 0.15000000000000002, 0.2, 0.2]
        """
        if done >= self.since + self.over:
            return self.target
        return self.start + (done - self.since) / self.over * (self.target - self.start)


@dataclass(frozen=True)
class Terms:
    """What the peers of a view agree on besides its members; batch sizes in samples.

    ``leaving`` are the ids of those who leave when the peers under way have come, ``departing`` of those who stay only
    until these hold the state: they leave at the next barrier.
    """

    global_batch_size: int = 0
    batch_per_peer: float = 0.0
    target_size: int = 0
    refused_size: int = 0
    keep: Keep = "local_batch_size"
    ramp: Ramp | None = None
    stopped: bool = False
    leaving: tuple[int, ...] = ()
    departing: tuple[int, ...] = ()


SettingKind = Literal["global_batch_size", "learning_rate", "stop"]


@dataclass(frozen=True)
class SettingChange:
    """A rule that fired and asks for another setting; ``over`` is the length of a learning rate's ramp."""

    kind: SettingKind
    value: float
    rule: str
    step: int
    saw: Mapping[str, float] = field(default_factory=dict)
    over: float = 0.0
    unit: RampUnit = "steps"


@dataclass(frozen=True)
class RunPosition:
    """Where the job stands at a barrier: steps and samples done, peers, samples of an epoch (0: unknown), the rate."""

    steps: int
    samples: int
    size: int
    epoch_samples: int
    learning_rate: float


def apply_settings(terms: Terms, settings: Sequence[SettingChange], now: RunPosition) -> Terms:
    """The terms with these settings in force, the later ones over the earlier.

    A batch is held between one sample a peer and the samples of an epoch. A learning rate begins to move at the next
    step, from where it is.

    >>> now = RunPosition(steps=40, samples=4000, size=4, epoch_samples=1000, learning_rate=0.1)
    >>> apply_settings(Terms(64, 16.0), [SettingChange("global_batch_size", 128.4, "rule", 39)], now).batch_per_peer
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
