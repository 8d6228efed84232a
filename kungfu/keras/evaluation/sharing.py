"""``evaluate`` and ``predict`` that a program calls: shared among the peers once training is over.

Then no agent leads a job that could recover: the peers of the last view are still connected, and any of them may end.
So a call is shared as long as all of them come to it; when one does not, each of the others does the whole by itself,
with the same result, and so for all calls that follow. Before training, and where a callback calls, each peer does the
whole.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Protocol

import keras

from kungfu.framework_internals import flat_metrics
from kungfu.keras.callbacks import without_writers
from kungfu.keras.evaluation.numbered_batches import numbered_batches
from kungfu.keras.evaluation.shared_pass import SharedEvaluation, SharedPass, SharedPrediction
from kungfu.training.job_loop import JobLoop, Meeting
from kungfu.training.training import Training

__all__ = ["share_calls"]


class Attached(Protocol):
    """What is known of an attached model."""

    is_fitting: bool
    passes: bool  # through a fit that the others have done
    training: Training | None


def share_calls(model: Any, attached: Attached) -> None:
    """The calls of ``evaluate`` and ``predict`` of a model are shared among the peers where they can be."""
    sharing = _Sharing(model, attached)
    for name in ("evaluate", "predict"):
        # What a subclass does in a method of its own only the program knows.
        if getattr(type(model), name) is getattr(keras.Model, name):
            setattr(model, name, sharing.function(name))


class _Sharing:
    """The calls of one model."""

    def __init__(self, model: Any, attached: Attached) -> None:
        self._model, self._attached = model, attached
        self._broken: Training | None = None  # after whose end a peer did not come

    def function(self, name: str) -> Callable[..., Any]:
        """What stands for one of the two on the model."""
        own = getattr(type(self._model), name)

        @wraps(own)
        def call(*args: Any, **kwargs: Any) -> Any:
            loop = self._loop()
            if self._attached.passes and not self._attached.is_fitting:
                _say(
                    f"model.{name}() is called by a peer that joins, after a fit that the others have done: it gets "
                    "their weights in the fit that they are in, so here it finds numbers of its own"
                )
            if loop is None:
                return own(self._model, *args, **kwargs)
            bound = inspect.signature(own).bind(self._model, *args, **kwargs)
            bound.apply_defaults()
            given = {one: value for one, value in bound.arguments.items() if one not in ("self", "kwargs")}
            shared = self._evaluate if name == "evaluate" else self._predict
            found = shared(loop, given)
            return own(self._model, *args, **kwargs) if found is None else found[0]

        return call

    def _loop(self) -> JobLoop | None:
        """Of the job whose training is over, as long as all its peers come to each call."""
        training = self._attached.training
        if (
            training is None
            or training is self._broken
            or self._attached.passes
            or self._attached.is_fitting
            or training.size == 1
        ):
            return None
        loop = JobLoop(training)
        return loop if loop.is_after_training else None

    def _evaluate(self, loop: JobLoop, given: dict[str, Any]) -> tuple[Any] | None:
        evaluation = SharedEvaluation(self._model, given, self._callbacks(loop, given))
        found = self._shared(loop, SharedPass(numbered_batches(given), evaluation), SharedEvaluation.name)
        if found is None or given["return_dict"]:
            return found
        return (flat_metrics(self._model, found[0]),)

    def _predict(self, loop: JobLoop, given: dict[str, Any]) -> tuple[Any] | None:
        prediction = SharedPrediction(self._model, given, self._callbacks(loop, given))
        return self._shared(loop, SharedPass(numbered_batches(given), prediction), SharedPrediction.name)

    def _shared(self, loop: JobLoop, shared: SharedPass, what: str) -> tuple[Any] | None:
        """The result, in a tuple of one; ``None`` where this peer has to do the whole."""
        reason = ""

        def meet(together: Callable[[Meeting], None]) -> bool:
            nonlocal reason
            reason = loop.meet_after_training(together, what=what)
            return not reason

        if not shared.attempt(meet):
            self._broken = self._attached.training
            _say(f"{what} is not shared among the peers from here on, and done by this peer alone: {reason}")
            return None
        if shared.differs:
            _say(f"{what} was done by each peer alone: not all called it, or they gave it other data")
        return (shared.result,)

    def _callbacks(self, loop: JobLoop, given: Mapping[str, Any]) -> Any:
        """Keras' list of them; those that write run on rank 0."""
        verbose = 2 if given["verbose"] == "auto" else int(given["verbose"])
        callbacks = keras.callbacks.CallbackList(
            given["callbacks"], add_progbar=verbose != 0, model=self._model, verbose=verbose, epochs=1, steps=None
        )
        if loop.rank != 0:
            callbacks.callbacks = without_writers(callbacks.callbacks)
        return callbacks


def _say(text: str) -> None:
    print(f"kungfu: {text}", file=sys.stderr)
