"""Actions: the requests of a rule that fires, as pure values; the training layer and the runtime carry them out."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from kungfu.errors import PolicyError
from kungfu.signal import Signal

Keep = Literal["local_batch_size", "global_batch_size"]
"""The batch size that a rescale keeps: each peer's (the global batch size then follows the size), or the global one."""
Unit = Literal["steps", "samples"]
Setting = str
"""A quantity of the job that a rule sets: "size", "global batch size", "learning rate", "averaging interval", or
"value of 'name'"."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True, eq=False)
class Rescale:
    """Requests another size of the cluster.

    Attributes:
        target: The number of peers: float32, equal on all peers, whole, within the limits; NaN requests nothing.
        keep: The batch size that does not change: "local_batch_size" or "global_batch_size".
        max_global_batch: The maximum number of samples of a step if the local batch size is kept; 0 for no limit.
        batch: The global batch size that comes with the peers, in samples; NaN or ``None`` for that of `keep`.
        rate: The learning rate that comes with the peers; NaN or ``None`` for the present one.
        ramp_length: The length of the ramp to `rate` in `unit`, as for `SetLearningRate`.
        unit: Steps, or samples over all peers.
    """

    target: Signal
    keep: Keep
    max_global_batch: int = 0
    batch: Signal | None = None
    rate: Signal | None = None
    ramp_length: float = 0.0
    unit: Unit = "steps"


@dataclass(frozen=True, eq=False)
class SetGlobalBatchSize:
    """Requests a global batch of `target` samples.

    `target` is a float32 scalar: whole, at least one sample per peer, equal on all peers; NaN requests nothing."""

    target: Signal


@dataclass(frozen=True, eq=False)
class SetLearningRate:
    """Requests a learning rate that is reached at the end of a ramp.

    With ``T_0`` the last step before the decision is carried out, ``lr_0`` its rate, and T = `ramp_length` in `unit`,
    ``lr_t = lr_0 + (t - T_0) / T * (target - lr_0)`` until ``t = T_0 + T``, and `target` afterwards. With T = 0 the
    rate changes at once. If the optimizer has a schedule, the schedule is multiplied by ``lr_t / lr_0`` instead.

    Attributes:
        target: The rate: float32, equal on all peers, above 0; NaN requests nothing.
        ramp_length: Length of the ramp in `unit`, at least 0.
        unit: Steps, or samples over all peers.

    Reference:
        The progressive linear rule of Xie et al., *Elan: Towards Generic and Efficient Elastic Training for Deep
        Learning*, 2020. Equation 3 and algorithm 1 end the ramp at T by mistake, instead of at ``T_0 + T``.
    """

    target: Signal
    ramp_length: float
    unit: Unit


@dataclass(frozen=True, eq=False)
class ScaleLearningRate:
    """Multiplies the learning rate by a factor in the graph, without a barrier.

    Attributes:
        target: The factor: float32, equal on all peers; a number that is not finite or not above 0 changes nothing.
        in_force: The factor of the running step: rank 0's last usable target, which the step's message carries.
    """

    target: Signal
    in_force: Signal

    @property
    def step(self) -> str:
        """The step in which a target is in force: "the same step" if it is known before the message of the step."""
        return "the same step" if self.target.known == "before" else "the next step"


@dataclass(frozen=True, eq=False)
class SetVariable:
    """Requests another number for a registered value, or for the optimizer's momentum or weight decay.

    Attributes:
        name: The name of the value.
        target: The number: float32, equal on all peers; NaN requests nothing.
    """

    name: str
    target: Signal


@dataclass(frozen=True, eq=False)
class Synchronise:
    """Requests an average of models every `target` steps, in a run that averages models (``attach(sync=...)``).

    `target` is a float32 scalar: whole, at least 1, equal on all peers; NaN requests nothing."""

    target: Signal


@dataclass(frozen=True, eq=False)
class Stop:
    """Ends the training on all peers after the step in which all peers have learned of the request."""


@dataclass(frozen=True, eq=False)
class Call:
    """Calls a Python function with the values of `signals`, in this order; these signals are inputs of the rule."""

    fn: Callable[..., Any]
    signals: tuple[Signal, ...]


@dataclass(frozen=True, eq=False)
class Evict:
    """Removes, without replacement, the peers whose entry in `mask` is true: bool, by rank, equal on all peers."""

    mask: Signal


@dataclass(frozen=True, eq=False)
class Replace:
    """Replaces the peers for which `mask` is true (as in `Evict`), each when a new peer is ready."""

    mask: Signal


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Writes a checkpoint of the state after the step in which all peers have learned of the request.

    Attributes:
        name: The name of the checkpoint, which replaces the previous one of that name; empty for no name.
    """

    name: str = ""


@dataclass(frozen=True, eq=False)
class Restore:
    """Restores the model and the optimizers from the checkpoint called `name`, on all peers."""

    name: str


Action = (
    Rescale
    | SetGlobalBatchSize
    | SetLearningRate
    | ScaleLearningRate
    | SetVariable
    | Synchronise
    | Stop
    | Call
    | Evict
    | Replace
    | Checkpoint
    | Restore
)
"""The request of a rule when it fires."""


def changes_membership(action: Action) -> bool:
    """True if an action requests other peers; False for a hook, whose requests are unknown before the call."""
    return isinstance(action, (Rescale, Evict, Replace))


def target_of(action: Action) -> Signal | None:
    """The number that an action requests; ``None`` if the action requests no number."""
    return next(iter(numbers_of(action).values()), None)


def mask_of(action: Action) -> Signal | None:
    """The mask by which an action selects peers; ``None`` if the action selects no peers."""
    return action.mask if isinstance(action, (Evict, Replace)) else None


def numbers_of(action: Action) -> Mapping[Setting, Signal]:
    """The job-wide settings that an action changes, each with the requested number; the target comes first."""
    match action:
        case Rescale(target, batch=batch, rate=rate):
            given = {"size": target, "global batch size": batch, "learning rate": rate}
            return {setting: number for setting, number in given.items() if number is not None}
        case SetGlobalBatchSize(target):
            return {"global batch size": target}
        case SetLearningRate(target):
            return {"learning rate": target}
        case ScaleLearningRate(target):
            return {"learning rate factor": target}
        case SetVariable(name, target):
            return {f"value of {name!r}": target}
        case Synchronise(target):
            return {"averaging interval": target}
    return {}


def setting_of(action: Action) -> Setting | None:
    """The setting that an action is about, such as the size; ``None`` if the action sets nothing."""
    return next(iter(numbers_of(action)), None)


def operands(action: Action) -> tuple[Signal, ...]:
    """Every signal that an action needs."""
    if isinstance(action, Call):
        return action.signals
    others = (mask_of(action), action.in_force if isinstance(action, ScaleLearningRate) else None)
    return (*numbers_of(action).values(), *(one for one in others if one is not None))


def rewired(action: Action, *, shared: Mapping[Signal, Signal]) -> Action:
    """The action with its nodes replaced by those in `shared`."""
    if isinstance(action, Rescale):
        batch, rate = (None if one is None else shared[one] for one in (action.batch, action.rate))
        return replace(action, target=shared[action.target], batch=batch, rate=rate)
    if isinstance(action, ScaleLearningRate):
        return ScaleLearningRate(shared[action.target], shared[action.in_force])
    if isinstance(action, (SetGlobalBatchSize, SetLearningRate, SetVariable, Synchronise)):
        return replace(action, target=shared[action.target])
    if isinstance(action, (Evict, Replace)):
        return replace(action, mask=shared[action.mask])
    if isinstance(action, Call):
        return replace(action, signals=tuple(shared[one] for one in action.signals))
    return action


def ramp(
    *, over_steps: float | None, over_samples: float | None, method: str = "set_learning_rate"
) -> tuple[float, Unit]:
    """The length of a ramp and its unit; 0 steps if no length is given. Errors name `method`."""
    if over_steps is not None and over_samples is not None:
        raise PolicyError(
            f"{method}(over_steps={over_steps!r}, over_samples={over_samples!r}): a ramp has one length; give "
            "one of them"
        )
    unit: Unit = "steps" if over_samples is None else "samples"
    length = over_steps if over_samples is None else over_samples
    length = 0.0 if length is None else length
    if isinstance(length, bool) or not isinstance(length, (int, float)) or not 0 <= length < math.inf:
        raise PolicyError(f"{method}(over_{unit}={length!r}): takes a finite number of {unit}, at least 0")
    return float(length), unit


def checkpoint_name(name: object, *, method: str) -> str:
    """The name of a checkpoint, which names a folder beside the numbered checkpoints.

    Raises:
        PolicyError: The name could be no folder, or is one that kungfu uses itself.

    >>> checkpoint_name("best", method="restore")
    'best'
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name.startswith("step-") or name == "latest":
        raise PolicyError(
            f"{method}({name!r}): takes a name for the checkpoint, as in {method}('best'): letters, digits and _ . -, "
            "with a letter or digit first; 'latest' and names that begin with 'step-' belong to kungfu"
        )
    return name


def ramp_to(rate: object, *, over_steps: float | None, over_samples: float | None, method: str) -> tuple[float, Unit]:
    """The ramp of a rate that may not be given, as for `ramp`; without a rate, there is no ramp either."""
    length, unit = ramp(over_steps=over_steps, over_samples=over_samples, method=method)
    if rate is None and (over_steps is not None or over_samples is not None):
        raise PolicyError(f"{method}(over_{unit}={length:g}): a ramp leads to a learning rate; give rate= as well")
    return length, unit
