"""``attach``: makes the ``fit`` of a compiled model train as a job.

The model gets another ``fit`` as an instance attribute. Its class is unchanged, so a saved, cloned or loaded model is a
plain Keras model. The new ``fit`` depends on how the program was started:

- Alone and without policies, Keras' ``fit`` runs.
- Alone with policies, Keras' ``fit`` runs a train function in which the policies see each step.
- Under ``kungfu-run``, `kungfu.keras.loop` runs: the job's loop, with Keras' callbacks, metrics and validation.
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
from kungfu.training.graph.layer_memory import LayerReduction, is_named
from kungfu.training.loop.attach import attach_built, build, policies_in_job
from kungfu.training.loop.job_connection import JobConnection, connect
from kungfu.training.loop.step_calls import StepCalls


def attach(
    model: Any,
    *,
    policies: Sequence[Policy] = (),
    seed: int = 0,
    budget: Budget | None = None,
    combine: Mapping[str, Combination | LayerReduction] = MappingProxyType({}),
) -> FitHandle:
    """Makes ``model.fit`` train as a job: call it between ``compile`` and ``fit``, and change nothing else.

    Under ``kungfu-run`` each later ``fit`` of the model trains with all peers of the job. ``batch_size`` is that of the
    whole job, and each peer trains on its slice of a batch. Alone, the script trains as it would without this line, and
    policies see its steps. Call it again after another ``compile``, which starts another phase of the job.

    Args:
        model: A compiled Keras 3 model; it need not be built.
        policies: Checked here, together with the policies of ``kungfu-run --policy``, and compiled by ``fit``.
        seed: Determines the order of the samples under ``shuffle=True``, which differs from Keras', and the random
            numbers of each peer (dropout's masks). Alone it has no effect.
        budget: Bounds how often the policies together may change the cluster, in place of their own budgets.
        combine: The combination of metrics' states over the peers, by the name of the metric. Keras' metrics that keep
            sums need none. In each step every peer's metric starts from the job's state and sees the peer's slice; the
            job's new state is the "mean" over the peers weighted by samples, the elementwise "max" or "min", or the
            result of a function. The function receives two lists in the order of ``metric.variables``: the job's
            states before the step, and the states after it of all peers with samples, stacked along a new first axis.
            It returns the list of the job's new states. With "sum" the metric starts each step from zeros, and the sum
            of its states is added to the job's. The key "layer/variable" sets the combination of a statistic that a
            layer keeps, "sum", "mean" or "only_first_replica", as in `kungfu.attach`.

    Returns:
        A handle for registering further state and for ending the fit.

    Raises:
        UsageError: The model is not compiled, or its ``fit`` is under way. Features that a job does not support yet are
            refused by ``fit``, before any step.
        PolicyError: A policy is invalid.

    On rescale:
        A joining peer begins at the epoch and step of the others, and skips fits that are over. A peer removed by a
        decision ends its program inside ``fit``, with exit code 0.

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
    # Alone: a train function left by an earlier attach or fit has other policies than this one.
    model.__dict__.pop("make_train_function", None)
    model.train_function = None
    return attached.handle


def _refuse_model(model: Any) -> None:
    """Raises ``UsageError`` if the model is not compiled, or its ``fit`` is under way."""
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
    """The ``fit`` of an attached model."""

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
                # Keras does not know the samples of kf.data: it is given batches of them.
                if is_source(arguments["x"]):
                    args, kwargs = (), arguments_alone(arguments["x"], arguments, seed=self.seed)
                return own(self.model, *args, **kwargs)
            finally:
                self.is_fitting = False

        fit.attached = self  # type: ignore[attr-defined]  # for a later attach
        return fit

    def _refuse_recompiled(self) -> None:
        if self.model.optimizer is not self.optimizer:
            raise UsageError(
                f"the model {self.model.name!r} was compiled after kf.keras.attach(), and has another optimizer now: "
                "call kf.keras.attach(model) again, after compile"
            )

    def _attach(self, connection: JobConnection, custom: CustomStep | None) -> StepCalls:
        """Builds the job's step, from Keras' own step or a custom one, and returns its calls."""
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
        """The entries of ``combine`` for variables of layers, or for metrics; a metric's name has precedence."""
        metrics, variables = {one.name for one in metrics_of(self.model)}, layer_statistics(self.model)
        paths = {name for name in self.combine if "/" in name or any(is_named(one, name) for one in variables)}
        return {name: one for name, one in self.combine.items() if (name in paths - metrics) == (what == "layers")}

    def _prepared(self, batch: Any) -> CustomStep | None:
        """Builds the model for a symbolic batch, and returns the findings about its step if that is custom."""
        if has_custom_step(self.model):
            return explored(self.model, batch)
        build_symbolically(self.model, batch)
        return None

    # ---- in a job --------------------------------------------------------------------------------------------------

    def in_job(self, *args: Any, **kwargs: Any) -> Any:
        """Runs ``fit`` as one peer of a job; a program without a launcher is a job of one peer."""
        model, connection = self.model, connect()
        arguments = _arguments(type(model).fit, model, args, kwargs)
        refuse_in_job(model, arguments)
        refuse_samples(arguments["validation_data"], to="model.fit(validation_data=...)")
        data = fit_data(arguments, seed=self.seed)
        custom = self._prepared(data.symbolic_batch)
        call = FitCall(model, arguments, data, connection, combine=self.combine)
        if not data.plan.epochs:  # nothing to train, and no peer to meet
            return call.nothing()
        self.first_epoch, missed = arguments["initial_epoch"], connection.begin_phase()
        self.evaluations = call.evaluations
        while True:
            # The others have finished this fit; the state of their present fit is received on joining it.
            self.passes = missed is not None
            if missed is not None:
                return call.passed(missed)
            try:
                return self._trained_in_job(call, custom)
            # The others finished it while this peer prepared.
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
        with tf.device("/CPU:0"):  # read by the host in every step
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
        """Gives Keras' loop a train function in which the policies see each step."""
        model = self.model
        refuse_step(model)

        def make_train_function(force: bool = False) -> Any:
            if model.train_function is None or force:
                model.train_function = self._train_function()
            return model.train_function

        model.make_train_function = make_train_function

    def _train_function(self) -> Callable[[Any], Any]:
        model = self.model
        steps: list[Callable[[Any], Any]] = []  # one step, after the first batch

        def function(iterator: Any) -> Any:
            logs = None
            for _ in range(model.steps_per_execution):
                batch = next(iterator, None)
                if batch is None:
                    break
                if not steps:  # the model is built for the first batch
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
        atexit.register(calls.finish)  # further calls of fit continue it
        if custom is None:
            return training.step(step_alone(self.model, training.average))
        refuse_unknown_loss(self.model, custom, calls.run)
        return training.step(averages=len(custom.optimizers))(custom_step_alone(self.model, calls.run))


def _arguments(own: Callable[..., Any], model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a ``fit`` call by name, including Keras' defaults."""
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
