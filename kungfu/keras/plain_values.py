"""Plain values, which one peer can give another: numbers, texts, arrays, and containers of these.

They travel as a text in JSON and the arrays that it refers to: nothing that could be code. Of an object those
attributes are plain that hold such a value; a variable counts as what it holds.
"""

from __future__ import annotations

import io
import json
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

_CONTAINERS = (list, tuple, set, frozenset)
_OF_TENSORFLOW = ("bfloat16", "float8_e4m3fn", "float8_e5m2")  # types that NumPy does not know by itself


def is_plain(value: Any) -> bool:
    """Whether `pack` takes it.

    >>> is_plain({"best": 0.5, 3: [np.zeros(2), None]}), is_plain(open), is_plain([object()])
    (True, False, False)
    """
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return not isinstance(value, np.generic) or _is_numeric(value)
    if isinstance(value, np.ndarray | np.generic) or _is_tensor(value):
        return _is_numeric(value)
    if type(value) in _CONTAINERS:
        return all(map(is_plain, value))
    return type(value) is dict and all(is_plain(key) and is_plain(one) for key, one in value.items())


def pack(value: Any) -> bytes:
    """Plain values as bytes.

    >>> unpack(pack({"best": float("inf"), 2: [np.zeros(2)], "pair": (1, None), "seen": {3}}))
    {'best': inf, 2: [array([0., 0.])], 'pair': (1, None), 'seen': {3}}
    """
    arrays: list[Any] = []

    def array(kind: str, one: Any) -> dict[str, Any]:
        whole = np.asarray(one)
        # NumPy would write the others as nothing but bytes.
        bits = f"u{whole.dtype.itemsize}"
        arrays.append(whole.view(bits) if whole.dtype.name in _OF_TENSORFLOW else whole)
        return {kind: len(arrays) - 1, "dtype": whole.dtype.name}

    def laid(one: Any) -> Any:
        if isinstance(one, np.generic):
            return array("scalar", one)
        if isinstance(one, np.ndarray):
            return array("array", one)
        if _is_tensor(one):
            return array("tensor", one.numpy())
        if isinstance(one, bytes):
            return array("bytes", np.frombuffer(one, np.uint8))
        if isinstance(one, complex):
            return {"complex": [one.real, one.imag]}
        if isinstance(one, dict):
            return {"dict": [[laid(key), laid(entry)] for key, entry in one.items()]}
        if isinstance(one, _CONTAINERS):
            return {type(one).__name__: [laid(entry) for entry in one]}
        return one

    text = json.dumps(laid(value)).encode()
    # An archive of NumPy's takes half a millisecond to write and to read, and it begins with b"PK".
    if not arrays:
        return text
    room = io.BytesIO()
    np.savez(room, text=np.frombuffer(text, np.uint8), **{f"array_{place}": one for place, one in enumerate(arrays)})
    return room.getvalue()


def unpack(content: bytes) -> Any:
    """What `pack` was given."""
    if not content.startswith(b"PK"):
        return _value(json.loads(content), {})
    with np.load(io.BytesIO(content), allow_pickle=False) as found:
        return _value(json.loads(found["text"].tobytes()), found)


def _value(laid: Any, arrays: Mapping[str, Any]) -> Any:
    if not isinstance(laid, dict):
        return laid
    kind, content = next(iter(laid.items()))
    if kind in _ARRAYS:
        whole, dtype = arrays[f"array_{content}"], laid["dtype"]
        return _ARRAYS[kind](whole if whole.dtype.name == dtype else whole.view(tf.as_dtype(dtype).as_numpy_dtype))
    if kind == "complex":
        return complex(*content)
    if kind == "dict":
        return {_value(key, arrays): _value(entry, arrays) for key, entry in content}
    return _MAKE[kind](_value(entry, arrays) for entry in content)


_ARRAYS: dict[str, Callable[[Any], Any]] = {
    "array": lambda one: one,
    "scalar": lambda one: one[()],
    "tensor": tf.convert_to_tensor,
    "bytes": lambda one: one.tobytes(),
}
_MAKE: dict[str, Callable[[Any], Any]] = {one.__name__: one for one in _CONTAINERS}


# ---- attributes ------------------------------------------------------------------------------------------------------


def plain_attributes(holder: Any, *, without: Collection[str]) -> dict[str, Any]:
    """Those of an object that are plain, by name."""
    values = {name: _contents(value) for name, value in vars(holder).items() if name not in without}
    return {name: value for name, value in values.items() if is_plain(value)}


def put_attributes(holder: Any, attributes: dict[str, Any]) -> None:
    """Gives an object these attributes.

    A list, set or dictionary that is there is filled, and a variable assigned, as others may hold it too. What is there
    and not plain stays: a file that has been opened is this peer's.
    """
    for name, value in attributes.items():
        there: Any = getattr(holder, name, None)
        if not is_plain(_contents(there)):
            continue
        if _is_variable(there):
            there.assign(value)
        elif isinstance(there, list | deque) and type(value) is list:
            there.clear()
            there.extend(value)
        elif isinstance(there, dict | set) and type(value) in (dict, set) and isinstance(there, type(value)):
            there.clear()
            there.update(value)
        else:
            setattr(holder, name, value)


def _contents(value: Any) -> Any:
    """A plain value for one that is not, and that is filled again by `put_attributes`."""
    if _is_variable(value):
        return value.numpy()
    if isinstance(value, defaultdict | OrderedDict | Counter):
        return dict(value)
    return list(value) if isinstance(value, deque) else value


def _is_tensor(value: Any) -> bool:
    return isinstance(value, tf.Tensor) and hasattr(value, "numpy")


def _is_variable(value: Any) -> bool:
    return isinstance(value, tf.Variable | keras.Variable)


def _is_numeric(value: Any) -> bool:
    dtype = np.dtype(value.dtype.as_numpy_dtype if _is_tensor(value) else value.dtype)
    return dtype.kind in "biufc" or dtype.name in _OF_TENSORFLOW
