"""Describes a program entry by entry: the configs of layers, losses, metrics and optimizers, and functions.

Peers whose entries differ would train different programs. An entry is a path, such as ``dense_1.activation``, and a
value. The entries exclude everything that differs between two processes of one program:

- *State*: the values of variables, such as a learning rate; seeds, because each peer draws different numbers; and
  initializers, because all peers start with the weights of rank 0.
- *Names*, which Keras numbers separately in each process: a layer is identified by its index.
- *Places*: addresses, paths, and the files and lines of functions. A function is described by its qualified name, its
  bytecode, and the numbers that it reads from outside but does not set.

An object without a config is compared by its class, and a layer also by its variables.
"""

from __future__ import annotations

import dis
import functools
import re
import sys
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import CodeType, FunctionType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kungfu.framework_internals import all_layers, calls_of, compiled_with, maker_of
from kungfu.training.graph.learning_rate import without_factor

# The text of an entry that is shown, and the text that is compared.
Entry = tuple[str, str]

_MOST_SINGLE = 64  # a sequence or array with more values is not listed value by value
_MOST_NUMBERS = 1 << 16  # Keras converts arrays to lists, so a config with an array of more numbers is not read
_DEEPEST = 12  # levels of a config, or of functions that hold functions
# Names, and the keys by which Keras deserialises an object; models and optimizers have separate entries.
_PASSED_OVER = frozenset(
    {
        "build_config", "compile_config", "inbound_nodes", "input_layers", "keras_history", "module", "name",
        "optimizer", "output_layers", "registered_name", "shared_object_id",
    }
)  # fmt: skip
_OF_COMPILE = ("loss", "loss_weights", "metrics", "weighted_metrics", "steps_per_execution")
_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")
_PLAIN = (bool, int, float, complex, str, bytes, np.generic, type(None))
_PYTHON = f"Python {sys.version_info.major}.{sys.version_info.minor}"  # other versions have other bytecode
_LIBRARIES = ("keras", "tensorflow", "kungfu")


@dataclass(frozen=True)
class _Path:
    """The path of an entry: ``shown`` in errors, and compared as ``decides``; ``order``: layers' indices by name."""

    shown: str
    decides: str
    order: Mapping[str, str] = field(default_factory=dict)
    depth: int = 0
    described: set[int] = field(default_factory=set)  # ids of functions that already have entries, shared by subpaths

    def at(self, key: Any) -> _Path:
        """The subpath with this key; directly below an argument of ``compile``, an index replaces an output's name."""
        decides = self.order.get(key, key) if not self.depth else key
        return replace(self, shown=f"{self.shown}.{key}", decides=f"{self.decides}.{decides}", depth=self.depth + 1)

    def holds(self, shown: str, decides: str | None = None) -> Entry:
        """The entry of a value at this path."""
        return f"{self.shown} = {shown}", f"{self.decides} = {shown if decides is None else decides}"


def model_entries(model: Any) -> Iterator[Entry]:
    """The entries of a model: layers and operations in order; for a functional model, also the calls of operations."""
    for number, part in enumerate(_parts(model)):
        yield from _object(_Path(part.name, f"#{number}"), part)
        calls, inputs = calls_of(part), getattr(part, "inputs", None) or []
        local = _order([*(maker_of(one)[0] for one in inputs), *(call[0] for call in calls)])
        for call, (operation, *arguments) in enumerate(calls):
            at = _Path(f"{part.name}: call {call}, of {operation.name}", f"#{number} call {call}", local)
            yield at.holds(type(operation).__name__, local[operation.name])
            yield from _entries(at.at("arguments"), arguments)
        if calls:
            yield from _entries(_Path(f"{part.name}: outputs", f"#{number} outputs", local), part.outputs)


def compile_entries(model: Any) -> Iterator[Entry]:
    """The entries of the arguments of ``compile``, except the optimizer and the settings of execution."""
    given, order = compiled_with(model), _order(_parts(model))
    for name in _OF_COMPILE:
        yield from _entries(_Path(name, name, order), given.get(name))


def optimizer_entries(optimizer: Any, *, number: int) -> Iterator[Entry]:
    """The entries of the optimizer with this number."""
    return _object(_Path(type(optimizer).__name__, str(number)), optimizer)


def _parts(model: Any) -> list[Any]:
    """The layers at every depth, and the operations of functional models that are not layers."""
    layers = all_layers(model)
    called = [call[0] for layer in layers for call in calls_of(layer)]
    return list({id(one): one for one in (*layers, *called)}.values())


def _order(named: Sequence[Any]) -> dict[str, str]:
    return {name: f"#{index}" for index, name in enumerate(dict.fromkeys(one.name for one in named))}


# ---- values ----------------------------------------------------------------------------------------------------------


def _entries(path: _Path, value: Any) -> Iterator[Entry]:
    """The entries of a value of any type."""
    value = without_factor(value)
    if path.depth > _DEEPEST:
        yield path.holds(type(value).__name__)
    elif isinstance(value, _PLAIN):
        yield path.holds(_text(value))
    elif _is_variable(value):
        yield path.holds("a variable")
    elif isinstance(value, np.ndarray) or tf.is_tensor(value):
        yield path.holds(_array(value))
    elif keras.utils.is_keras_tensor(value):
        operation, output = maker_of(value)
        yield path.holds(f"output {output} of {operation.name}", f"{path.order.get(operation.name)} {output}")
    elif isinstance(value, Mapping):
        yield from _mapping(path, value)
    elif isinstance(value, list | tuple | set | frozenset):
        yield from _sequence(path, value)
    elif isinstance(value, functools.partial):
        yield from _entries(path, value.func)
        yield from _entries(path.at("arguments"), [value.args, value.keywords])
    elif (function := _python_function(value)) is not None:
        yield from _function(path, function)
    # Operations have separate entries.
    elif isinstance(value, keras.Operation):
        yield path.holds(type(value).__name__)
    else:
        yield from _object(path, value)


def _text(value: Any) -> str:
    """A plain value as text: floats to six digits, since rounding may differ; "a path" in place of any path."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str):
        return "a path" if "/" in value else repr(_ADDRESS.sub("0x", value))
    return repr(value)


def _array(value: Any) -> str:
    """An array as text, with its numbers if they are few."""
    looks, count = f"{value.dtype.name}{value.shape}", _count(value)
    return f"{looks} of {', '.join(map(_text, np.asarray(value).flat))}" if 0 < count <= _MOST_SINGLE else looks


def _mapping(path: _Path, value: Mapping[Any, Any]) -> Iterator[Entry]:
    """The entries of a mapping; for an object serialised by Keras, the entries of its class and its config."""
    match value:
        # The serialised bytes contain the file and the lines.
        case {"class_name": "__lambda__"}:
            yield path.holds("a lambda")
        case {"class_name": "DTypePolicy", "config": {"name": name}}:
            yield path.holds(str(name))
        case _ if len(value) > _MOST_SINGLE and all(isinstance(one, _PLAIN) for one in value.values()):
            texts = sorted(f"{key}: {_text(one)}" for key, one in value.items())
            yield path.holds(f"{len(value)} values by name", str(texts))
        case _:
            for key in sorted(filter(_counts, value), key=str):
                yield from _entries(path.at(key), value[key])


def _counts(key: Any) -> bool:
    return key not in _PASSED_OVER and "seed" not in str(key)


def _sequence(path: _Path, value: Any) -> Iterator[Entry]:
    """One entry per value of a sequence; a single entry for many plain values, and for a set, which has no order."""
    if isinstance(value, set | frozenset):
        texts = sorted(_text(one) if isinstance(one, _PLAIN) else type(one).__name__ for one in value)
        yield path.holds("{" + ", ".join(texts) + "}")
    elif len(value) > _MOST_SINGLE and all(isinstance(one, _PLAIN) for one in value):
        yield path.holds(f"{len(value)} values from {_text(value[0])} to {_text(value[-1])}", _many(value))
    elif not value:
        yield path.holds("nothing")
    else:
        for number, one in enumerate(value):
            yield from _entries(path.at(number), one)


def _many(values: Sequence[Any]) -> str:
    """The text of many values; for floats, which may differ by rounding, only whether each is larger than the next."""
    if all(isinstance(one, float | np.floating) for one in values):
        return f"{len(values)} {[bool(one > other) for one, other in pairwise(values)]}"
    return f"{list(map(_text, values))}"


# ---- objects ---------------------------------------------------------------------------------------------------------


def _object(path: _Path, one: Any) -> Iterator[Entry]:
    """The entries of an object's class and config, and of numbers that the object holds but its config may lack."""
    path = replace(path, order={})  # keys inside an object are not names of outputs
    yield path.holds(getattr(one, "__qualname__", type(one).__qualname__))
    if isinstance(one, type | keras.initializers.Initializer):
        return
    held, config = getattr(one, "__dict__", {}), _config(one)
    for key in sorted(filter(_counts, config), key=str):
        kept = held.get(key, held.get(f"_{key}"))
        yield from _entries(path.at(key), kept if _tells_more(kept) else config[key])
    # A class of the program may declare less than it contains; so may an optimizer with such a class as its schedule.
    if not isinstance(one, keras.Operation) and not (config and _is_of_library(type(one))):
        changing = _set_later(type(one))
        for key, value in sorted(held.items()):
            if key[:1] != "_" and key not in config and key not in changing and _counts(key) and _is_number(value):
                yield from _entries(path.at(key), value)
        if not config and "_learning_rate" in held:
            yield from _entries(path.at("learning_rate"), held["_learning_rate"])


def _config(one: Any) -> Mapping[str, Any]:
    """The config that an object declares; for a Sequential or functional model, without the config of its layers."""
    if not hasattr(one, "get_config") or _is_large(one):
        return {}
    is_made_of_others = isinstance(one, keras.Sequential) or bool(calls_of(one))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about functions that Keras could not load again
            found = keras.Layer.get_config(one) if is_made_of_others else one.get_config()
    # The program's class may raise any exception, usually because it declares no config.
    except Exception:  # noqa: BLE001 - an object without a config is compared by its class
        return {}
    return found if isinstance(found, Mapping) else {}


def _is_large(one: Any) -> bool:
    """True if the object, or one of its initializers, holds an array that Keras would convert to a long list."""
    kept = list(getattr(one, "__dict__", {}).values())
    kept += [
        value for each in kept if isinstance(each, keras.initializers.Initializer) for value in vars(each).values()
    ]
    return any(_count(value) > _MOST_NUMBERS for value in kept)


def _count(value: Any) -> int:
    """The number of elements of an array; 0 for any other value, such as a tensor inside a graph."""
    if isinstance(value, tf.Tensor) and hasattr(value, "numpy"):
        return int(value.shape.num_elements())
    return value.size if isinstance(value, np.ndarray) else 0


def _tells_more(kept: Any) -> bool:
    """True if an attribute holds more than the config's text shows: a variable, function or configurable object."""
    if isinstance(kept, list | tuple):
        return any(map(_tells_more, kept))
    function = _python_function(kept)
    is_own = isinstance(kept, functools.partial) or (function is not None and not _is_of_library(function))
    return is_own or _is_variable(kept) or (hasattr(kept, "get_config") and not isinstance(kept, type))


def _is_variable(value: Any) -> bool:
    return isinstance(value, tf.Variable | keras.Variable)


def _is_number(value: Any) -> bool:
    """True for a number, an array, or a tuple of numbers; lists are excluded, since the program may extend a list."""
    if isinstance(value, tuple):
        return all(map(_is_number, value))
    return isinstance(value, bool | int | float | np.number | np.ndarray | tf.Tensor)


def _is_of_library(made: Any) -> bool:
    return str(made.__module__).partition(".")[0] in _LIBRARIES


def _set_later(kind: type) -> set[str]:
    """The attributes that are set by the methods of a class, except ``__init__``; for example counters."""
    own = [one for each in kind.__mro__ if not _is_of_library(each) for one in vars(each).items()]
    codes = [one.__code__ for name, one in own if isinstance(one, FunctionType) and name != "__init__"]
    return {step.argval for code in codes for step in _instructions(code) if step.opname == "STORE_ATTR"}


# ---- functions -------------------------------------------------------------------------------------------------------


def _python_function(value: Any) -> FunctionType | None:
    """The Python function of a method or a ``tf.function``."""
    if not callable(value):
        return None
    value = getattr(value, "python_function", value)
    value = getattr(value, "__func__", value)
    return value if isinstance(value, FunctionType) else None


def _function(path: _Path, function: FunctionType) -> Iterator[Entry]:
    yield path.holds(function.__qualname__)
    if _is_of_library(function) or id(function) in path.described:
        return
    path.described.add(id(function))
    text = _code(function.__code__)
    yield path.at("code").holds(f"{_PYTHON} bytecode {zlib.crc32(text.encode()):08x}", text)
    for name, value in sorted(_read(function).items()):
        yield from _entries(path.at(name), value)


def _code(code: CodeType) -> str:
    """A code object without file names and line numbers; its sets are sorted, since Python randomises string hashes."""
    return repr((code.co_code, code.co_names, [*map(_constant, code.co_consts)]))


def _constant(value: Any) -> Any:
    if isinstance(value, CodeType):
        return _code(value)
    if isinstance(value, frozenset):
        return sorted(map(repr, value))
    return [*map(_constant, value)] if isinstance(value, tuple) else repr(value)


def _read(function: FunctionType) -> dict[str, Any]:
    """The numbers and losses that a function reads from its module, its closure and its defaults."""
    # Includes functions of its closure and defaults, but not of its module, which may read unrelated values.
    code, steps = function.__code__, list(_instructions(function.__code__))
    globals_ = {one.argval for one in steps if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")} & function.__globals__.keys()
    found = {name: one for name in globals_ if not callable(one := function.__globals__[name]) or _is_loss(one)}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        # The closure's variable is not assigned yet.
        except ValueError:
            continue
    names = code.co_varnames[: code.co_argcount]
    defaults = function.__defaults__ or ()
    found |= dict(zip(names[len(names) - len(defaults) :], defaults, strict=True)) | (function.__kwdefaults__ or {})
    # Variables that the function sets are state of the program.
    set_here = {one.argval for one in steps if one.opname in ("STORE_GLOBAL", "STORE_DEREF")}
    found = {name: one for name, one in found.items() if name not in set_here and _counts(name)}
    return {name: one for name, one in found.items() if _is_number(one) or _is_loss(one) or _python_function(one)}


def _is_loss(value: Any) -> bool:
    return isinstance(value, keras.losses.Loss)


def _instructions(code: CodeType) -> Iterator[dis.Instruction]:
    """The instructions of a code object, and of the functions defined in it."""
    yield from dis.get_instructions(code)
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _instructions(one)
