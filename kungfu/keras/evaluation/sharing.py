"""Calls of ``evaluate`` and ``predict`` by the program, shared among the peers once training is over.

After training no agent leads the job, so the job cannot recover from a loss: the peers of the last view are still
connected, but each may end at any time. A call is shared as long as all of these peers reach it. If a peer does not
reach a call, each of the others processes all of the data, with the same result, in this and all later calls. Before
training, and in calls from callbacks, each peer processes all of the data.

A peer that skips a finished fit has the final weights of that fit. This peer is in no view, so it shares no calls: it
receives the others' results of ``evaluate``, and predicts alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from kungfu.framework_internals import flat_metrics
from kungfu.keras.callbacks import verbosity, without_writers
from kungfu.keras.data.fit_data import bound_arguments, refuse_samples
from kungfu.keras.evaluation.numbered_batches import numbered_batches
from kungfu.keras.evaluation.shared_pass import SharedEvaluation, SharedPass, SharedPrediction
from kungfu.training.loop.step_calls import StepCalls
from kungfu.training.state.registered_sync import PeerGroup

if TYPE_CHECKING:
    from kungfu.keras.attach_model import Attached


def share_calls(model: Any, attached: Attached) -> None:
    """Makes the peers share the calls of a model's ``evaluate`` and ``predict`` where possible."""
    sharing = _Sharing(model, attached)
    for name in ("evaluate", "predict"):
        # A subclass's own method may do anything: it is not shared.
        if getattr(type(model), name) is getattr(keras.Model, name):
            setattr(model, name, sharing.function(name))


class _Sharing:
    """Shares the calls of ``evaluate`` and ``predict`` of one model among the peers."""

    def __init__(self, model: Any, attached: Attached) -> None:
        self._model, self._attached = model, attached
        self._broken: StepCalls | None = None  # the fit after which a peer missed a call

    def function(self, name: str) -> Callable[..., Any]:
        """The function that replaces `evaluate` or `predict` on the model."""
        own = getattr(type(self._model), name)

        @wraps(own)
        def call(*args: Any, **kwargs: Any) -> Any:
            refuse_samples(kwargs.get("x", args[0] if args else None), to=f"model.{name}()")
            calls, passes = self._calls(), self._attached.passes and not self._attached.is_fitting
            if calls is None and not (passes and name == "evaluate"):
                return own(self._model, *args, **kwargs)
            given = bound_arguments(own, self._model, args, kwargs)
            if calls is None:
                found = self._received(given)
            else:
                found = self._evaluate(calls, given) if name == "evaluate" else self._predict(calls, given)
            return own(self._model, *args, **kwargs) if found is None else found[0]

        return call

    def _calls(self) -> StepCalls | None:
        """The fit's `StepCalls` if calls can be shared: this peer trained to the end, and no peer missed a call."""
        calls = self._attached.calls
        if calls is None or calls is self._broken or self._attached.passes or self._attached.is_fitting:
            return None
        return calls if calls.is_over_in_newest_view else None

    def _evaluate(self, calls: StepCalls, given: dict[str, Any]) -> tuple[Any] | None:
        batches, callbacks = numbered_batches(given), self._callbacks(given, leads=calls.run.rank == 0)
        evaluation = SharedEvaluation(self._model, given, callbacks, self._attached.combine)
        shared = SharedPass(batches, evaluation)
        found = self._shared(calls, shared, SharedEvaluation.name)
        if found is None:
            return None
        if not shared.differs:
            self._attached.evaluations.add([batches.count, batches.checksum], found[0])
        return self._in_form(found[0], given)

    def _received(self, given: dict[str, Any]) -> tuple[Any] | None:
        """The result of this call, received from the peers that have made the call; ``None`` if none was received."""
        batches = numbered_batches(given)
        logs = self._attached.evaluations.next_result([batches.count, batches.checksum]) if batches.count else None
        if logs is None:
            return None
        # A Dataset that reshuffles on each reading must be read as often as on the other peers.
        if isinstance(given["x"], tf.data.Dataset):
            next(iter(given["x"]), None)
        callbacks = self._callbacks(given, leads=False)
        callbacks.on_test_begin()
        callbacks.on_test_end(logs)
        return self._in_form(logs, given)

    def _in_form(self, logs: dict[str, Any], given: Mapping[str, Any]) -> tuple[Any]:
        return (logs if given["return_dict"] else flat_metrics(self._model, logs),)

    def _predict(self, calls: StepCalls, given: dict[str, Any]) -> tuple[Any] | None:
        prediction = SharedPrediction(self._model, given, self._callbacks(given, leads=calls.run.rank == 0))
        return self._shared(calls, SharedPass(numbered_batches(given), prediction), SharedPrediction.name)

    def _shared(self, calls: StepCalls, shared: SharedPass, what: str) -> tuple[Any] | None:
        """The result of a call shared with the other peers, in a tuple of one; ``None`` if the call is not shared."""
        reason = ""

        def exchange(values: Callable[[PeerGroup], None]) -> bool:
            nonlocal reason
            reason = calls.exchange_after_training(values, what=what)
            return not reason

        if not shared.attempt(exchange):
            self._broken = calls
            _say(f"{what} is not shared among the peers from here on, and done by this peer alone: {reason}")
            return None
        if shared.differs:
            _say(f"{what} was done by each peer alone: not all called it, or they gave it other data")
        return (shared.result,)

    def _callbacks(self, given: Mapping[str, Any], *, leads: bool) -> Any:
        """The call's callbacks as Keras' list; callbacks that only write run on rank 0 alone."""
        verbose = verbosity(given["verbose"])
        callbacks = keras.callbacks.CallbackList(
            given["callbacks"], add_progbar=verbose != 0, model=self._model, verbose=verbose, epochs=1, steps=None
        )
        if not leads:
            callbacks.callbacks = without_writers(callbacks.callbacks)
        return callbacks


def _say(text: str) -> None:
    print(f"kungfu: {text}", file=sys.stderr)
