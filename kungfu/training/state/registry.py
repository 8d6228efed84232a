"""The program's registered values, which are part of the training state, and the program's hooks on a rescale.

A Python value has a *mirror*, a variable of fixed shape: between two steps the value is read into its mirror, and the
program receives a new value if the other peers, or a checkpoint, have a different value. So comparing, sending,
averaging and saving work on variables only. Hooks are called after a change of membership (Elan's RegisterHook).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import tensorflow as tf

from kungfu.errors import KungfuError, UsageError
from kungfu.training.graph.training_state import StateClasses

Kind = Literal["shared", "averaged", "local"]
_NAME = re.compile(r"[A-Za-z0-9_.\-]+(/[A-Za-z0-9_.\-]+)*")

_Form = Literal["bool", "int", "float", "array", "bytes", "text"]
_SCALARS: dict[_Form, Any] = {"bool": np.bool_, "int": np.int64, "float": np.float64}
_LENGTH_BYTES = 8
_ALLOWED = "a bool, int, float, NumPy array of numbers, bytes, or what JSON knows (None, str, list, dict with str keys)"


@dataclass(frozen=True)
class ValueCodec:
    """The conversion between a registered value and its array of fixed shape, for comparing, sending and saving.

    ``scalar``: the value is a NumPy scalar. Nothing is pickled: content from a peer or a disk is data, never code.

    | value                                | array                                             |
    | ------------------------------------ | ------------------------------------------------- |
    | ``bool``, ``int``, ``float``         | bool, int64, float64 without dimensions           |
    | NumPy array or scalar of numbers     | itself; shape and dtype never change              |
    | ``bytes``                            | uint8: eight bytes of length, content, zeros      |
    | ``None``, ``str``, ``list``, ``dict`` | as ``bytes``, with JSON text; dict keys are sorted strings |
    """

    name: str
    form: _Form
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    scalar: bool = False

    def cast(self, value: Any) -> np.ndarray[Any, Any]:
        """Converts a value to an array; raises ``UsageError`` for another form, shape or dtype, or a value too long."""
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
        """Converts an array, made with ``cast`` by this or another peer, back to the value."""
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
    """Creates the codec for values of the same form as the first value.

    Args:
        name: The registered name of the value, for errors.
        value: The first value; later values must have its form, shape and dtype.
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
    """A number as an array without dimensions; an empty array for a value that is not a number."""
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


@dataclass
class _Mirrored:
    """A registered Python value, its mirror (a variable of fixed shape), and the array last read into the mirror."""

    get: Callable[[], Any]
    put: Callable[[Any], None]
    codec: ValueCodec
    mirror: tf.Variable
    read: np.ndarray[Any, Any]


@dataclass
class Registry:
    """The registered values of one peer, with the same names in the same order on all peers.

    Args:
        is_sealed: True once the first step has begun: no more values can be registered.
    """

    is_sealed: bool = False
    _variables: dict[str, tuple[Kind, tf.Variable]] = field(default_factory=dict)
    _mirrored: dict[str, _Mirrored] = field(default_factory=dict)

    def register(self, name: str, get: Any, put: Any, *, kind: Kind, room_bytes: int) -> None:
        """Registers a Python value; see ``Training.register``. An error leaves the registry unchanged."""
        if isinstance(get, tf.Variable):
            if put is not None:
                raise UsageError(
                    f"training.register({name!r}): a tf.Variable is read and written by itself; leave out set"
                )
            self.register_variable(name, get, kind=kind)
            return
        self._check(name, kind)
        mirrored = _mirrored(name, get, put, room_bytes=room_bytes)
        _check_dtype(name, mirrored.mirror, kind)
        self._mirrored[name] = mirrored
        self._variables[name] = (kind, mirrored.mirror)

    def register_variable(self, name: str, variable: tf.Variable, *, kind: Kind) -> None:
        """Registers a variable, which needs no other variable as a mirror; an error leaves the registry unchanged."""
        self._check(name, kind)
        _check_dtype(name, variable, kind)
        self._variables[name] = (kind, variable)

    def seal(self, existing: StateClasses) -> StateClasses:
        """Ends registration.

        Args:
            existing: The variables of the training state.

        Returns:
            The variables of all registered values, in the classes of `StateClasses`.

        Raises:
            UsageError: A registered variable is already part of the training state.
        """
        self.is_sealed = True
        known = {id(one): name for name, one in existing.all().items()}
        for name, (_, variable) in self._variables.items():
            if id(variable) in known:
                raise UsageError(
                    f"training.register({name!r}): the variable is {known[id(variable)]!r}, which goes along anyway"
                )
        classes = [self.of(kind).items() for kind in get_args(Kind)]
        return StateClasses(*({f"registered/{name}": one for name, one in each} for each in classes))

    @property
    def has_agreed_values(self) -> bool:
        """True if any registered value belongs to the job rather than to each peer."""
        return any(kind != "local" for kind, _ in self._variables.values())

    def of(self, kind: Kind) -> dict[str, tf.Variable]:
        """The variables of one kind, by registered name, in the order of registration."""
        return {name: one for name, (its, one) in self._variables.items() if its == kind}

    def described(self) -> list[str]:
        """A text for each registered value with the properties that must be equal on all peers."""
        return [
            f"{name!r}, {kind}, {one.dtype.name}{tuple(one.shape)}" for name, (kind, one) in self._variables.items()
        ]

    def collect(self) -> None:
        """Reads the program's values into their mirrors, which are variables of fixed shape."""
        for one in self._mirrored.values():
            one.read = one.codec.cast(one.get())
            one.mirror.assign(one.read)

    def accepted_value(self, name: str, value: Any, *, by: str) -> Any:
        """A copy of the value that the hook ``by`` sets for a registered name: the hook may change the original later.

        Raises ``UsageError`` if no shared value has that name, or the new value does not fit it."""
        shared = self.of("shared")
        if name not in shared:
            known = ", ".join(map(repr, shared)) or "none"
            raise UsageError(
                f"hook {by!r} called control.set_value({name!r}, ...): no shared value of that name is registered; "
                f"there are {known}: register it with training.register({name!r}, get, set)"
            )
        if (mirrored := self._mirrored.get(name)) is not None:
            try:
                return mirrored.codec.value(mirrored.codec.cast(value))
            except UsageError as error:
                raise UsageError(f"hook {by!r} called control.set_value({name!r}, {value!r}): {error}") from error
        variable, given = shared[name], np.asarray(value)
        kind = variable.dtype.as_numpy_dtype
        if given.shape != tuple(variable.shape) or not _fits(given, np.dtype(kind)):
            raise UsageError(
                f"hook {by!r} called control.set_value({name!r}, {value!r}): the variable is "
                f"{variable.dtype.name}{tuple(variable.shape)}, and this is {given.dtype.name}{given.shape}"
            )
        return np.array(given, kind)

    def number(self, name: str, value: float) -> Any:
        """The value for `put` that a number has as the registered value `name`: rounded for a whole number.

        Raises ``UsageError`` if no shared value has that name, or the value is not a number."""
        variable, mirrored = self.of("shared").get(name), self._mirrored.get(name)
        is_number = variable is not None and not variable.shape.rank and not variable.dtype.is_complex
        if variable is None or not is_number or (mirrored is not None and mirrored.codec.form in ("bytes", "text")):
            known = ", ".join(map(repr, self.of("shared"))) or "none"
            raise UsageError(
                f"no shared number of that name is registered (of shared values there are {known}); register it with "
                f"training.register({name!r}, variable), or with a function that gives the number and one that takes it"
            )
        number = np.asarray(round(value) if variable.dtype.is_integer else value, variable.dtype.as_numpy_dtype)
        return number if mirrored is None else mirrored.codec.value(number)

    def put(self, name: str, value: Any) -> None:
        """Sets a registered value of the program."""
        _, variable = self._variables[name]
        if (mirrored := self._mirrored.get(name)) is None:
            variable.assign(np.asarray(value, variable.dtype.as_numpy_dtype))
        else:
            mirrored.put(mirrored.codec.value(mirrored.codec.cast(value)))

    def restore(self) -> None:
        """Writes variables of the state back to the program's values, where they changed since they were read."""
        for one in self._mirrored.values():
            array = one.mirror.numpy()
            # Compared bitwise, so that an unchanged NaN is not set again at every barrier.
            if array.tobytes() != one.read.tobytes():
                one.put(one.codec.value(array))
                one.read = array

    def _check(self, name: str, kind: Kind) -> None:
        if self.is_sealed:
            raise UsageError(
                f"training.register({name!r}) was called after training had begun, or was resumed: a peer that joins "
                "runs the program from its top, so register everything between kf.attach() and the first step"
            )
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise UsageError(f"training.register({name!r}): a name is made of letters, digits, and any of _ . - /")
        if name in self._variables:
            raise UsageError(f"training.register({name!r}) was called twice: names are those in the digest, each once")
        if kind not in get_args(Kind):
            raise UsageError(f"training.register({name!r}, kind={kind!r}): must be one of {', '.join(get_args(Kind))}")


def _fits(given: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> bool:
    """True if numbers keep their values in this dtype: integers exactly, floats up to rounding."""
    if given.dtype.kind in "iu" and dtype.kind in "iu":
        room = np.iinfo(dtype)
        return bool(np.all((given >= room.min) & (given <= room.max)))
    return np.can_cast(given.dtype, dtype, "same_kind")


def _mirrored(name: str, get: Any, put: Any, *, room_bytes: int) -> _Mirrored:
    if not callable(get) or not callable(put):
        raise UsageError(
            f"training.register({name!r}, {get!r}, {put!r}): takes a tf.Variable, or two functions: get() gives the "
            "value, set(value) takes another"
        )
    if not isinstance(room_bytes, int) or not 1 <= room_bytes <= 1 << 30:
        raise UsageError(f"training.register({name!r}, room_bytes={room_bytes!r}): must be from 1 to {1 << 30}")
    value = get()
    codec = codec_of(name, value, room_bytes=room_bytes)
    read = codec.cast(value)
    with tf.device("/CPU:0"):
        mirror = tf.Variable(read, trainable=False, name=f"kungfu/registered/{name}")
    return _Mirrored(get, put, codec, mirror, read)


def _check_dtype(name: str, variable: tf.Variable, kind: Kind) -> None:
    if not variable.shape.is_fully_defined() or variable.dtype.size == 0 or variable.dtype in (tf.string, tf.resource):
        raise UsageError(
            f"training.register({name!r}): the variable is {variable.dtype.name}{variable.shape}; it must hold "
            "numbers, in a shape that is known"
        )
    if kind == "averaged" and not variable.dtype.is_floating:
        raise UsageError(
            f"training.register({name!r}, kind='averaged'): the value is {variable.dtype.name}, which has no mean; "
            "register floating arrays, or another kind"
        )


# ---- hooks on a change of membership ---------------------------------------------------------------------------------

Change = Literal["joined", "grew", "shrank", "exchanged", "recovered"]


@dataclass(frozen=True)
class Rescaled:
    """A change of membership, from the perspective of one peer.

    Args:
        change: "grew", "shrank", "exchanged" (as many peers joined as left), "recovered" (peers were lost), or "joined"
            (this peer has just joined).
        size_before: The size of the previous view; 0 on a peer that has just joined.
        size: The size of the new view.
        rank: This peer's rank in the new view.
        step: The number of steps done at the time of the change.
    """

    change: Change
    size_before: int
    size: int
    rank: int
    step: int


@dataclass
class RescaleHooks:
    """The hooks of one peer, called in the order in which they were added."""

    _functions: list[Callable[[Rescaled], Any]] = field(default_factory=list)

    def add(self, function: Callable[[Rescaled], Any]) -> None:
        """Adds a hook; raises ``UsageError`` if the hook is not callable."""
        if not callable(function):
            raise UsageError(f"training.on_rescale({function!r}): takes a function of one argument, what has changed")
        self._functions.append(function)

    def call(self, rescaled: Rescaled) -> None:
        """Calls all hooks; an exception in a hook becomes a ``UsageError`` with the hook's name."""
        for function in self._functions:
            try:
                function(rescaled)
            except KungfuError:  # the hook misused kungfu, and the error already explains how
                raise
            except Exception as error:
                name = getattr(function, "__qualname__", repr(function))
                raise UsageError(
                    f"the hook {name} of training.on_rescale, called with {rescaled}, raised "
                    f"{type(error).__name__}: {error}"
                ) from error


def change_of(size_before: int, size: int, *, recovered: bool) -> Change:
    """The name of a change of membership, on a peer of the previous view.

    >>> change_of(2, 3, recovered=False), change_of(3, 2, recovered=True)
    ('grew', 'recovered')
    """
    if recovered:
        return "recovered"
    return "exchanged" if size == size_before else "grew" if size > size_before else "shrank"
