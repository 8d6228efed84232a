"""``attach``: makes the ``fit`` of a compiled model train as a job.

The model gets a new ``fit`` as an instance attribute. Its class is unchanged, so a saved, cloned or loaded model is a
plain Keras model. The action of the new ``fit`` depends on how the program was started:

- Alone and without policies, Keras' ``fit`` runs.
- Alone with policies, Keras' ``fit`` runs a train function in which the policies see each step.
- Under ``kungfu-run``, `kungfu.keras.loop` runs: the job's loop, with Keras' callbacks, metrics and validation.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from types import MappingProxyType
from typing import Any, Literal

import keras
import tensorflow as tf

from kungfu.compiler import compile_policies
from kungfu.control import Budget
from kungfu.control.synchronisation import Synchronisation
from kungfu.errors import UsageError
from kungfu.framework_internals import is_keras_model, layer_statistics, output_loss_trackers
from kungfu.keras.applications import optimizers_of
from kungfu.keras.callbacks import refuse_saves_within_epochs
from kungfu.keras.custom_step import CustomStep, custom_job_step, custom_step_alone, explored
from kungfu.keras.data.fit_data import arguments_alone, bound_arguments, fit_data, refuse_samples
from kungfu.keras.evaluation.sharing import share_calls
from kungfu.keras.fits import Evaluations
from kungfu.keras.loop import FitRun
from kungfu.keras.metrics import metrics_of
from kungfu.keras.saving import write_as_one_job
from kungfu.keras.train_step import job_step, refuse_job_step, refuse_step, step_alone
from kungfu.policy_definition import Policy, checked_policies
from kungfu.runtime.api import PhaseIsOver, read_settings
from kungfu.training import Training
from kungfu.training.data.sample_source import is_source
from kungfu.training.graph.combined_metrics import Combination, CombinedMetrics
from kungfu.training.graph.layer_memory import LayerReduction, is_named
from kungfu.training.loop.attach import attach_built, build, policies_in_job, refuse_sums, refuse_unsupported
from kungfu.training.loop.job_connection import JobConnection, connect
from kungfu.training.loop.step_calls import StepCalls
from kungfu.training.state.registry import Kind, Rescaled


def attach(
    model: Any,
    *,
    policies: Sequence[Policy] = (),
    seed: int = 0,
    budget: Budget | None = None,
    combine: Mapping[str, Combination | LayerReduction] = MappingProxyType({}),
    sync: Synchronisation = "gradients",
) -> FitHandle:
    """Makes ``model.fit`` train as a job: call it between ``compile`` and ``fit``, and change nothing else.

    Under ``kungfu-run`` each later ``fit`` of the model trains with all peers of the job. ``batch_size`` is the batch
    size of the whole job, and each peer trains on its slice of a batch. Without ``kungfu-run``, the script trains as it
    would without this line, and policies see its steps. Call ``attach`` again after each further ``compile``.

    Args:
        model: A compiled Keras 3 model; it need not be built.
        policies: The policies; checked here with the policies of ``kungfu-run --policy``, and compiled by ``fit``.
        seed: Determines the order of the samples under ``shuffle=True`` (not Keras' order), and the random numbers of
            each peer (dropout's masks). Without a job, it determines only the order of samples of ``kf.data``.
        budget: Limits how often all policies together may change the cluster; replaces the policies' own budgets.
        combine: The combination of metrics' states over the peers, by the name of the metric; not needed for Keras'
            metrics that keep sums. In each step every peer's metric starts from the job's state and sees the peer's
            slice; the job's new state is the "mean" over the peers weighted by samples, the elementwise "max" or
            "min", or the result of a function. The function receives two lists in the order of ``metric.variables``:
            the job's states before the step, and the states after the step of all peers with samples, stacked along a
            new first axis. It returns the list of the job's new states. With "sum" the metric starts each step from
            zeros, and the sum of the peers' states is added to the job's state. The key "layer/variable" sets the
            combination of a layer's statistic: "sum", "mean" or "only_first_replica", as in `kungfu.attach`.
        sync: How the peers keep their models alike: by the mean of their gradients in every step ("gradients"), or by
            averages of their models, ``kf.control.average_models(every=H)``, as in `kungfu.attach`. Averages are also
            taken at the end of each epoch, before validation and callbacks; metrics are summed with them.

    Returns:
        A handle for registering further state and for ending the fit.

    Raises:
        UsageError: The model is not compiled, or its ``fit`` is under way. Features that a job does not support yet are
            refused by ``fit``, before any step.
        PolicyError: A policy is invalid.

    On rescale:
        A joining peer begins at the epoch and step of the others, and skips finished fits. A peer removed by a decision
        ends its program inside ``fit``, with exit code 0.

    >>> import keras, numpy as np, kungfu as kf
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> training = kf.keras.attach(model)
    >>> history = model.fit(np.ones((8, 2)), np.ones((8, 1)), batch_size=4, epochs=3, verbose=0)
    >>> len(history.history["loss"])
    3
    """
    _refuse_model(model)
    refuse_unsupported(sync, optimizers_of(model))
    attached = Attached(model, checked_policies(policies), seed, budget, dict(combine), sync, model.optimizer)
    compile_policies(policies_in_job(attached.policies, read_settings()), budget=budget, sync=sync)
    model.fit = _fit_function(attached)
    write_as_one_job()
    share_calls(model, attached)
    model.train_on_batch = _refusing_in_job(model, "train_on_batch")
    # Alone, a train function left by an earlier attach or fit contains other policies.
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


@dataclass
class Attached:
    """The arguments of a call of ``attach``, and the state of the model's fits.

    Args:
        is_fitting: True while a ``fit`` is under way.
        passes: True while this peer skips finished fits.
        first_epoch: The first epoch of the present or last fit.
    """

    model: Any
    policies: tuple[Policy, ...]
    seed: int
    budget: Budget | None
    combine: Mapping[str, Any]
    sync: Synchronisation
    optimizer: Any
    is_fitting: bool = False
    passes: bool = False
    calls: StepCalls | None = None
    first_epoch: int = 0
    evaluations: Evaluations = field(default_factory=Evaluations)

    def __post_init__(self) -> None:
        self.handle = FitHandle(self)

    @property
    def training(self) -> Training | None:
        """The present or last fit as a `Training`, the interface of programs with their own training loop."""
        return None if self.calls is None else Training(self.calls)


class FitHandle:
    """The handle of one model's training by ``fit``; the same handle serves all fits of the model.

    Values about the job refer to the present fit, or to the last fit. Without a job and without policies, Keras itself
    trains: there is one peer, and registrations have no effect.

    >>> import keras, numpy as np, kungfu as kf
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> training = kf.keras.attach(model)
    >>> history = model.fit(np.ones((8, 2)), np.ones((8, 1)), batch_size=4, epochs=3, verbose=0)
    >>> training.step_number, training.epoch, training.rank, training.size
    (6, 3, 0, 1)
    """

    def __init__(self, attached: Attached) -> None:
        self._attached = attached
        self._prepared: list[Callable[[Training], Any]] = []  # called at the beginning of each fit
        self._fed: dict[str, Any] = {}

    @property
    def rank(self) -> int | None:
        """This peer's rank; ``None`` if this peer does not train, because it was removed or skips finished fits."""
        training = self._attached.training
        if self._attached.passes:
            return None
        return 0 if training is None else training.rank

    @property
    def size(self) -> int:
        """The number of peers."""
        training = self._attached.training
        return 1 if training is None else training.size

    @property
    def stopped(self) -> bool:
        """True if a policy, a request or ``stop`` has ended the present or last fit."""
        training = self._attached.training
        return False if training is None else training.stopped

    @property
    def step_number(self) -> int:
        """The number of steps in all fits of the job so far; without job and policies, the optimizer's iterations."""
        training, optimizers = self._attached.training, optimizers_of(self._attached.model)
        return int(optimizers[0].iterations) if training is None else training.step_number

    @property
    def epoch(self) -> int:
        """The present epoch in Keras' count; after a fit, one more than the last epoch of that fit."""
        history = getattr(self._attached.model, "history", None)
        done = history.epoch if history is not None else []
        return done[-1] + 1 if done else self._attached.first_epoch

    def register(self, name: str, get: Any, set: Any = None, *, kind: Kind = "shared", room_bytes: int = 16384) -> None:
        """Adds state of the program to the state of every later fit; see ``kungfu.Training.register``."""
        self._prepared.append(lambda training: training.register(name, get, set, kind=kind, room_bytes=room_bytes))

    def on_rescale(self, function: Callable[[Rescaled], Any]) -> Callable[[Rescaled], Any]:
        """Registers a function that every later fit calls after each change of membership."""
        self._prepared.append(lambda training: training.on_rescale(function))
        return function

    def publish(self, name: str, value: Any) -> None:
        """Passes a number from a training step (a custom layer, loss or ``train_step``) to the policies.

        Undefined:
            Without effect outside of a training step, as in ``evaluate``; see ``kungfu.Training.publish``.
        """
        training = self._attached.training
        if training is not None and training.is_tracing:
            training.publish(name, value)

    def feed(self, name: str, value: Any) -> None:
        """Passes a number to the policies, from a callback or between two fits; see ``kungfu.Training.feed``."""
        training, self._fed[name] = self._attached.training, value
        if training is not None and self._attached.is_fitting:
            training.feed(name, value)

    def checkpoint(self, path: str | os.PathLike[str] | None = None, *, keep: int = 3) -> None:
        """Requests a checkpoint at the barrier after the fit's next step; see ``kungfu.Training.checkpoint``."""
        training = self._attached.training
        if training is not None and self._attached.is_fitting:
            training.checkpoint(path, keep=keep)

    def stop(self, reason: str = "") -> None:
        """Ends the present fit after the same step on all peers; without effect outside of a fit.

        The epoch ends at that step, as under ``model.stop_training``.

        Args:
            reason: As in ``kungfu.Training.stop``.
        """
        attached = self._attached
        if not attached.is_fitting:
            return
        if attached.training is None:
            attached.model.stop_training = True
        else:
            attached.training.stop(reason)

    def prepare(self) -> Training:
        """Applies all earlier registrations, and numbers passed to `feed`, to the present `Training`; returns it."""
        training = self._attached.training
        assert training is not None
        for one in self._prepared:
            one(training)
        for name, value in self._fed.items():
            training.feed(name, value)
        return training


# ---- fit -------------------------------------------------------------------------------------------------------------


def _fit_function(attached: Attached) -> Callable[..., Any]:
    """The function that replaces ``fit`` on the model."""
    model, own = attached.model, type(attached.model).fit

    @wraps(own)
    def fit(*args: Any, **kwargs: Any) -> Any:
        if model.optimizer is not attached.optimizer:
            raise UsageError(
                f"the model {model.name!r} was compiled after kf.keras.attach(), and has another optimizer now: "
                "call kf.keras.attach(model) again, after compile"
            )
        attached.is_fitting = True
        try:
            arguments = bound_arguments(own, model, args, kwargs)
            if read_settings() is not None:
                return fit_in_job(attached, arguments)
            refuse_samples(arguments["validation_data"], to="model.fit(validation_data=...)")
            attached.first_epoch = arguments["initial_epoch"]
            if attached.policies:
                _let_policies_see_steps(attached)
            # Keras does not know the samples of kf.data, and receives batches of them.
            if is_source(arguments["x"]):
                args, kwargs = (), arguments_alone(arguments["x"], arguments, seed=attached.seed)
            return own(model, *args, **kwargs)
        finally:
            attached.is_fitting = False

    fit.attached = attached  # type: ignore[attr-defined]  # for a later attach
    return fit


def _attach(attached: Attached, connection: JobConnection, custom: CustomStep | None) -> StepCalls:
    """Attaches the built model to the job, with Keras' step or a custom step; returns the calls of that step."""
    model = attached.model
    if attached.sync != "gradients":
        _refuse_with_averages(attached, custom)
    if custom is None:
        build(model, optimizers := [model.optimizer])
    else:  # each optimizer once, in the order of their first applications
        optimizers = list({id(one): one for one in custom.optimizers}.values())
    attached.calls = calls = attach_built(
        connection,
        model,
        optimizers,
        policies=attached.policies,
        seed=attached.seed,
        budget=attached.budget,
        combine=_combine_of(attached, "layers"),
        sync=attached.sync,
    )
    if custom is not None and connection.number == 0:
        print(custom.note(model), file=sys.stderr)
    return calls


def _refuse_with_averages(attached: Attached, custom: CustomStep | None) -> None:
    """Raises ``UsageError`` for what needs a message in each step, if the run averages models."""
    others = {name: one for name, one in _combine_of(attached, "metrics").items() if one != "sum"}
    if custom is not None:
        what = (
            f"the training step of {type(attached.model).__name__}, whose numbers the peers combine in each step: "
            "write the loop with kf.attach(model, optimizer, sync=...) and training.step"
        )
    elif others:
        name, way = next(iter(others.items()))
        what = (
            f"combine={{{name!r}: {getattr(way, '__name__', way)!r}}}, which needs the states of all peers in each "
            "step: keep sums in the metric, and combine them by 'sum'"
        )
    else:
        return
    raise UsageError(
        f'kf.keras.attach(sync=kf.control.average_models(...)) beside {what}; or attach with sync="gradients"'
    )


def _combine_of(attached: Attached, what: Literal["layers", "metrics"]) -> dict[str, Any]:
    """The entries of ``combine`` that name variables of layers, or those that name metrics, as chosen by ``what``.

    A name that fits both a variable and a metric counts as a metric."""
    combine, variables = attached.combine, layer_statistics(attached.model)
    metrics = {one.name for one in metrics_of(attached.model)}
    paths = {name for name in combine if "/" in name or any(is_named(one, name) for one in variables)}
    return {name: one for name, one in combine.items() if (name in paths - metrics) == (what == "layers")}


# ---- in a job --------------------------------------------------------------------------------------------------------


def fit_in_job(attached: Attached, arguments: Mapping[str, Any]) -> Any:
    """Runs ``fit`` as one peer of a job; a program without a launcher is a job of one peer."""
    model, connection = attached.model, connect()
    refuse_job_step(model)
    if type(model).fit is not keras.Model.fit:
        raise UsageError(
            f"{type(model).__name__}.fit() is the program's own: under kungfu-run the loop is kungfu's; write the loop "
            "with kf.attach() and training.step (README), or run the script without kungfu-run"
        )
    for name in ("epochs", "initial_epoch"):
        if not isinstance(arguments[name], int) or arguments[name] < 0:
            raise UsageError(f"model.fit({name}={arguments[name]!r}): must be an integer of at least 0")
    refuse_samples(arguments["validation_data"], to="model.fit(validation_data=...)")
    if attached.sync != "gradients":
        refuse_saves_within_epochs(arguments["callbacks"])
    plan, batch, validation = fit_data(arguments, seed=attached.seed)
    custom = explored(model, batch)
    fit = FitRun(model, arguments, plan, validation, connection, combine=attached.combine)
    if not plan.epochs:  # nothing to train, and no peer to meet
        return fit.run_empty()
    attached.first_epoch, missed = arguments["initial_epoch"], connection.begin_phase()
    attached.evaluations = fit.evaluations
    while True:
        # The others have finished this fit; the state of their present fit is received on joining that fit.
        attached.passes = missed is not None
        if missed is not None:
            return fit.skip(missed)
        try:
            return _train_in_job(attached, connection, fit, custom)
        # The others finished this fit while this peer prepared.
        except PhaseIsOver:
            missed = connection.phase_result()


def _train_in_job(attached: Attached, connection: JobConnection, fit: FitRun, custom: CustomStep | None) -> Any:
    model, of_metrics = attached.model, metrics_of(attached.model)
    metrics = CombinedMetrics(of_metrics, _combine_of(attached, "metrics"), per_step=output_loss_trackers(model))
    calls = _attach(attached, connection, custom)
    run = calls.run
    run.memory.share(run.trace, [*model.variables, *(one for metric in of_metrics for one in metric.variables)])
    refuse_sums(run)
    with tf.device("/CPU:0"):  # read by the host in every step
        stop_requested = tf.Variable(0.0, trainable=False, name="kungfu/stop_requested")
    if custom is None:
        step, logs = job_step(model, run, metrics, stop_requested=stop_requested)
    else:
        step, logs = custom_job_step(model, run, metrics, custom, stop_requested=stop_requested)
    calls.mark(step.__name__, averages=1 if custom is None else len(custom.optimizers))
    attached.handle.prepare()
    history = fit.train(calls, step, logs, stop_requested=stop_requested)
    if run.left:
        print("kungfu: this peer was let go, and its program ends inside of model.fit()", file=sys.stderr)
        sys.exit(0)
    return history


# ---- alone -----------------------------------------------------------------------------------------------------------


def _let_policies_see_steps(attached: Attached) -> None:
    """Replaces the train function of Keras' loop by a function in which the policies see each step."""
    model = attached.model
    refuse_step(model)

    def make_train_function(force: bool = False) -> Any:
        if model.train_function is None or force:
            model.train_function = _train_function(attached)
        return model.train_function

    model.make_train_function = make_train_function


def _train_function(attached: Attached) -> Callable[[Any], Any]:
    model = attached.model
    steps: list[Callable[[Any], Any]] = []  # one step, after the first batch

    def function(iterator: Any) -> Any:
        logs = None
        for _ in range(model.steps_per_execution):
            batch = next(iterator, None)
            if batch is None:
                break
            if not steps:  # the model is built for the first batch
                steps.append(_step_alone(attached, batch))
            logs = steps[0](batch)
            if attached.calls is not None and attached.calls.run.stopped:
                model.stop_training = True
                break
        if logs is None:
            raise StopIteration
        return logs

    return function


def _step_alone(attached: Attached, batch: Any) -> Callable[[Any], Any]:
    def symbolic(one: Any) -> Any:
        return keras.KerasTensor((None, *one.shape[1:]), dtype=one.dtype.name)

    model, custom = attached.model, explored(attached.model, tf.nest.map_structure(symbolic, batch))
    calls = _attach(attached, connect(), custom)
    training = attached.handle.prepare()
    atexit.register(calls.finish)  # further calls of fit continue the run
    if custom is None:
        return training.step(step_alone(model, training.average))
    return training.step(averages=len(custom.optimizers))(custom_step_alone(model, calls.run, custom))


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
