"""Plain values, which a peer can send to another: numbers, texts, arrays, and containers of these.

They are sent as MessagePack with references to arrays, so no code is transferred. An object's attribute is plain if its
value is plain; if it is a variable, the value of the variable counts.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection
from typing import Any

import keras
import msgspec
import numpy as np
import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.training.state.registered_sync import PeerGroup

_CONTAINERS = (list, tuple, set, frozenset)
_OF_TENSORFLOW = ("bfloat16", "float8_e4m3fn", "float8_e5m2")  # types that NumPy lacks
_SCALARS: dict[type, Callable[[Any], Any]] = {bool: bool, int: int, float: float, bytes: bytes}  # also of subclasses
_LENGTH_BYTES = 8


def is_plain(value: Any) -> bool:
    """True if `pack` accepts the value.

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
    """Plain values as bytes: the length of a head, the head in MessagePack, and the arrays that the head refers to.

    >>> unpack(pack({"best": float("inf"), 2: [np.zeros(2)], "pair": (1, None), "seen": {3}}))
    {'best': inf, 2: [array([0., 0.])], 'pair': (1, None), 'seen': {3}}
    """
    arrays, end = list[np.ndarray[Any, Any]](), 0

    def laid(one: Any) -> Any:
        nonlocal end
        if isinstance(one, np.generic | np.ndarray) or _is_tensor(one):
            kind = "scalar" if isinstance(one, np.generic) else "array" if isinstance(one, np.ndarray) else "tensor"
            array, offset = np.asarray(one), end
            arrays.append(array)
            end += array.nbytes
            # TensorFlow's types by name, others by code, which includes the byte order.
            name = array.dtype.name if array.dtype.name in _OF_TENSORFLOW else array.dtype.str
            return _extension(kind, (name, array.shape, offset))
        if isinstance(one, complex):
            return _extension("complex", (one.real, one.imag))
        if isinstance(one, dict):
            return _extension("dict", [(laid(key), laid(entry)) for key, entry in one.items()])
        if isinstance(one, _CONTAINERS):
            entries = [laid(entry) for entry in one]
            return entries if isinstance(one, list) else _extension(type(one).__name__, entries)
        if isinstance(one, int) and not -(1 << 63) <= one < 1 << 63:
            return _extension("int", str(int(one)))
        if isinstance(one, str):
            text = one.encode(errors="surrogatepass")  # a path may contain bytes that are not text
            return str.__str__(one) if text.decode(errors="ignore") == one else _extension("text", text)
        return next((make(one) for kind, make in _SCALARS.items() if isinstance(one, kind)), one)

    head = msgspec.msgpack.encode(laid(value))
    return b"".join((len(head).to_bytes(_LENGTH_BYTES, "little"), head, *(one.tobytes() for one in arrays)))


def unpack(content: bytes) -> Any:
    """The values packed by ``pack``; ``UsageError`` if another version of kungfu, as of an old checkpoint, did it."""
    start = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "little")

    def made(code: int, data: Any) -> Any:
        kind, parts = _KINDS[code], decoded(data)
        if kind in _ARRAYS:
            name, shape, offset = parts
            dtype = np.dtype(tf.as_dtype(name).as_numpy_dtype if name in _OF_TENSORFLOW else name)
            # An array of objects would interpret these bytes as addresses.
            if dtype.hasobject:
                raise ValueError(f"an array of {dtype} is not plain")
            return _ARRAYS[kind](np.ndarray(shape, dtype, content, start + offset).copy())
        return _MAKE[kind](parts)

    def decoded(data: Any) -> Any:
        return msgspec.msgpack.decode(data, ext_hook=made)

    try:
        if not _LENGTH_BYTES < start <= len(content):
            raise ValueError("it has no head")
        return decoded(content[_LENGTH_BYTES:start])
    except (ValueError, IndexError, TypeError) as error:
        raise UsageError(
            f"what is kept of a fit is not as this version of kungfu packs it ({error}): resume a checkpoint with the "
            "version that wrote it, which packed this as JSON or as an archive of NumPy before"
        ) from error


def agreed(group: PeerGroup, own: Any, *, rank: int = 0) -> Any:
    """Returns one rank's plain values on all peers of the view; costs one message, or two for large values."""
    return unpack(group.from_rank(rank, pack(own) if group.rank == rank else b""))


def _extension(kind: str, parts: Any) -> msgspec.msgpack.Ext:
    """Encodes the parts of a value whose kind MessagePack lacks, such as a tuple or an array."""
    return msgspec.msgpack.Ext(_KINDS.index(kind), msgspec.msgpack.encode(parts))


_ARRAYS: dict[str, Callable[[Any], Any]] = {
    "array": lambda one: one,
    "scalar": lambda one: one[()],
    "tensor": tf.convert_to_tensor,
}
_MAKE: dict[str, Callable[[Any], Any]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "dict": dict,
    "complex": lambda parts: complex(*parts),
    "int": int,
    "text": lambda text: text.decode(errors="surrogatepass"),
}
_KINDS = (*_ARRAYS, *_MAKE)  # a kind is written as its index here


def plain_attributes(holder: Any, *, without: Collection[str]) -> dict[str, Any]:
    """The plain attributes of an object, by name."""
    values = {name: _contents(value) for name, value in vars(holder).items() if name not in without}
    return {name: value for name, value in values.items() if is_plain(value)}


def put_attributes(holder: Any, attributes: dict[str, Any]) -> None:
    """Sets the plain attributes of ``holder``, an object.

    Containers are filled and variables assigned in place, as other objects may refer to them. An attribute that is not
    plain, such as an open file, stays unchanged.
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
    """The plain contents of a container or variable, in the form from which `put_attributes` restores them."""
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
