"""The values that a user may register, and their form as arrays of fixed shape for comparing, sending and saving.

| value                                | array                                             |
| ------------------------------------ | ------------------------------------------------- |
| ``bool``, ``int``, ``float``         | bool, int64, float64 without dimensions           |
| NumPy array or scalar of numbers     | itself; shape and dtype never change              |
| ``bytes``                            | uint8: eight bytes of length, content, zeros      |
| ``None``, ``str``, ``list``, ``dict`` | as ``bytes``, with JSON text; dict keys are sorted strings |

Nothing is pickled: content from another peer or a disk is data, never code.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from kungfu.errors import UsageError

_Form = Literal["bool", "int", "float", "array", "bytes", "text"]
_SCALARS: dict[_Form, Any] = {"bool": np.bool_, "int": np.int64, "float": np.float64}
_LENGTH_BYTES = 8
_ALLOWED = "a bool, int, float, NumPy array of numbers, bytes, or what JSON knows (None, str, list, dict with str keys)"


@dataclass(frozen=True)
class ValueCodec:
    """The conversion between a registered value and its array; ``scalar``: the value is a NumPy scalar."""

    name: str
    form: _Form
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    scalar: bool = False

    def cast(self, value: Any) -> np.ndarray[Any, Any]:
        """Converts a value to an array; raises ``UsageError`` if form, shape or dtype differ, or if it is too long."""
        # Variable length up to the reserved room: the length comes first, zeros fill the rest.
        if self.form in ("bytes", "text"):
            content = self._content(value)
            room = self.shape[0] - _LENGTH_BYTES
            if len(content) > room:
                raise UsageError(
                    f"the value of {self.name!r} takes {len(content)} bytes and has room for {room}: give "
                    f"training.register(..., room_bytes={2 * len(content)}), the same on all peers"
                )
            laid = len(content).to_bytes(_LENGTH_BYTES, "little") + content
            return np.frombuffer(laid.ljust(self.shape[0], b"\0"), np.uint8)
        # Form, shape and dtype must never change: the mirror is a variable.
        form = _form_of(value)
        array = np.asarray(value) if form == "array" else _number(self.name, value)
        if (form, array.shape, array.dtype) != (self.form, self.shape, self.dtype):
            was, now = _described(self.form, self.dtype, self.shape), _described(form, array.dtype, array.shape)
            raise UsageError(
                f"the value of {self.name!r} was {was} when it was registered and is {now}: it must stay so"
            )
        return array

    def value(self, array: np.ndarray[Any, Any]) -> Any:
        """Converts an array that this or another peer made with ``cast`` back to the value."""
        if self.form == "array":
            return array[()] if self.scalar else array.copy()
        if self.form in _SCALARS:
            return array.item()
        laid = array.tobytes()
        content = laid[_LENGTH_BYTES : _LENGTH_BYTES + int.from_bytes(laid[:_LENGTH_BYTES], "little")]
        return content if self.form == "bytes" else json.loads(content)

    def _content(self, value: Any) -> bytes:
        if self.form == "bytes":
            if not isinstance(value, bytes):
                raise UsageError(f"the value of {self.name!r} was bytes when it was registered and is {value!r}")
            return value
        _check_text(self.name, value)
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def codec_of(name: str, value: Any, *, room_bytes: int) -> ValueCodec:
    """The codec for values like this one.

    Args:
        name: The registered name of the value, for errors.
        value: The first value; later ones must have its form, shape and dtype.
        room_bytes: The maximum number of bytes of a ``bytes`` value, or of the JSON text.

    Raises:
        UsageError: The value cannot be registered.

    >>> codec = codec_of("best", {"loss": 0.5, "step": 12}, room_bytes=64)
    >>> codec.shape, codec.value(codec.cast({"step": 13, "loss": 0.25}))
    ((72,), {'loss': 0.25, 'step': 13})
    """
    form = _form_of(value)
    if form in ("bytes", "text"):
        codec = ValueCodec(name, form, (room_bytes + _LENGTH_BYTES,), np.dtype(np.uint8))
    elif form == "array":
        array = np.asarray(value)
        if array.dtype.kind not in "biufc":
            raise UsageError(f"training.register({name!r}): get() gives an array of {array.dtype}; register {_ALLOWED}")
        codec = ValueCodec(name, form, array.shape, array.dtype, scalar=isinstance(value, np.generic))
    else:
        codec = ValueCodec(name, form, (), np.dtype(_SCALARS[form]))
    codec.cast(value)
    return codec


def _form_of(value: Any) -> _Form:
    if isinstance(value, np.ndarray | np.generic):
        return "array"
    if isinstance(value, bool):  # before int, since bool is a subclass of int
        return "bool"
    if isinstance(value, int):
        return "int"
    if isinstance(value, float):
        return "float"
    return "bytes" if isinstance(value, bytes) else "text"


def _number(name: str, value: Any) -> np.ndarray[Any, Any]:
    """An array without dimensions; an empty array for text, which marks it as not a number."""
    form = _form_of(value)
    if form == "int" and not -(1 << 63) <= value < 1 << 63:
        raise UsageError(f"the value of {name!r} is {value}: a whole number has 64 bits")
    return np.asarray(value, _SCALARS[form]) if form in _SCALARS else np.zeros(0)


def _check_text(name: str, value: Any) -> None:
    """Refuses values that JSON would return in another form (a tuple, a dict key that is a number)."""
    if type(value) is list or (type(value) is dict and all(type(key) is str for key in value)):
        for entry in value if isinstance(value, list) else value.values():
            _check_text(name, entry)
    elif value is not None and type(value) not in (bool, int, float, str):
        raise UsageError(f"training.register({name!r}): get() gives {value!r}; register {_ALLOWED}")


def _described(form: _Form, dtype: np.dtype[Any], shape: tuple[int, ...]) -> str:
    return f"an array {dtype}{list(shape)}" if form == "array" else "JSON" if form == "text" else form
