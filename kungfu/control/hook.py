"""The `control` argument of a Python hook, which collects the hook's requests, as in listing 1 of the KungFu paper."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from operator import index
from typing import Any, Literal, get_args

from kungfu.control.action import Keep, Unit, checkpoint_name, ramp, ramp_to
from kungfu.errors import PolicyError

HookRequestKind = Literal[
    "rescale",
    "evict",
    "replace",
    "set_global_batch_size",
    "set_learning_rate",
    "synchronise",
    "stop",
    "checkpoint",
    "restore",
    "set_value",
]

_MOST = 1e6  # peers: larger than any job, and small enough for a message
_LEAST_RATE, _MOST_RATE = 2.0**-149, (2.0 - 2.0**-23) * 2.0**127  # an optimizer's rate is a float32


@dataclass(frozen=True)
class HookRequest:
    """One request of a hook to the barrier.

    Args:
        kind: The name of the called method of `Control`.
        value: Peers, samples, a learning rate, steps from one average of models to the next, or the new content of a
            registered value; NaN for other requests.
        keep: The batch size that a rescale keeps.
        ranks: The peers to remove or replace.
        ramp_length: The length of a learning rate's ramp, in `unit`.
        unit: The unit of `ramp_length`.
        name: The name of the registered value to set, or of the checkpoint.
        batch: The global batch size that comes with the peers of a rescale; NaN if none is requested.
        rate: The learning rate that comes with the peers of a rescale; NaN if none is requested.
    """

    kind: HookRequestKind
    value: Any = math.nan
    keep: Keep = "local_batch_size"
    ranks: tuple[int, ...] = ()
    ramp_length: float = 0.0
    unit: Unit = "steps"
    name: str = ""
    batch: float = math.nan
    rate: float = math.nan

    @property
    def has_settings(self) -> bool:
        """True for a rescale with which a batch or a learning rate comes."""
        return not (math.isnan(self.batch) and math.isnan(self.rate))

    def __str__(self) -> str:
        """The request as text.

        Returns:
            The request as a call of a method of `Control`.

        >>> str(HookRequest("evict", ranks=(1, 2))), str(HookRequest("rescale", 4))
        ('evict([1, 2])', 'rescale(4)')
        """
        if self.kind in ("evict", "replace"):
            return f"{self.kind}({list(self.ranks)})"
        if self.kind == "set_value":
            return f"set_value({self.name!r}, {self.value!r})"
        if self.kind in ("checkpoint", "restore"):
            return f"{self.kind}({repr(self.name) if self.name else ''})"
        keep = f", keep={self.keep!r}" if self.keep == "global_batch_size" else ""
        beside = "".join(
            f", {name}={one:g}" for name, one in (("batch", self.batch), ("rate", self.rate)) if not math.isnan(one)
        )
        over = f", over_{self.unit}={self.ramp_length:g}" if self.ramp_length else ""
        value = "" if self.kind == "stop" else f"{'every=' * (self.kind == 'synchronise')}{self.value:g}"
        return f"{self.kind}({value}{keep}{beside}{over})"


class Control:
    """The first argument of a hook: ``kf.control.every(n).call(fn, *signals)`` calls ``fn(control, *values)``.

    The hook runs inside a barrier, on every peer, with the same values in the order of the signals: whole numbers
    (int64) as ``int``, all others as ``float``. Each method makes the same request as the rule of that name. The
    requests are carried out in this barrier, in the order of the policies; only the requests of the call on rank 0
    count. The last of several calls of one method counts, but peers to evict or to replace accumulate. A number that is
    not finite requests nothing: an earlier request remains, and the record shows the call.

    The return value of a hook is ignored, and an error that it raises ends the job. In the last step a hook can request
    only checkpoints to write or to restore and new values, since no step follows; the record shows ignored requests.

    Attributes:
        size: The number of peers when the rule fired.
        step: The step in which the rule fired.
        passed_over: The last call that requested nothing, as text.

    >>> def grow(control, noise):
    ...     if noise > 100 * control.size:
    ...         control.rescale(control.size + 1)
    >>> control = Control(size=2, step=50)
    >>> grow(control, 250.0)
    >>> control.wanted
    3
    """

    def __init__(self, *, size: int, step: int) -> None:
        self.size, self.step = size, step
        self.passed_over = ""
        self._asked: dict[tuple[HookRequestKind, str], HookRequest] = {}

    @property
    def requests(self) -> tuple[HookRequest, ...]:
        """The requests made in the hook so far, in the order of the first call of each request method."""
        return tuple(self._asked.values())

    @property
    def wanted(self) -> int | None:
        """The size that the hook has requested; ``None`` if it has not requested a size."""
        asked = self._asked.get(("rescale", ""))
        return None if asked is None else int(asked.value)

    def barrier(self) -> None:
        """Does nothing: a hook is only called while all peers are between the same two steps."""

    def rescale(
        self,
        peers: float,
        *,
        keep: Keep = "local_batch_size",
        batch: float | None = None,
        rate: float | None = None,
        over_steps: float | None = None,
        over_samples: float | None = None,
    ) -> None:
        """Requests a cluster of `peers` peers, rounded and clipped to the job's limits, as a rule's `rescale` does.

        Args:
            peers: The number of peers; below one, the job's minimum is requested.
            keep: The batch size that does not change, unless `batch` comes into force.
            batch: The global batch size, in samples, that comes into force together with the peers.
            rate: The learning rate that comes into force together with the peers.
            over_steps: Length of the ramp to `rate` in steps.
            over_samples: Length of the ramp to `rate` in samples over all peers.

        Raises:
            PolicyError: An argument is not a number, `keep` is not a batch size, or a ramp is given without a rate, or
                with two lengths.
        """
        if keep not in get_args(Keep):
            raise PolicyError(f"control.rescale(keep={keep!r}): write one of {', '.join(get_args(Keep))}")
        length, unit = ramp_to(rate, over_steps=over_steps, over_samples=over_samples, method="control.rescale")
        number = self._number(peers, method="rescale", of="peers, as in rescale(4)")
        samples = self._beside(batch, "batch=", of="samples, as in rescale(4, batch=256)", least=0.5)
        chosen = self._beside(rate, "rate=", of="the rate, as in rescale(4, rate=0.1)", least=_LEAST_RATE)
        if number is None or samples is None or chosen is None:
            return
        size = round(min(max(number, 1.0), _MOST))
        self._ask(HookRequest("rescale", size, keep, ramp_length=length, unit=unit, batch=samples, rate=chosen))

    def set_global_batch_size(self, samples: float) -> None:
        """Requests a global batch of `samples` samples, rounded, and clipped: at least one per peer, at most an epoch.

        Args:
            samples: The number of samples; a number not above 0 requests nothing.

        Raises:
            PolicyError: `samples` is not a number.
        """
        number = self._number(samples, method="set_global_batch_size", of="samples, as in set_global_batch_size(256)")
        if number is not None and number <= 0:
            self._pass_over(f"set_global_batch_size({number:g})")
        elif number is not None:
            self._ask(HookRequest("set_global_batch_size", float(round(number))))

    def set_learning_rate(
        self, rate: float, *, over_steps: float | None = None, over_samples: float | None = None
    ) -> None:
        """Requests a learning rate, reached at once or at the end of a linear ramp, like a rule's `set_learning_rate`.

        Args:
            rate: The learning rate; a rate not above 0, or out of the range of float32, requests nothing.
            over_steps: Length of the ramp in steps.
            over_samples: Length of the ramp in samples over all peers.

        Raises:
            PolicyError: `rate` is not a number, both lengths are given, or a length is negative.
        """
        length, unit = ramp(over_steps=over_steps, over_samples=over_samples)
        number = self._number(rate, method="set_learning_rate", of="the rate, as in set_learning_rate(0.01)")
        if number is not None and not _LEAST_RATE <= number <= _MOST_RATE:
            self._pass_over(f"set_learning_rate({number:g})")
        elif number is not None:
            self._ask(HookRequest("set_learning_rate", number, ramp_length=length, unit=unit))

    def synchronise(self, *, every: float) -> None:
        """Requests an average of models every `every` steps, as a rule's `synchronise` does.

        Args:
            every: The number of steps, rounded; a number not above 0 requests nothing.

        Raises:
            PolicyError: `every` is not a number. In the barrier, `UsageError` if the run averages gradients.
        """
        number = self._number(every, method="synchronise", of="steps, as in synchronise(every=16)", argument="every=")
        if number is not None and number <= 0:
            self._pass_over(f"synchronise(every={number:g})")
        elif number is not None:
            self._ask(HookRequest("synchronise", max(1.0, float(round(number)))))

    def stop(self) -> None:
        """Requests the end of the training on all peers."""
        self._ask(HookRequest("stop"))

    def checkpoint(self, name: str = "") -> None:
        """Requests a checkpoint of the state before the next step; for ``name`` see a rule's `checkpoint`.

        Raises:
            PolicyError: The name cannot be that of a folder, or belongs to kungfu.
        """
        self._ask(HookRequest("checkpoint", name=checkpoint_name(name, method="control.checkpoint") if name else ""))

    def restore(self, name: str) -> None:
        """Requests that model and optimizers are restored from a named checkpoint, like a rule's `restore`.

        Raises:
            PolicyError: The name cannot be that of a checkpoint.
        """
        self._asked["restore", ""] = HookRequest("restore", name=checkpoint_name(name, method="control.restore"))

    def evict(self, ranks: int | Iterable[int]) -> None:
        """Requests the permanent removal of peers, down to the job's minimum.

        Args:
            ranks: One rank or several, each from 0 to ``size - 1``.

        Raises:
            PolicyError: A rank is out of range.
        """
        self._let_go("evict", ranks)

    def replace(self, ranks: int | Iterable[int]) -> None:
        """Requests the replacement of each of these peers when a new peer is ready; `ranks` as for `evict`."""
        self._let_go("replace", ranks)

    def set_value(self, name: str, value: Any) -> None:
        """Sets a shared value of the program, registered by ``training.register``, on all peers.

        The value takes effect before the next step. If the calls on the peers give different values, rank 0's value is
        used, or after a rescale the value of the peer whose state all others copy. But a hook must set the value on
        every peer: if another peer's hook sets it and rank 0's hook does not, the job ends with a `UsageError`.

        Args:
            name: The registered name.
            value: A value of the registered type and shape; it is copied when the hook returns.

        Raises:
            PolicyError: The name is not a string. Later, `UsageError` if no shared value has this name, or the value
                does not fit.
        """
        if not isinstance(name, str):
            raise PolicyError(f"control.set_value({name!r}, ...): takes the name that training.register was given")
        self._ask(HookRequest("set_value", value, name=name))

    def _let_go(self, kind: Literal["evict", "replace"], ranks: int | Iterable[int]) -> None:
        try:
            named = {index(one) for one in (ranks if isinstance(ranks, Iterable) else (ranks,))}
        except TypeError as error:
            raise PolicyError(f"control.{kind}({ranks!r}): takes ranks, as in {kind}([1, 3])") from error
        strange = sorted(one for one in named if not 0 <= one < self.size)
        if strange:
            there = f"there is no rank {strange[0]}; ranks are 0 to {self.size - 1}"
            raise PolicyError(f"control.{kind}({ranks!r}): {there}")
        before = self._asked.get((kind, ""))
        named |= set(before.ranks) if before is not None else set()
        if named:
            self._ask(HookRequest(kind, ranks=tuple(sorted(named))))

    def _number(self, value: Any, *, method: str, of: str, argument: str = "") -> float | None:
        """The number, or ``None`` if it is not finite and thus requests nothing."""
        try:
            number = float(value)
        except OverflowError:  # a whole number too large for a float
            number = math.inf
        except (TypeError, ValueError) as error:
            what = f"{value!r}, a {type(value).__name__}"
            raise PolicyError(f"control.{method} was given {what}; give a number of {of}") from error
        if math.isfinite(number):
            return number
        self._pass_over(f"{method}({argument}{number})")
        return None

    def _beside(self, value: Any, argument: str, *, of: str, least: float) -> float | None:
        """The number that comes with a size, NaN if none is given; ``None`` if the call thereby requests nothing."""
        if value is None:
            return math.nan
        number = self._number(value, method="rescale", of=of, argument=argument)
        if number is None or least <= number <= _MOST_RATE:
            return number
        self._pass_over(f"rescale({argument}{number:g})")
        return None

    def _pass_over(self, call: str) -> None:
        self.passed_over = f"{call} asks for nothing"

    def _ask(self, request: HookRequest) -> None:
        self._asked[request.kind, request.name] = request
