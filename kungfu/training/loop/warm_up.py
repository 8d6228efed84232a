"""The step before its first call: traced, and run once on a copy of the state, so that joining costs others nothing.

Memory, kernels and libraries are touched once before the peer says that it is ready; then every variable that the step
knows of, the user's own included, is what it was before. That run leaves no other trace: nothing is printed
or summarised, no Python of the program's is called.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from kungfu.runtime.api import Attachment
from kungfu.training.graph.step import WHOLE, CompiledStep, StepParts, batched, compile_step
from kungfu.training.graph.tracing.effects import Effects, answered_by_zeros, effects_of
from kungfu.training.graph.tracing.rollback import BatchRollback
from kungfu.training.graph.variable_io import read_handles, write_handles
from kungfu.training.loop.between_steps import random_streams
from kungfu.training.run import Run


def prepare_step(
    run: Run, function: Callable[..., Any], tensors: list[Any], structure: Any, *, hold: Callable[[], int]
) -> CompiledStep:
    """The step of a function, traced, and in a job warmed up, on the state with which this run begins.

    Args:
        run: What it is a step of; nothing more can be registered from here on.
        function: The program's.
        tensors: The batch of its first call.
        structure: The positional and the named arguments that these are the tensors of.
        hold: Holds the barrier, and gives what the step came to; called inside the graph.

    Raises:
        UsageError: The function does not average as often as it says, or the checkpoint does not fit.
    """
    run.checkpoints.begin(run.declared.data)
    # In a job the step draws random numbers of this peer's; alone, those that it would draw without kungfu.
    if run.trace.gate is not None:
        run.trace.draw_from(random_streams(run))
    compiled = compiled_step(run, function, tensors, structure, hold=hold)
    # In a job others would wait for the first step's kernels.
    if run.trace.gate is not None:
        effects = effects_of(run.trace.graph, gate=run.trace.gate)
        with run.graph_state.metrics.fed.lock:  # what another thread feeds is kept from being undone
            warm_up(compiled, run.attachment, tensors, effects=effects)
    # The samples of a step as the loader says, else those that this peer was given.
    batch = run.declared.batch
    run.graph_state.progress.batch.assign(_samples(tensors) if batch is None else batch)
    return compiled


def compiled_step(
    run: Run, function: Callable[..., Any], tensors: list[Any], structure: Any, *, hold: Callable[[], int]
) -> CompiledStep:
    """The step, traced; see `prepare_step`."""
    graph_state, classes = run.graph_state, run.checkpoints.state().classes
    kept = [*classes.shared.values(), *graph_state.variables(), *graph_state.in_share()]
    handles = [*graph_state.handles(), *run.state.handles()]
    run.memory.knows(classes.all().values())  # what is registered goes along, too
    accumulation = run.declared.accumulation
    parts = StepParts(graph_state, run.trace, BatchRollback(kept), handles, hold, run.rate, accumulation, run.memory)
    return compile_step(function, parts, tensors, structure)


def _samples(tensors: Sequence[Any]) -> int:
    batch = batched(tensors)
    return 1 if batch is None else int(batch.shape[0])


def warm_up(compiled: CompiledStep, attachment: Attachment, tensors: Sequence[Any], *, effects: Effects) -> None:
    """Runs the step once, alone, and gives every variable back the memory that it had.

    Nothing is copied but what the step writes: a variable's first write goes to new memory while the old one is held
    here. So a state that is not trained costs nothing, and a trained one is there twice until this returns.
    A step that does what can neither be left out nor undone (takes from an iterator, writes to a file) is not run.

    Args:
        compiled: The step.
        attachment: The attachment of this peer; it is opened for one peer meanwhile.
        tensors: The batch of the first call.
        effects: The effects of the user's function.

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
    try:
        with answered_by_zeros(effects, samples=_samples(tensors)):
            compiled(WHOLE, tensors)
    except tf.errors.OpError:
        if not effects.gives_values:
            raise
        # Zeros do not stand for everything: what the step could not do with them it does when it is its turn.
