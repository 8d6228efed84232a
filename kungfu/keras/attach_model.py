"""``attach``: the ``fit`` of a compiled model becomes the training of a job.

The model itself gets a ``fit`` of its own, as an attribute: its class stays what it is, so what is saved, cloned or
loaded is a plain Keras model. What that ``fit`` does depends on how the program was started:

- Alone and without policies it is Keras' own.
- Alone with policies it is Keras' own, with a train function in which the policies see each step.
- Under ``kungfu-run`` it is `kungfu.keras.loop`: the job's loop, with Keras' callbacks, metrics and validation.
"""

from __future__ import annotations

import atexit
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from types import MappingProxyType
from typing import Any, Literal

import keras
import tensorflow as tf

from kungfu.compiler import compile_policies
from kungfu.control import Budget
from kungfu.errors import UsageError
from kungfu.framework_internals import build_symbolically, is_keras_model, layer_statistics, output_loss_trackers
from kungfu.keras.applications import optimizers_of
from kungfu.keras.custom_step import (
    CustomMetrics,
    CustomStep,
    custom_job_step,
    custom_step_alone,
    explored,
    has_custom_step,
    refuse_unknown_loss,
)
from kungfu.keras.data.choose import fit_data
from kungfu.keras.data.indexed import arguments_alone
from kungfu.keras.evaluation.sharing import share_calls
from kungfu.keras.fits import FitCall
from kungfu.keras.handle import Attached, FitHandle
from kungfu.keras.loop import FitRun
from kungfu.keras.metrics import JobLogs, metrics_of, shown
from kungfu.keras.refusals import refuse_in_job, refuse_samples, refuse_step
from kungfu.keras.saving import write_as_one_job
from kungfu.keras.train_step import job_step, step_alone
from kungfu.policy_definition import Policy, checked_policies
from kungfu.runtime.api import PhaseIsOver, read_settings
from kungfu.training.data.sample_source import is_source
from kungfu.training.graph.combined_metrics import Combination, CombinedMetrics
from kungfu.training.graph.layer_memory import LayerWord, is_named
from kungfu.training.loop.attach import attach_built, build, policies_in_job
from kungfu.training.loop.job_connection import JobConnection, connect
from kungfu.training.loop.step_calls import StepCalls


def attach(
    model: Any,
    *,
    policies: Sequence[Policy] = (),
    seed: int = 0,
    budget: Budget | None = None,
    combine: Mapping[str, Combination | LayerWord] = MappingProxyType({}),
) -> FitHandle:
    """Makes ``model.fit`` the training of a job: call it between ``compile`` and ``fit``, and change nothing else.

    Under ``kungfu-run`` each ``fit`` of the model that follows trains with all peers of the job. ``batch_size`` is that
    of the whole job, and each peer takes its slice of a batch. Alone the same script trains as it would without this
    line; policies see its steps. After another ``compile`` call it again: that is another phase of the job.

    Args:
        model: A compiled Keras 3 model; it need not be built.
        policies: Checked here, together with those that ``kungfu-run --policy`` names, and compiled by ``fit``.
        seed: From it follow the order of the samples under ``shuffle=True``, which is another one than Keras', and what
            each peer draws (dropout's masks). Alone it has no effect.
        budget: Bounds how often the policies together may change the cluster, in place of their own budgets.
        combine: The combination of metrics' states over the peers, by the name of the metric. Those of Keras' own
            that keep sums need none. In each step every peer's metric starts from the job's state, sees the peer's
            slice, and the job's state becomes the "mean" over the peers weighted by samples, the elementwise "max" or
            "min", or what a function makes of it: it is called with two lists, in the order of ``metric.variables``,
            the job's states before the step, and those after it of all peers that had samples, stacked along a new
            first axis, and gives the list of the job's new states. With "sum" the metric starts each step from zeros,
            and the sum of its states is added to the job's. By "layer/variable" it says what becomes of a variable in
            which a layer keeps what it has seen, "sum", "mean" or "only_first_replica", as in `kungfu.attach`.

    Returns:
        A handle: what goes along with training is registered there, and the program can end the fit by it.

    Raises:
        UsageError: This is no compiled model, or it is in its ``fit``. What a job cannot do yet ``fit`` refuses, before
            any step.
        PolicyError: A policy is wrong.

    On rescale:
        Peers that join begin with the epoch and step that the others are at, and pass through fits that are over; one
        that a decision lets go ends its program inside ``fit``, with exit code 0.

    >>> import keras, numpy as np, kungfu as kf
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> training = kf.keras.attach(model)
    >>> history = model.fit(np.ones((8, 2)), np.ones((8, 1)), batch_size=4, epochs=3, verbose=0)
    >>> len(history.history["loss"])
    3
    """
    _refuse_model(model)
    policies = checked_policies(policies)
    compile_policies(policies_in_job(policies, read_settings()), budget=budget)
    attached = _Attached(model, policies, seed, budget, dict(combine), model.optimizer)
    model.fit = attached.fit_function()
    if read_settings() is not None:
        write_as_one_job()
    share_calls(model, attached)
    model.train_on_batch = _refusing_in_job(model, "train_on_batch")
    # Alone: what an attach or a fit before this one has left would go around the policies, or around their absence.
    model.__dict__.pop("make_train_function", None)
    model.train_function = None
    return attached.handle


def _refuse_model(model: Any) -> None:
    """Raises ``UsageError`` if this is no compiled model, or it is in its ``fit``."""
    if not is_keras_model(model) or not hasattr(model, "compile"):
        raise UsageError(f"kf.keras.attach() was given {type(model).__name__}: it takes a compiled Keras 3 model")
    if not model.compiled or not optimizers_of(model):
        raise UsageError(
            f"kf.keras.attach() was given the model {model.name!r}, which is not compiled: call it between "
            "model.compile(optimizer=..., loss=...) and model.fit(...)"
        )
    before = getattr(model.__dict__.get("fit"), "attached", None)
    if before is not None and before.is_fitting:
        raise UsageError(f"kf.keras.attach() was called while the model {model.name!r} is in its fit: call it before")


class _Attached(Attached):
    """The ``fit`` of a model, as it was attached."""

    def fit_function(self) -> Callable[..., Any]:
        """The function that replaces ``fit`` on the model."""
        own = type(self.model).fit

        @wraps(own)
        def fit(*args: Any, **kwargs: Any) -> Any:
            self._refuse_recompiled()
            self.is_fitting = True
            try:
                if read_settings() is not None:
                    return self.in_job(*args, **kwargs)
                arguments = _arguments(own, self.model, args, kwargs)
                refuse_samples(arguments["validation_data"], to="model.fit(validation_data=...)")
                self.first_epoch = arguments["initial_epoch"]
                if self.policies:
                    self._policies_see_steps()
                # Keras does not know the samples of kf.data, and is given batches of them.
                if is_source(arguments["x"]):
                    args, kwargs = (), arguments_alone(arguments["x"], arguments, seed=self.seed)
                return own(self.model, *args, **kwargs)
            finally:
                self.is_fitting = False

        fit.attached = self  # type: ignore[attr-defined]  # for an attach after this one
        return fit

    def _refuse_recompiled(self) -> None:
        if self.model.optimizer is not self.optimizer:
            raise UsageError(
                f"the model {self.model.name!r} was compiled after kf.keras.attach(), and has another optimizer now: "
                "call kf.keras.attach(model) again, after compile"
            )

    def _attach(self, connection: JobConnection, custom: CustomStep | None) -> StepCalls:
        """For Keras' own step, or a custom one."""
        optimizers = [self.model.optimizer] if custom is None else custom.each_optimizer
        if custom is None:
            build(self.model, optimizers)
        self.calls = calls = attach_built(
            connection,
            self.model,
            optimizers,
            policies=self.policies,
            seed=self.seed,
            budget=self.budget,
            combine=self._combine_of("layers"),
        )
        if custom is not None and connection.peer == 0:
            print(custom.note(self.model), file=sys.stderr)
        return calls

    def _combine_of(self, what: Literal["layers", "metrics"]) -> dict[str, Any]:
        """The part of ``combine`` for the variables of layers, or for metrics, whose names come first."""
        metrics, variables = {one.name for one in metrics_of(self.model)}, layer_statistics(self.model)
        paths = {name for name in self.combine if "/" in name or any(is_named(one, name) for one in variables)}
        return {name: one for name, one in self.combine.items() if (name in paths - metrics) == (what == "layers")}

    def _prepared(self, batch: Any) -> CustomStep | None:
        """Builds the model for a symbolic batch; what its training step does if that is a custom one."""
        if has_custom_step(self.model):
            return explored(self.model, batch)
        build_symbolically(self.model, batch)
        return None

    # ---- in a job --------------------------------------------------------------------------------------------------

    def in_job(self, *args: Any, **kwargs: Any) -> Any:
        """``fit`` as one peer of a job; of a job of one where nobody launched it."""
        model, connection = self.model, connect()
        arguments = _arguments(type(model).fit, model, args, kwargs)
        refuse_in_job(model, arguments)
        refuse_samples(arguments["validation_data"], to="model.fit(validation_data=...)")
        data = fit_data(arguments, seed=self.seed)
        custom = self._prepared(data.symbolic_batch)
        call = FitCall(model, arguments, data, connection, combine=self.combine)
        if not data.plan.epochs:  # there is nothing to do, and nobody to do it with
            return call.nothing()
        self.first_epoch, missed = arguments["initial_epoch"], connection.begin_phase()
        self.evaluations = call.evaluations
        while True:
            # The others have done this fit; the state of the one that they are in comes when this peer joins it.
            self.passes = missed is not None
            if missed is not None:
                return call.passed(missed)
            try:
                return self._trained_in_job(call, custom)
            # They came to its end while this peer got ready.
            except PhaseIsOver:
                missed = connection.phase_result()

    def _trained_in_job(self, call: FitCall, custom: CustomStep | None) -> Any:
        model = self.model
        metrics = CombinedMetrics(metrics_of(model), self._combine_of("metrics"), per_step=output_loss_trackers(model))
        calls = self._attach(call.connection, custom)
        run = calls.run
        known = [*model.variables, *(one for metric in metrics_of(model) for one in metric.variables)]
        run.memory.share(run.trace, known)
        run.declared.described = call.described
        with tf.device("/CPU:0"):  # the host reads it in every step
            stop_requested = tf.Variable(0.0, trainable=False, name="kungfu/stop_requested")
        if custom is None:
            logs = JobLogs(metrics.totals, partial(shown, model, metrics))
            step = job_step(model, run, metrics, stop_requested=stop_requested)
        else:
            refuse_unknown_loss(model, custom, run)
            custom_metrics = CustomMetrics(model, custom, metrics)
            logs = JobLogs(custom_metrics.totals, custom_metrics.numbers)
            step = custom_job_step(model, run, custom_metrics, stop_requested=stop_requested)
        calls.mark(step.__name__, averages=1 if custom is None else len(custom.optimizers))
        self.handle.prepare()
        history = FitRun(call, calls, step=step, logs=logs, stop_requested=stop_requested).run()
        if run.left:
            print("kungfu: this peer was let go, and its program ends inside of model.fit()", file=sys.stderr)
            sys.exit(0)
        return history

    # ---- alone -----------------------------------------------------------------------------------------------------

    def _policies_see_steps(self) -> None:
        """Keras' loop calls a train function in which the policies see each step."""
        model = self.model
        refuse_step(model)

        def make_train_function(force: bool = False) -> Any:
            if model.train_function is None or force:
                model.train_function = self._train_function()
            return model.train_function

        model.make_train_function = make_train_function

    def _train_function(self) -> Callable[[Any], Any]:
        model = self.model
        steps: list[Callable[[Any], Any]] = []  # one, once there is a batch

        def function(iterator: Any) -> Any:
            logs = None
            for _ in range(model.steps_per_execution):
                batch = next(iterator, None)
                if batch is None:
                    break
                if not steps:  # the first batch shows what the model is to be built for
                    steps.append(self._step_alone(batch))
                logs = steps[0](batch)
                if self.calls is not None and self.calls.run.stopped:
                    model.stop_training = True
                    break
            if logs is None:
                raise StopIteration
            return logs

        return function

    def _step_alone(self, batch: Any) -> Callable[[Any], Any]:
        def symbolic(one: Any) -> Any:
            return keras.KerasTensor((None, *one.shape[1:]), dtype=one.dtype.name)

        custom = self._prepared(tf.nest.map_structure(symbolic, batch))
        calls = self._attach(connect(), custom)
        training = self.handle.prepare()
        atexit.register(calls.finish)  # further calls of fit go on with it
        if custom is None:
            return training.step(step_alone(self.model, training.average))
        refuse_unknown_loss(self.model, custom, calls.run)
        return training.step(averages=len(custom.optimizers))(custom_step_alone(self.model, calls.run))


def _arguments(own: Callable[..., Any], model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call of ``fit``, by name, with Keras' defaults."""
    bound = inspect.signature(own).bind(model, *args, **kwargs)
    bound.apply_defaults()
    return {name: value for name, value in bound.arguments.items() if name != "self"}


def _refusing_in_job(model: Any, name: str) -> Callable[..., Any]:
    own = getattr(type(model), name)

    @wraps(own)
    def refusing(*args: Any, **kwargs: Any) -> Any:
        if read_settings() is not None:
            raise UsageError(
                f"model.{name}() was called under kungfu-run on a model that kf.keras.attach() was given: it "
                "bypasses the job, so nothing would be averaged; call model.fit(), or write the loop with kf.attach()"
            )
        return own(model, *args, **kwargs)

    return refusing
