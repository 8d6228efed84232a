"""A truth value of the step before, the same on every peer to the last bit."""

from __future__ import annotations

from kungfu.errors import PolicyError
from kungfu.signal.fold.fold import fold, labelled
from kungfu.signal.node import Collective, Signal, Source, where
from kungfu.signal.operation import SignalType


def synchronized(predicate: Signal) -> Collective:
    """The value of an agreed bool signal in the previous step, by rank 0's arithmetic: bool, agreed, and a gate.

    Agreed numbers may differ in their last bit between processors, so a comparison of them could come out differently
    on two peers, and a peer that took the other branch around a message would leave the others waiting. Carried by the
    message of the next step, rank 0's answer is everybody's:
    ``kf.control.always().when(kf.ops.synchronized(noise > 100))`` gates what only that rule needs. False in the
    first step.

    Args:
        predicate: An agreed bool signal.

    Raises:
        PolicyError: The signal is local, or not bool.

    Cost:
        One float on the gradient all-reduce, one truth value of state.

    On rescale:
        The value is kept.

    >>> from kungfu.signal import TrainingSignals, is_gate
    >>> is_gate(synchronized(TrainingSignals().mean_loss > 1))
    True
    """
    if predicate.type != SignalType("bool") or predicate.placement == "local":
        raise PolicyError(
            f"synchronized({predicate!r}): takes an agreed bool signal, as in kf.ops.synchronized(mean_loss > 1)"
        )
    before = labelled(fold(lambda _, now: now, False, predicate).before_step(), label="held")
    own = where(before, 1.0, 0.0)
    return Collective("carry", where(Source("rank") == 0, own, 0.0))
