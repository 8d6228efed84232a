"""The first run of a compiled step: on a copy of the state, so that joining costs the others nothing.

Memory, kernels and libraries are touched once before the peer says that it is ready; then every variable that the step
knows of, the user's own included, is what it was before. Nothing else may tell of that run either: nothing is printed
or summarised, no Python of the program's is called.

It is apart from the step's runner, which decides when a step runs: this one knows what TensorFlow holds of a step.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from kungfu.runtime.api import Attachment
from kungfu.training.graph.step import WHOLE, CompiledStep, batched
from kungfu.training.tracing.effects import Effects, answered_by_zeros
from kungfu.training.tracing.handles import read_handles, write_handles


def warm_up(compiled: CompiledStep, attachment: Attachment, tensors: Sequence[Any], *, effects: Effects) -> None:
    """Runs the step once, alone, and gives every variable back the memory that it had.

    Nothing is copied but what the step writes: a variable's first write goes to new memory while the old one is held
    here. So a state that is not trained costs nothing, and a trained one is there twice until this returns.
    A step that does what can neither be left out nor undone (takes from an iterator, writes to a file) is not run.

    Args:
        compiled: The step.
        attachment: Of this peer; it is opened for one peer meanwhile.
        tensors: The batch of the first call.
        effects: Those of the user's function.

    Raises:
        OpError: The step failed, and not for the zeros that a call into Python was answered by.
    """
    if effects.others:
        print(
            f"kungfu: the step is not tried out before its first time, since {', '.join(effects.others)} would act "
            "twice: the other peers wait while its kernels are made",
            file=sys.stderr,
        )
        return
    attachment.open(rank=0, size=1, job="warm-up", view=0, deadline_s=60.0, secret=b"alone", addresses=[""])
    handles = compiled.handles
    before = read_handles(handles)
    try:
        _run(compiled, tensors, effects)
    finally:
        write_handles(handles, before)
        attachment.close()


def _run(compiled: CompiledStep, tensors: Sequence[Any], effects: Effects) -> None:
    batch = batched(tensors)
    try:
        with answered_by_zeros(effects, samples=1 if batch is None else int(batch.shape[0])):
            compiled(WHOLE, tensors)
    except tf.errors.OpError:
        if not effects.gives_values:
            raise
        # Zeros do not stand for everything: what the step could not do with them it does when it is its turn.
