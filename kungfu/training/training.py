"""The object that ``attach`` gives: the step, the average and the batches of one training run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any, Final, NoReturn

import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.runtime.deciding.decide import Terms
from kungfu.training.barrier import Barrier
from kungfu.training.batches import DataSource, Stamps, batches, checked_source
from kungfu.training.failures import translated
from kungfu.training.graph.average import Averaging, average
from kungfu.training.graph.step import (
    BARRIER_FAILED,
    BARRIER_HELD,
    STALE_BATCH,
    CompiledStep,
    StepParts,
    as_tensors,
    batched,
)
from kungfu.training.graph.warm_up import warmed_up
from kungfu.training.recorder import Recorder
from kungfu.training.requests import fired_rules

__all__ = ["SKIPPED", "Training"]


class _Skipped:
    """What a step gives whose batch was not trained on: it was cut for another view or position."""

    def __repr__(self) -> str:
        return "training.SKIPPED"


SKIPPED: Final = _Skipped()

# A stale batch is re-cut and the next one fits; so many in a row mean that the program feeds old batches.
_STALE_IN_A_ROW = 1000


@dataclass
class _Progress:
    """What Python remembers of the loop. ``compiled`` is set by the first call of the step."""

    compiled: CompiledStep | None = None
    source: DataSource | None = None
    calls: int = 0
    stale: int = 0
    averages: int = 0
    failure: BaseException | None = None
    finished: bool = False


class Training:
    """One training run, attached to its model and optimizer; made by ``kungfu.attach``."""

    SKIPPED: Final = SKIPPED

    def __init__(self, averaging: Averaging, barrier: Barrier, recorder: Recorder | None = None) -> None:
        self._averaging, self._barrier = averaging, barrier
        self._equipment = barrier.equipment
        self._recorder = recorder
        self._stamps = Stamps()
        self._marked: str | None = None
        self._progress = _Progress()

    @property
    def rank(self) -> int | None:
        """This peer's rank in the view, 0..size-1; ``None`` once a decision let it go."""
        return self._barrier.rank

    @property
    def peer(self) -> int:
        """This peer's number in the job, given once and never again; 0 for a program that runs alone."""
        return self._averaging.peer

    @property
    def size(self) -> int:
        """The number of peers in the view."""
        return self._barrier.size

    @property
    def left(self) -> bool:
        """True once a decision let this peer go: the others train on, its loop has ended."""
        return self._barrier.rank is None

    @property
    def stopped(self) -> bool:
        """True once a policy has ended training on all peers."""
        return self._barrier.terms.stopped

    def step(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Makes a training step of a function of one batch: traced once, with rules and barrier behind it.

        The function computes gradients, passes them through ``average`` exactly once and applies them. It may return
        tensors, or nothing. The first call traces it and warms it up on a copy of the state, then waits for the other
        peers. A call whose batch was cut for another view returns ``training.SKIPPED``; the next batch fits.

        Raises ``UsageError`` for what cannot be traced, ``PeerFailure`` and ``DeadlineExceeded`` naming who failed.
        """
        if self._marked is not None:
            raise UsageError(
                f"@training.step marks {function.__name__!r} after {self._marked!r}: a run has one step, since every "
                "call of it counts and may end in a barrier; put both into one function"
            )
        self._marked = function.__name__

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._call(function, args, kwargs)

        return update_wrapper(call, function)

    @tf.autograph.experimental.do_not_convert
    def average(self, gradients: Any, *, loss: Any) -> Any:
        """The mean over all samples of a step of gradients that each peer took over its own: the one collective.

        Gradients (any nest; ``None`` stays ``None``; sparse ones are made dense below 256 MiB) are weighted by the
        peer's share of the step's samples, so uneven slices give the gradient of the whole batch. ``loss`` is this
        peer's mean loss, a scalar. Call it inside a function marked ``@training.step``, once.

        Gives the same structure, equal on all peers. Cost: one message, on which the policy's signals ride.
        Raises ``UsageError`` if there is no gradient at all.
        """
        self._progress.averages += 1
        return average(self._averaging, gradients, loss=loss)

    def batches(self, arrays: Any, *, batch_size: int, epochs: int, seed: int) -> Iterator[Any]:
        """Walks arrays in batches: this peer's slice of each step, every sample exactly once an epoch.

        ``arrays`` is a nest of arrays with one entry a sample; ``batch_size`` is that of the whole job at its start, in
        samples; each epoch has its own order by ``seed``. All peers follow one agreed position, so nothing is lost or
        repeated when peers join or leave. A joiner runs the program from its top: use one such loop in a program.

        Raises ``UsageError`` for data or numbers that do not fit, and for a batch that the step was not called with.
        """
        source = checked_source(arrays, batch_size=batch_size, epochs=epochs, seed=seed)
        if self._progress.source is not None:
            raise UsageError(
                "training.batches() was called twice: a peer that joins runs the program from its top and could not "
                "know which loop the others are in; use one loop with all epochs"
            )
        self._progress.source = source
        self._equipment.ledger.progress.samples.assign(source.samples)
        return self._walk(source)

    def finish(self) -> None:
        """Training is over on this peer; ``batches`` calls it at its end, a loop of your own should.

        Peers that are still in the job average what their layers kept of the data, and compare their states.
        """
        if self._progress.finished:
            return
        self._progress.finished = True
        if self._progress.compiled is None:
            return
        if not self.left:
            self._barrier.part()
        self._barrier.chronicle.ended()
        summary = {"steps": self._steps(), "traces": self.traces()}
        self._equipment.membership.finish(summary, leaving=self.left)

    def traces(self) -> int:
        """How often the step was traced so far, functions inside it counted: 1, whatever happened to the membership."""
        return 0 if self._progress.compiled is None else self._progress.compiled.traces()

    # ---- the loop --------------------------------------------------------------------------------------------------

    def _walk(self, source: DataSource) -> Iterator[Any]:
        yield from batches(
            source,
            self._equipment.ledger,
            self._stamps,
            over=lambda: self.left or self.stopped,
            calls=lambda: self._progress.calls,
            most_peers=self._averaging.limits.maximum,
        )
        self.finish()

    def _call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        progress = self._progress
        if not tf.executing_eagerly():
            return self._call_inside(args, kwargs)
        progress.calls += 1
        if self.left or self.stopped or progress.finished:
            raise UsageError(
                "a training step was called after this peer's training was over; see training.left, training.stopped"
            )
        tensors = as_tensors(args, kwargs)
        if progress.compiled is None:
            progress.compiled = self._begin(function, tensors, (args, kwargs))
        stamp = tf.constant(self._stamps.of(tensors), tf.int64)
        try:
            returned, code = progress.compiled(stamp, tensors)
        except tf.errors.OpError as error:
            raise translated(error, self._barrier, where=f"step {self._steps() + 1}") from error
        return self._concluded(returned, code)

    def _call_inside(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The step as a part of a function of the user's, which may loop over steps; its batches are the user's own."""
        compiled = self._progress.compiled
        if compiled is None:
            raise UsageError(
                f"{self._marked!r} was called inside a tf.function before it was ever called outside: its first call "
                "traces it, warms it up and waits for the other peers, so make that one from plain Python"
            )

        def failed() -> None:
            self._raise_failure(self._progress.failure)

        return compiled.inside(as_tensors(args, kwargs), failed=failed)

    def _begin(self, function: Callable[..., Any], tensors: list[Any], structure: Any) -> CompiledStep:
        """Traces, warms up on a copy of the state, and enters the job."""
        equipment = self._equipment
        parts = StepParts(
            equipment.ledger,
            list(equipment.state.classes.averaged.values()),
            [*equipment.ledger.handles(), *equipment.state.handles()],
            self._hold_barrier,
            equipment.rate,
        )
        self._progress.averages = 0
        compiled = CompiledStep(function, parts, tensors, structure)
        if self._progress.averages != 1:
            raise UsageError(
                f"the function marked @training.step calls training.average() {self._progress.averages} times; it must "
                "do so exactly once, with all gradients"
            )
        warmed_up(compiled, equipment.attachment, tensors)
        equipment.ledger.progress.batch.assign(self._first_batch(tensors))
        self._barrier.join(self._first_terms)
        self._record_view()
        return compiled

    def _first_batch(self, tensors: list[Any]) -> int:
        """The samples of a step as the loader says, else those that this peer was given."""
        if self._progress.source is not None:
            return self._progress.source.batch_size
        batch = batched(tensors)
        return 1 if batch is None else int(batch.shape[0])

    def _first_terms(self, size: int) -> Terms:
        """The batch of the first view; it follows from rank 0's, which came with the state: all peers agree on it."""
        batch = int(self._equipment.ledger.progress.batch.numpy())
        whole = batch * size if self._progress.source is None else batch
        if whole < size:
            raise UsageError(f"batch_size={whole} is smaller than the cluster of {size} peers: each needs a sample")
        return Terms(global_batch_size=whole, batch_per_peer=whole / size)

    def _hold_barrier(self) -> int:
        """Called inside the graph: whatever happens is kept for ``_concluded`` to raise."""
        halted = self._equipment.ledger.posts.halted
        try:
            self._barrier.meet()
        except BaseException as error:  # noqa: BLE001 - raised again outside the graph, where it keeps its type
            self._progress.failure = error
            halted.assign(True)
            return BARRIER_FAILED
        halted.assign(self.left or self.stopped)
        return BARRIER_HELD

    def _concluded(self, returned: Any, code: int) -> Any:
        progress = self._progress
        if code == BARRIER_FAILED:
            self._raise_failure(progress.failure)
        if code == STALE_BATCH:
            progress.stale += 1
            if progress.stale > _STALE_IN_A_ROW:
                raise UsageError(f"{progress.stale} batches in a row were stale: pass on those of training.batches()")
            return SKIPPED
        progress.stale = 0
        self._chronicle_step(code)
        return returned

    def _raise_failure(self, failure: BaseException | None) -> NoReturn:
        """Statistics are averaged in a barrier, and a peer may be lost over that too."""
        assert failure is not None
        if isinstance(failure, tf.errors.OpError):
            where = f"the barrier behind step {self._steps()}"
            raise translated(failure, self._barrier, where=where) from failure
        raise failure

    def _record_view(self) -> None:
        if self._recorder is not None:
            version = int(self._equipment.ledger.place.version.numpy())
            self._recorder.entered(version=version, rank=self._barrier.rank, after=self._steps())

    def _steps(self) -> int:
        return int(self._equipment.ledger.progress.step.numpy())

    def _chronicle_step(self, code: int) -> None:
        """Tells of the step as it was: its view may have been ended by the barrier behind it."""
        ledger, leads, chronicle = self._equipment.ledger, self._barrier.rank == 0, self._barrier.chronicle
        if not leads and not chronicle.has_news and self._recorder is None:
            return
        tape = ledger.figures.tape
        row = tape.read()
        figures = tape.figures(row)
        if self._recorder is not None:
            self._recorder.stepped(row)
            self._record_view() if code == BARRIER_HELD else self._recorder.settled(after=figures["step"])
        if leads or chronicle.has_news:
            chronicle.stepped(figures, list(tape.watched(row).values()))
        if self._barrier.rank == 0 and any(rule.standing == "shadow" for rule in self._equipment.plan.rules):
            shadows = fired_rules(self._equipment.plan, ledger.rules.shadows, step=self._steps())
            self._barrier.chronicle.shadowed(shadows)
