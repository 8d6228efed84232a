"""The registered values of the program, which are kept with model and optimizer, and its hooks on a rescale.

A Python value has a *mirror*, a variable of fixed shape: between two steps the value is read into its mirror, and the
program receives a new value if the other peers, or a checkpoint, hold another. So comparing, sending, averaging and
saving work on variables only. Hooks are called after a change of membership (Elan's RegisterHook).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import tensorflow as tf

from kungfu.errors import KungfuError, UsageError
from kungfu.training.graph.training_state import StateClasses
from kungfu.training.state.value_codec import ValueCodec, codec_of

Kind = Literal["shared", "averaged", "local"]
_NAME = re.compile(r"[A-Za-z0-9_.\-]+(/[A-Za-z0-9_.\-]+)*")


@dataclass
class _Mirrored:
    """A value of the program, its mirror, and the array last read into the mirror."""

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
        """Registers a variable, which is its own mirror; an error leaves the registry unchanged."""
        self._check(name, kind)
        _check_dtype(name, variable, kind)
        self._variables[name] = (kind, variable)

    def seal(self, existing: StateClasses) -> StateClasses:
        """Ends registration.

        Args:
            existing: The variables of the training state.

        Returns:
            The variables of all registered values, by class.

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
        """Reads the program's values into their mirrors."""
        for one in self._mirrored.values():
            one.read = one.codec.cast(one.get())
            one.mirror.assign(one.read)

    def accepted_value(self, name: str, value: Any, *, by: str) -> Any:
        """A copy of the value that the hook ``by`` sets for a registered name: the hook may change the original later.

        Raises:
            UsageError: No shared value has that name, or the new value does not fit it.
        """
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

    def put(self, name: str, value: Any) -> None:
        """Sets a registered value of the program."""
        _, variable = self._variables[name]
        if (mirrored := self._mirrored.get(name)) is None:
            variable.assign(np.asarray(value, variable.dtype.as_numpy_dtype))
        else:
            mirrored.put(mirrored.codec.value(mirrored.codec.cast(value)))

    def restore(self) -> None:
        """Returns mirrored values to the program if they differ from the values last read."""
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
        step: The steps done at the time of the change.
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
        """Adds a hook; raises ``UsageError`` if it is not callable."""
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
