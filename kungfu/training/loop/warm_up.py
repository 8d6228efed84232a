"""Traces the step before its first call, and runs it once on a copy of the state, so that no other peers need to wait.

The run allocates memory, and loads kernels and libraries, before the peer reports itself ready. Afterwards every
variable known to the step, including the user's variables, has its old value. The run has no other effects: it prints
and summarises nothing, and calls no Python of the program.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from kungfu.runtime.api import Attachment
from kungfu.training.graph.step import WHOLE, BatchRollback, CompiledStep, StepParts, compile_step, sample_count
from kungfu.training.graph.tracing.effects import Effects, answered_by_zeros, effects_of
from kungfu.training.graph.variable_io import read_handles, write_handles
from kungfu.training.loop.between_steps import random_streams
from kungfu.training.run import Run


def prepare_step(
    run: Run, function: Callable[..., Any], tensors: list[Any], structure: Any, *, hold: Callable[[], int]
) -> CompiledStep:
    """Traces the step of a function and, in a job, warms it up, on the initial state of this run.

    Args:
        tensors: The batch of the first call.
        structure: The nest of positional and named arguments that has these tensors as its leaves.
        hold: Runs the barrier, and returns the outcome of the step; called inside the graph.

    Raises:
        UsageError: The function averages more or less often than declared, or the checkpoint does not fit.
    """
    run.checkpoints.begin(run.declared.data)
    # In a job the step draws from this peer's random streams; alone, it draws the same numbers as without kungfu.
    if run.trace.gate is not None:
        run.trace.random_streams = random_streams(run)
    compiled = compiled_step(run, function, tensors, structure, hold=hold)
    # In a job other peers would wait while the first step loads its kernels.
    if run.trace.gate is not None:
        effects = effects_of(run.trace.graph, gate=run.trace.gate)
        with run.graph_state.metrics.fed.lock:  # else the restore would discard a number that another thread feeds
            warm_up(compiled, run.attachment, tensors, effects=effects)
    # The batch size from the loader if there is one, else the samples of this peer's batch.
    batch = run.declared.batch
    run.graph_state.progress.batch.assign(sample_count(tensors) if batch is None else batch)
    return compiled


def compiled_step(
    run: Run, function: Callable[..., Any], tensors: list[Any], structure: Any, *, hold: Callable[[], int]
) -> CompiledStep:
    """Traces the step, and returns the compiled step; for the arguments see `prepare_step`."""
    graph_state, classes = run.graph_state, run.checkpoints.state().classes
    kept = [*classes.shared.values(), *graph_state.variables(), *graph_state.in_share()]
    handles = [*graph_state.handles(), *run.state.handles()]
    run.memory.knows(classes.all().values())  # includes registered variables
    accumulation = run.declared.accumulation
    if run.models is not None:
        # The policies' folds are equal on all peers, which evaluate the policies alike.
        run.models.equal = [*run.models.equal, *(one.variable for one in run.program.variables)]
        run.models.shared = list(classes.shared.values())
    rollback = BatchRollback(kept)
    parts = StepParts(graph_state, run.trace, rollback, handles, hold, run.rate, accumulation, run.memory, run.models)
    return compile_step(function, parts, tensors, structure)


def warm_up(compiled: CompiledStep, attachment: Attachment, tensors: Sequence[Any], *, effects: Effects) -> None:
    """Runs the step once, without other peers, and restores the previous value of every variable.

    Only variables that the step writes are copied: a variable's first write goes to new memory while the old memory is
    held here. So state that is not trained costs nothing, and trained state exists twice until this function returns.
    A step is not run if it has an effect that can be neither omitted nor undone, such as writing a file.

    Args:
        attachment: The attachment of this peer, which this function closes.
        effects: The effects of the user's function.

    Raises:
        OpError: The step failed for a reason other than the zeros returned by calls into Python.
    """
    if effects.others:
        print(
            f"kungfu: the step is not tried out before its first time, since {', '.join(effects.others)} would act "
            "twice: the other peers wait while its kernels are made",
            file=sys.stderr,
        )
        return
    attachment.close()  # until this peer joins, the all-reduce is the identity
    handles = compiled.handles
    before = read_handles(handles)
    try:
        with answered_by_zeros(effects, samples=sample_count(tensors)):
            compiled(WHOLE, tensors)
    except tf.errors.OpError:
        if not effects.gives_values:
            raise
        # Zeros may be invalid results of a call into Python; work that failed on them is done in the first real step.
    finally:
        write_handles(handles, before)
