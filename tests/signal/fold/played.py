"""Folds at work: their values step by step, in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kungfu import control
from kungfu.compiler import compile_policies
from kungfu.compiler.replay import Replay
from kungfu.policy_definition import policy
from kungfu.signal import Signal

LIMITS = {"min_size": 1, "max_size": 8, "refused_size": 0, "pending": False}


def played(make: Callable[[Signal], Signal], losses: Sequence[float], *, first_step: int = 1) -> list[float]:
    """The value of a fold of the mean loss, step by step, alone."""

    @policy
    def watching(training: Any) -> Any:
        return control.always().call(lambda control, value: None, make(training.mean_loss))

    replay = Replay(compile_policies([watching()]), size=1)
    steps = enumerate(losses, start=first_step)
    return [float(replay.step([{}], {**LIMITS, "mean_loss": x, "step": n}).inputs[0]) for n, x in steps]


def rescaled(make: Callable[[Any], Signal], *, sizes: Sequence[int], losses: Sequence[float]) -> list[float]:
    """The value of a fold while the cluster changes its size."""

    @policy
    def watching(training: Any) -> Any:
        return control.always().call(lambda control, value: None, make(training))

    replay = Replay(compile_policies([watching()]), size=sizes[0])
    seen = []
    for step, (size, loss) in enumerate(zip(sizes, losses, strict=True), start=1):
        if size != replay.size:
            replay.rescale(size)
        seen.append(float(replay.step([{}] * size, {**LIMITS, "mean_loss": loss, "step": step}).inputs[0]))
    return seen
