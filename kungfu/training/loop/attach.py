"""``attach``: makes a training run from a model, its optimizer and policies."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import keras
import tensorflow as tf

from kungfu.compiler import CompiledPolicies, compile_policies
from kungfu.compiler.lower import Program, fused, lower
from kungfu.control import AverageModels, Budget, Call, Evict, Replace, Rescale
from kungfu.control.action import numbers_of
from kungfu.control.synchronisation import Synchronisation
from kungfu.errors import UsageError
from kungfu.framework_internals import all_layers, is_keras_model
from kungfu.policy_definition import Policy, checked_policies
from kungfu.policy_definition.policy_path import load_policies_of_job
from kungfu.runtime.api import Settings
from kungfu.training.graph.graph_state import GraphState
from kungfu.training.graph.hyperparameters import make_hyperparameters
from kungfu.training.graph.layer_memory import LayerMemory, LayerReduction
from kungfu.training.graph.learning_rate import LearningRateFactor, make_factor, make_learning_rate
from kungfu.training.graph.model_average import ModelAverage
from kungfu.training.graph.step_record import StepRecord
from kungfu.training.graph.tracing.effects import EffectGate
from kungfu.training.graph.tracing.random_streams import joiner_seed
from kungfu.training.graph.tracing.trace import StepTrace
from kungfu.training.graph.training_state import TrainingState, classify, plant_seeds
from kungfu.training.loop.job_connection import JobConnection, connect
from kungfu.training.loop.step_calls import StepCalls
from kungfu.training.loop.training import Training
from kungfu.training.run import Declared, Run, RunSettings
from kungfu.training.state.checkpoint_manager import CheckpointManager, TrainedObjects
from kungfu.training.state.registry import Registry
from kungfu.training.telemetry.event_log_writer import EventLogWriter
from kungfu.training.telemetry.step_timer import StepTimer
from kungfu.training.telemetry.trace_recorder import TraceRecorder

_ATTACHED: weakref.WeakKeyDictionary[Any, Callable[[], bool]] = weakref.WeakKeyDictionary()


def attached_models() -> list[tuple[Any, bool]]:
    """The models attached in this process that are still in use, each with True if its training is over."""
    return [(model, is_over()) for model, is_over in _ATTACHED.items()]


def attach(
    model: Any,
    optimizer: Any,
    *,
    policies: Sequence[Policy] = (),
    seed: int = 0,
    budget: Budget | None = None,
    combine: Mapping[str, LayerReduction] = MappingProxyType({}),
    sync: Synchronisation = "gradients",
) -> Training:
    """Attaches policies to a Keras model and its optimizer (or a list of optimizers).

    Under ``kungfu-run`` this process becomes a peer of the job; the same program also trains alone.

    Args:
        model: A built Keras 3 model.
        optimizer: A Keras optimizer, or a list of optimizers.
        policies: The policies, checked and compiled here, together with the policies of ``kungfu-run --policy``.
        seed: The job's seed, from which each peer derives the random numbers of its steps, such as dropout masks and
            ``tf.random``; they differ between peers. The seed has no effect in a program that runs alone.
        budget: Limits how often all policies together may change the cluster, in place of their individual budgets.
        combine: The rule by which the peers combine a variable in which a layer stores statistics of its inputs, for
            layers that do not declare it with ``add_weight(aggregation=...)``. The key is the end of the variable's
            path, "layer/variable". With "sum", the increments of all peers in a step are added up. With "mean" and
            "only_first_replica", the variable is local between barriers, which assign the mean or rank 0's value.
        sync: How the peers keep their models alike: by the mean of their gradients in every step ("gradients"), or by
            averages of their models, ``kf.control.average_models(every=H)``.

    Returns:
        The training run: its step, average and batches.

    Raises:
        UsageError: A model or optimizer has no variables yet, or TensorFlow has one inter-op thread; ``combine`` names
            no variable of a layer, or a combination that does not fit the variable; or, under ``kungfu-run``, a layer
            would compute statistics over the peers (``BatchNormalization(synchronized=True)``); or the program uses
            what averages of models do not support.
        PolicyError: A policy is invalid.
    """
    optimizers = list(optimizer) if isinstance(optimizer, list | tuple) else [optimizer]
    connection = connect()
    build(model, optimizers)
    more: dict[str, Any] = {"policies": policies, "seed": seed, "budget": budget, "combine": combine, "sync": sync}
    calls = attach_built(connection, model, optimizers, **more)
    if connection.settings is not None:  # a program that runs alone sees all samples
        calls.run.memory.share(calls.run.trace)
        refuse_sums(calls.run)
    return Training(calls)


def attach_built(
    connection: JobConnection,
    model: Any,
    optimizers: Sequence[Any],
    *,
    policies: Sequence[Policy],
    seed: int,
    budget: Budget | None,
    combine: Mapping[str, LayerReduction],
    sync: Synchronisation = "gradients",
) -> StepCalls:
    """Attaches a model that already has all weights used by its step, and optimizers that already have variables."""
    settings, attachment = connection.settings, connection.attachment
    if settings is not None:
        _refuse_synchronized(model)
    _check_threads()
    refuse_unsupported(sync, optimizers)
    plan = compile_policies(policies_in_job(policies, settings), budget=budget, sync=sync)
    _check_best_signal(plan, connection.checkpoints.best_signal)
    with tf.device("/CPU:0"):  # for counters and scalars that the host reads
        program = fused(lower(plan))
        graph_state = GraphState.of(plan, averages_models=isinstance(sync, AverageModels))
        graph_state.view.assign_limits(connection.limits)
        rate = make_learning_rate(optimizers) if _sets_rate(plan, optimizers) else None
        factor, hyperparameters = make_factor(plan, optimizers), make_hyperparameters(plan, optimizers)
        models = ModelAverage(sync.every, graph_state, attachment) if isinstance(sync, AverageModels) else None
    # The counts of steps and samples of earlier phases continue.
    done = connection.steps()
    graph_state.progress.step.assign(done)
    graph_state.progress.trained.assign(connection.trained)
    memory = LayerMemory.of(model, combine)
    state = _state(model, optimizers, graph_state, program, memory, factor)
    if settings is not None:  # a program that runs alone draws the same numbers as without kungfu
        seed = seed if settings.checkpoints.founders else joiner_seed(seed, job=settings.job)
        plant_seeds(state.classes, seed=seed, peer=connection.number, after=done)
    connection.begin_run(on_offer=graph_state.posts.changes.ask, steps=graph_state.progress.steps)
    membership, registry, record = connection.membership, Registry(), connection.membership.record
    for name, one in hyperparameters.items():
        registry.register_variable(name, one.variable, kind="shared")
    trained = TrainedObjects(model, optimizers, state, seed, connection.peer, connection.number)
    # For a program that runs alone no peer waits, so its step has no trial run.
    gate = None if settings is None else EffectGate(lambda: graph_state.view.version.read_value() > 0)
    trace = StepTrace(gate)
    if factor is not None:
        trace.around.append(factor.around_function)
    calls = StepCalls(
        Run(
            trained=trained,
            program=program,
            graph_state=graph_state,
            rate=rate,
            factor=factor,
            hyperparameters=hyperparameters,
            memory=memory,
            trace=trace,
            attachment=attachment,
            membership=membership,
            settings=_run_settings(connection, steps_before=done, compares=models is None),
            registry=registry,
            checkpoints=CheckpointManager(
                trained, registry, connection.checkpoints, record=record, past_phases=membership.past_phases
            ),
            journal=EventLogWriter(record, deciding=deciding_rules(plan)),
            recorder=_recorder(connection, graph_state.metrics.step_record, program),
            timer=StepTimer(connection.deadlines, wait_at_most=attachment.wait_at_most),
            models=models,
            declared=Declared(described=() if models is None else (models.described,)),
        )
    )
    if models is not None:  # the step is undone if its second message fails
        undone = [*(one.variable for one in program.variables), *graph_state.of_first_message()]
        calls.run.trace.undone += [one.handle for one in (*undone, *models.window.variables())]
    alive = weakref.ref(calls)  # weak, since ``calls`` refers to the model, which is the key
    _ATTACHED[model] = lambda: (found := alive()) is not None and found.is_over
    return calls


def refuse_unsupported(sync: Any, optimizers: Sequence[Any]) -> None:
    """Raises ``UsageError`` for an unknown value of ``sync``, or an optimizer whose models cannot be averaged."""
    if sync == "gradients":
        return
    if not isinstance(sync, AverageModels):
        raise UsageError(
            f'attach(sync={sync!r}): takes "gradients" or kf.control.average_models(every=H), such as every=16'
        )
    scaling = [one.name for one in optimizers if hasattr(one, "dynamic_scale")]
    if scaling:
        raise UsageError(
            f"attach(sync=kf.control.average_models(...)) beside the optimizer {scaling[0]!r}, which scales the loss: "
            "each peer would skip other steps, and count other steps; train in bfloat16 or float32, which need no "
            'scale, or attach with sync="gradients"'
        )


def refuse_sums(run: Run) -> None:
    """Raises ``UsageError`` for a layer whose additions are summed in each step, if the run averages models."""
    sums = [one.name for one in run.memory.sums.variables]
    if run.models is not None and sums:
        raise UsageError(
            f'attach(sync=kf.control.average_models(...)): the variable {sums[0]!r} of a layer is declared "sum": the '
            'peers add up their additions in each step, but send each other nothing in most steps; declare "mean" '
            'or "only_first_replica", or attach with sync="gradients"'
        )


def policies_in_job(policies: Sequence[Policy], settings: Settings | None) -> tuple[Policy, ...]:
    """The policies of the program, followed by the policies of ``kungfu-run --policy``."""
    return (*checked_policies(policies), *load_policies_of_job(settings.policies if settings else ()))


def _run_settings(connection: JobConnection, *, steps_before: int, compares: bool) -> RunSettings:
    number, settings = connection.runs, connection.settings
    return RunSettings(
        limits=connection.limits,
        phase=connection.phase if connection.several else 0,
        steps_before=steps_before,
        terms_before=connection.terms,
        # Between two averages of models the states of the peers differ.
        compare_every=0 if settings is None or not compares else settings.compare_every,
        exits=connection.exits,
        is_newest=lambda: connection.runs == number,
    )


def _recorder(connection: JobConnection, step_record: StepRecord, program: Program) -> TraceRecorder | None:
    settings, phase = connection.settings, max(1, connection.phase)
    if settings is None or settings.recording == "nothing":
        return None
    more: dict[str, Any] = {"peer": settings.peer, "policies": settings.policies, "phase": phase}
    return TraceRecorder(connection.membership.record, step_record=step_record, program=program, **more)


def _sets_rate(plan: CompiledPolicies, optimizers: Sequence[Any]) -> bool:
    """True if a rule may set the learning rate; assumed for hooks, whose requests are not known beforehand."""
    acting = [rule.action for rule in (*plan.rules, *plan.on_rescale) if rule.mode == "acting"]
    hooked = len(optimizers) == 1 and any(isinstance(action, Call) for action in acting)
    return hooked or any("learning rate" in numbers_of(action) for action in acting)


def deciding_rules(plan: CompiledPolicies) -> list[str]:
    """The names of the rules that may request another size or other peers, including hooks."""
    kinds = (Rescale, Evict, Replace, Call)
    return [rule.name for rule in plan.rules if rule.mode == "acting" and isinstance(rule.action, kinds)]


def _check_best_signal(plan: CompiledPolicies, name: str) -> None:
    """Refuses a signal of ``kungfu-run --keep best:SIGNAL`` that no policy names."""
    known = ["mean_loss", *plan.watched_signals]
    if name and name not in known:
        raise UsageError(
            f"kungfu-run --keep best:{name}: no policy of this program has a signal named {name!r}, which would say "
            f"which checkpoint is the best; there are {', '.join(known)}; name one in a policy with .named({name!r})"
        )


def _check_threads() -> None:
    threads = tf.config.threading.get_inter_op_parallelism_threads()
    named = os.environ.get("TF_NUM_INTEROP_THREADS", "0")
    if threads == 1 or (threads == 0 and (named == "1" or (named == "0" and os.cpu_count() == 1))):
        raise UsageError(
            "TensorFlow has 1 thread between ops (inter_op_parallelism_threads): a barrier would wait for ever for the "
            "thread that it holds; set TF_NUM_INTEROP_THREADS=2 or more"
        )


def build(model: Any, optimizers: Sequence[Any]) -> None:
    """Builds a single optimizer's variables; ``UsageError`` for a model or optimizer that cannot be attached."""
    _check_model(model)
    strangers = [type(one).__name__ for one in optimizers if not hasattr(one, "built") or not hasattr(one, "build")]
    if strangers or not optimizers:
        raise UsageError(
            f"kf.attach() was given {', '.join(strangers) or 'no optimizer'} after the model: it takes a Keras "
            "optimizer such as keras.optimizers.SGD(0.1), or a list of them"
        )
    if len(optimizers) == 1 and not optimizers[0].built:
        optimizers[0].build(model.trainable_variables)
    unbuilt = [one.name for one in optimizers if not one.built]
    if unbuilt:
        raise UsageError(
            f"of {len(optimizers)} optimizers {unbuilt} have no variables yet: call build(variables) on each, with "
            "those that it is to update"
        )


def _check_model(model: Any) -> None:
    if isinstance(model, list | tuple | Mapping):
        raise UsageError(
            f"kf.attach() was given {len(model)} models in a {type(model).__name__}: it takes one, whose weights it "
            "keeps equal on all peers; make one that holds them (all = keras.Model(); all.parts = [a, b]; all.built = "
            "True), attach that one, and go on calling each of them in the step; several optimizers go into a list"
        )
    if not is_keras_model(model):
        raise UsageError(
            f"kf.attach() was given {type(model).__name__} as its model: it takes a Keras 3 model (keras.Model, "
            "keras.Sequential) first and the optimizer second"
        )
    name = getattr(model, "name", type(model).__name__)
    if not model.weights:
        raise UsageError(
            f"kf.attach() was given the model {name!r}, which has no weights yet: call it on a batch, "
            "model.build(shape), or begin it with keras.Input"
        )
    if not getattr(model, "built", False):
        raise UsageError(
            f"kf.attach() was given the model {name!r}, whose layers have {len(model.weights)} weights, but which was "
            "never called as a whole, so Keras does not know whether these are all: call it once on a batch, or "
            "model.build(shape)"
        )


def _refuse_synchronized(model: Any) -> None:
    for layer in all_layers(model):
        if isinstance(layer, keras.layers.BatchNormalization) and layer.synchronized:
            raise UsageError(
                f"the layer {layer.name!r} is BatchNormalization(synchronized=True) under kungfu-run: its statistics "
                "would still be those of each peer's slice of a batch, and not of the batch; make it without "
                "synchronized=True (the moving statistics become the mean over the peers at barriers and at the end of "
                "an epoch), and choose a batch of which a slice has samples enough, or take GroupNormalization or "
                "LayerNormalization, which need one sample"
            )


def _state(
    model: Any,
    optimizers: Sequence[Any],
    graph_state: GraphState,
    program: Program,
    memory: LayerMemory,
    factor: LearningRateFactor | None,
) -> TrainingState:
    progress = graph_state.progress
    agreed = {f"progress/{name}": getattr(progress, name) for name in ("step", "epoch", "offset", "batch", "trained")}
    folds = {f"policy/{fold.name}": fold.variable for fold in program.variables if fold.placement == "agreed"}
    if factor is not None:
        folds["policy/learning_rate_factor"] = factor.variable
    classes = classify(model, optimizers, {**agreed, **folds}, reductions=memory.reductions)
    return TrainingState(classes, on_rescaled=program.reset_on_rescale)
