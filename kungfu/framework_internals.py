"""Every use of a private part of TensorFlow or Keras that has no equivalent in the public interface.

Each function covers one use; its docstring gives the reason why the public interface is not enough. Each function has a
canary test in ``tests/test_framework_internals.py``; the test names the feature that kungfu loses if a new TensorFlow
or Keras drops the private part.
Importing this module loads neither library: ``script_runner`` runs this source before TensorFlow is loaded.
"""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

# The modules that define ``fit``, for Keras 3 and its predecessor, and their classes: the public ``keras.Model`` only
# inherits ``fit``, so a check before ``fit`` has to be added where ``fit`` is defined.
KERAS_TRAINERS = {
    "keras.src.backend.tensorflow.trainer": "TensorFlowTrainer",
    "keras.src.backend.jax.trainer": "JAXTrainer",
    "keras.src.backend.torch.trainer": "TorchTrainer",
    "tf_keras.src.engine.training": "Model",
}


# ---- Keras ---------------------------------------------------------------------------------------------------------


def is_keras_model(model: Any) -> bool:
    """True if this is a Keras 3 model, judged by the attributes that `layer_statistics` needs."""
    return hasattr(model, "_flatten_layers") and hasattr(model, "weights")


def all_layers(model: Any) -> list[Any]:
    """The model and its layers at every depth."""
    return list(model._flatten_layers())


def layer_statistics(model: Any) -> list[Any]:
    """The non-trainable variables of layers; only a private list separates them from frozen weights."""
    return [weight for _, weight in layers_with_statistics(model)]


def layers_with_statistics(model: Any) -> list[tuple[Any, Any]]:
    """The statistics of layers, as pairs of layer and variable."""
    return [(layer, weight) for layer in all_layers(model) for weight in layer._non_trainable_variables]


def attribute_of(layer: Any, variable: Any) -> str:
    """The name of the attribute of `layer` that holds a variable; "" if there is none."""
    return next((name for name, one in vars(layer).items() if one is variable), "")


def is_made_by_keras(layer: Any, variable: Any) -> bool:
    """True if Keras' own code creates this variable: in a Keras layer, or in a Keras base class of a custom layer."""
    import keras

    if type(layer).__module__.startswith("keras.") and not isinstance(layer, keras.Model):
        return True
    base = keras.layers.Layer.__module__
    kinds = [one for one in type(layer).__mro__ if one.__module__.startswith("keras.src.layers.")]
    functions = [one for kind in kinds if kind.__module__ != base for one in vars(kind).values()]
    made = {name for one in filter(inspect.isfunction, functions) for name in inspect.unwrap(one).__code__.co_names}
    return attribute_of(layer, variable) in made


def calls_of(model: Any) -> list[tuple[Any, Any, Any]]:
    """The calls of a functional model as (operation, arguments, keyword arguments); empty for other models."""
    # ``get_config`` returns the calls too, but with all nested configs, and functions' bytecode, which names files.
    depths = getattr(model, "_nodes_by_depth", {})
    nodes = [node for depth in sorted(depths, reverse=True) for node in depths[depth]]
    return [(one.operation, one.arguments.args, one.arguments.kwargs) for one in nodes if not one.is_input]


def maker_of(tensor: Any) -> tuple[Any, int]:
    """The operation that produced a symbolic tensor of Keras, and the index of the tensor among its outputs."""
    operation, _, output = tensor._keras_history
    return operation, output


def compiled_with(model: Any) -> Mapping[str, Any]:
    """The original arguments of ``compile``, empty before that call; ``get_compile_config`` would serialize them."""
    given = getattr(model, "_compile_config", None)
    return {} if given is None else given.config


def learning_rate_or_schedule(optimizer: Any) -> Any:
    """The learning rate or the schedule of an optimizer; the public property gives only a schedule's current value."""
    return optimizer._learning_rate


@contextmanager
def learning_rate_scaled(optimizer: Any, scale: Callable[[Any], Any]) -> Iterator[Callable[[], Any]]:
    """Makes an optimizer update with ``scale(rate)`` within the block; yields a function that reads the plain rate.

    Setting the public rate instead would hide the program's rate from callbacks, and is refused for a schedule.
    """
    plain = optimizer._get_current_learning_rate
    with replaced_method(optimizer, "_get_current_learning_rate", lambda: scale(plain())):
        yield plain


def loss_tracker(model: Any) -> Any | None:
    """The metric that tracks the mean loss of a compiled model; the public ``metrics`` may be overridden."""
    return model._loss_tracker


def output_loss_trackers(model: Any) -> list[Any]:
    """The loss metrics of the outputs of a compiled and built model, updated with one number per step."""
    return [] if model._compile_loss is None else list(model._compile_loss.metrics)


def build_symbolically(model: Any, batch: Any) -> None:
    """Builds a compiled model, its metrics and its optimizer for batches like this one, without running anything.

    Args:
        batch: ``keras.KerasTensor`` in the structure of a batch of ``fit``.
    """
    model._symbolic_build(data_batch=batch)


def restored_epoch(model: Any) -> int | None:
    """The epoch at which ``fit`` continues after a callback has restored a backup; only the model stores this epoch."""
    epoch: int | None = model._initial_epoch
    return epoch


def flat_metrics(model: Any, logs: dict[str, Any]) -> Any:
    """The values of metrics in the form that ``evaluate`` returns without ``return_dict``."""
    return model._flatten_metrics_in_order(logs)


@contextmanager
def reductions_by(reduce: Callable[..., Any]) -> Iterator[None]:
    """Replaces the reduction of the losses of ``compile``; no public hook receives values, weights and mask together.

    Args:
        reduce: Called with Keras' function and then its arguments: values, and by name ``sample_weight``, ``mask``,
            ``reduction`` and ``dtype``.
    """
    from keras.src.losses import loss
    from keras.src.trainers.compile_utils import CompileLoss

    own, call = loss.reduce_weighted_values, CompileLoss.call

    def calling(*args: Any, **kwargs: Any) -> Any:
        loss.reduce_weighted_values = partial(reduce, own)
        try:
            return call(*args, **kwargs)
        finally:
            loss.reduce_weighted_values = own

    CompileLoss.call = calling
    try:
        yield
    finally:
        CompileLoss.call = call


@contextmanager
def replaced_method(tracked: Any, name: str, method: Callable[..., Any]) -> Iterator[None]:
    """Replaces a method within the ``with`` block; bypasses ``setattr`` of the Keras object, which would track it."""
    object.__setattr__(tracked, name, method)
    try:
        yield
    finally:
        object.__delattr__(tracked, name)


def added_to_unmasked() -> float:
    """The constant that Keras adds to the number of unmasked positions before dividing: epsilon up to 3.12, then 0."""
    import keras
    from packaging.version import Version

    return keras.backend.epsilon() if Version(keras.__version__) < Version("3.13") else 0.0


# ---- TensorFlow: graphs under construction -------------------------------------------------------------------------


@contextmanager
def gradients_noted(note: Callable[[Any, Any], None]) -> Iterator[None]:
    """Calls ``note`` with the gradients and their target, for all gradients that this thread computes in a graph during
    the block; tapes do not report them."""
    import tensorflow as tf

    plain, thread = tf.GradientTape.gradient, threading.get_ident()

    def gradient(tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        found = plain(tape, target, sources, *args, **kwargs)
        if threading.get_ident() == thread and not tf.executing_eagerly():
            note(found, target)
        return found

    tf.GradientTape.gradient = tf.autograph.experimental.do_not_convert(gradient)
    try:
        yield
    finally:
        tf.GradientTape.gradient = plain


def is_in_xla_context(graph: Any) -> bool:
    """True if a graph is traced into a function that XLA compiles as a whole; there is no public function for this."""
    from tensorflow.python.ops import control_flow_util

    return bool(control_flow_util.GraphOrParentsInXlaContext(graph))


def is_under_condition(graph: Any) -> bool:
    """True if a graph is traced into a branch or a loop, or into a function that is called there."""
    from tensorflow.python.ops.control_flow_v2_func_graphs import ControlFlowFuncGraph

    while graph is not None:
        if isinstance(graph, ControlFlowFuncGraph):
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


def add_control_inputs(op: Any, inputs: Sequence[Any]) -> None:
    """Makes an existing op wait for others; ``tf.control_dependencies`` applies only to new ops."""
    op._add_control_inputs(inputs)


def resources_written(op: Any) -> list[Any]:
    """The input resources that an op may write, including writes by a function that it calls."""
    from tensorflow.python.framework import auto_control_deps_utils

    return list(auto_control_deps_utils.get_read_write_resource_inputs(op)[1])


def function_graph(graph: Any, name: str) -> Any:
    """The graph of a function that another graph calls, by the function's name."""
    return graph._get_function(name).graph


def functions_called(operation: Any) -> list[str]:
    """The names of the functions that an operation calls; for a loop, the body and then the condition."""
    attributes = (one for _, one in sorted(operation.node_def.attr.items()))
    return [one.name for given in attributes for one in ([given.func] if given.HasField("func") else given.list.func)]


def call_traced(function: Any, tensors: Sequence[Any], captured: Sequence[Any]) -> list[Any]:
    """Calls a concrete function that returns a list, with eager tensors of its traced dtypes.

    The public alternatives need more processor time per step: 0.1 ms for a call of the concrete function, which binds
    and casts each argument, or 0.35 ms for a call of the ``tf.function``, which looks up the trace by all captures.

    Args:
        tensors: The arguments; a wrong dtype or rank fails inside the function.
    """
    return list(function._call_flat(list(tensors), list(captured)))


def replace_capture(graph: Any, handle: Any, *, external: Any, internal: Any) -> None:
    """Makes a function under construction capture ``external``, known inside it as ``internal``, not ``handle``."""
    graph._function_captures.add_or_replace(key=id(handle), external=external, internal=internal)


# ---- TensorFlow: variables -----------------------------------------------------------------------------------------


def make_resource_variable(value: Any, *, name: str) -> Any:
    """A variable that a trace may create again; ``tf.Variable`` refuses to create variables in a second trace."""
    from tensorflow.python.ops.resource_variable_ops import ResourceVariable

    return ResourceVariable(value, trainable=False, name=name)


def handle_shape_and_type(handle: Any) -> Any | None:
    """Shape and dtype of a variable, by its handle; ``None`` for other resources (tables, summary writers)."""
    data = handle._handle_data
    return data.shape_and_type[0] if data is not None and data.is_set and len(data.shape_and_type) == 1 else None


# ---- TensorFlow: ops with an effect --------------------------------------------------------------------------------


def effect_op_makers() -> list[tuple[Any, str]]:
    """The functions that create the ops of prints and summaries, as pairs of module and name."""
    from tensorflow.python.ops import gen_logging_ops, gen_summary_ops

    summaries = [name for name in vars(gen_summary_ops) if re.fullmatch(r"write_\w+(?<!_eager_fallback)", name)]
    return [(gen_logging_ops, "print_v2"), *((gen_summary_ops, name) for name in summaries)]


def dataset_order(dataset: Any) -> Literal["as read", "by seed", "by chance"]:
    """The order of a ``tf.data.Dataset``'s elements (as read, by seed or by chance), found from its transformations."""
    steps = [dataset]  # transformations inside a function, such as in ``interleave``, are not visible
    for one in steps:  # the list grows during the loop
        steps.extend(one._inputs())
    seeds = [(int(one._seed), int(one._seed2)) for one in steps if hasattr(one, "_seed2")]
    is_free = any(getattr(one, "_deterministic", "") == "false" for one in steps)
    if is_free or dataset.options().deterministic is False or (0, 0) in seeds:  # seeds of zero are drawn at random
        return "by chance"
    return "by seed" if seeds else "as read"


def python_function(token: str) -> Any:
    """The Python function that an op of a graph calls, found by the op's attribute ``token``."""
    from tensorflow.python.ops import script_ops

    return script_ops._py_funcs.get(token)


def replace_python_functions(functions: Mapping[str, Any]) -> None:
    """Replaces the Python functions that ops of a graph call: ``functions`` maps an op's ``token`` to its new one."""
    from tensorflow.python.ops import script_ops

    script_ops._py_funcs._funcs.update(functions)


def is_eager_function(function: Any) -> bool:
    """True if the function of a call receives tensors (``tf.py_function``), not arrays (``tf.numpy_function``)."""
    from tensorflow.python.ops import script_ops

    return isinstance(function, script_ops.EagerFunc)


def make_eager_function(function: Callable[..., Any], dtypes: Sequence[Any]) -> Any:
    """Wraps a Python function so that the graph calls it with tensors and gets tensors of these dtypes."""
    from tensorflow.python.ops import script_ops

    return script_ops.EagerFunc(function, dtypes, is_grad_func=False)
