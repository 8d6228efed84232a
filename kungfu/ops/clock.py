"""The clock of the job."""

from __future__ import annotations

from kungfu.ops.collectives import all_reduce
from kungfu.ops.elementwise import maximum
from kungfu.signal import Signal, Source, fold, where


def job_seconds() -> Signal:
    """Seconds since the job's first step, as rank 0 counts them: float32, agreed, never going back.

    A peer that becomes rank 0 started its clock later than the one before it; the difference is added.

    Cost:
        One float on the gradient all-reduce, two floats of state, no message.

    On rescale:
        The count continues.
    """
    clock = all_reduce(where(Source("rank") == 0, Source("clock_seconds"), 0.0), "sum")

    def update(state: tuple[Signal, ...], now: Signal) -> tuple[Signal, ...]:
        base, before = state
        return base + maximum(before - now, 0.0), now

    return fold(update, (0.0, 0.0), clock, output=lambda state: state[0] + state[1]).named("job_seconds")
