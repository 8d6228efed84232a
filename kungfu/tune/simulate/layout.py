"""How a stage's GPUs are shared among its trials, and how many instances hold them."""

from __future__ import annotations

from dataclasses import dataclass

from kungfu.tune.model.cloud import Packing
from kungfu.tune.model.experiment import Stage

__all__ = ["Share", "instances_for", "share"]


@dataclass(frozen=True)
class Share:
    """``at_once`` trials train side by side on ``gpus_per_trial`` GPUs each; the others queue behind them."""

    gpus_per_trial: int
    at_once: int


def share(stage: Stage, *, gpus: int) -> Share:
    """A fair share: ``floor(gpus / trials)`` each, or one GPU each for as many as there are GPUs.

    What does not divide stays idle.

    >>> share(Stage(trials=3, iterations=9), gpus=14), share(Stage(trials=32, iterations=1), gpus=24)
    (Share(gpus_per_trial=4, at_once=3), Share(gpus_per_trial=1, at_once=24))
    """
    if gpus >= stage.trials:
        return Share(gpus // stage.trials, stage.trials)
    return Share(1, gpus)


def instances_for(stage: Stage, *, gpus: int, node: int, packing: Packing) -> int:
    """How many instances of ``node`` GPUs hold a stage of ``gpus`` GPUs.

    ``counted``: ``ceil(gpus / node)``, as the paper counts. ``placed``: enough that each trial below ``node`` GPUs
    stays on one instance and each larger one has whole instances.

    >>> [instances_for(Stage(10, 3), gpus=30, node=4, packing=packing) for packing in ("counted", "placed")]
    [8, 10]
    """
    if packing == "counted":
        return -(-gpus // node)
    shared = share(stage, gpus=gpus)
    if shared.gpus_per_trial < node:
        return -(-shared.at_once // (node // shared.gpus_per_trial))
    return shared.at_once * -(-shared.gpus_per_trial // node)
