"""The handle that ``kf.keras.attach`` returns: the training of a model by ``fit``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kungfu.control import Budget
from kungfu.keras.applications import optimizers_of
from kungfu.keras.fits import Evaluations
from kungfu.policy_definition import Policy
from kungfu.training import Training
from kungfu.training.loop.step_calls import StepCalls
from kungfu.training.state.registry import Kind
from kungfu.training.state.rescale_hooks import Rescaled


@dataclass
class Attached:
    """The arguments of a call of ``attach``, and its results.

    Args:
        model: The model that fits.
        policies: As they were given.
        seed: That of the order, and of what each peer draws.
        budget: Bounds how often the policies together may change the cluster.
        combine: How what is kept of the data is combined over the peers, by name.
        optimizer: That of the model when it was attached.
        is_fitting: Whether a ``fit`` is under way.
        passes: Whether this peer passes through fits that are over.
        calls: Of the step of the fit under way, or of the last one.
        first_epoch: Of that fit.
        evaluations: After the last fit.
    """

    model: Any
    policies: tuple[Policy, ...]
    seed: int
    budget: Budget | None
    combine: Mapping[str, Any]
    optimizer: Any
    is_fitting: bool = False
    passes: bool = False
    calls: StepCalls | None = None
    first_epoch: int = 0
    evaluations: Evaluations = field(default_factory=Evaluations)

    def __post_init__(self) -> None:
        self.handle = FitHandle(self)

    @property
    def training(self) -> Training | None:
        """The training of that fit, as a program without Keras' ``fit`` has it."""
        return None if self.calls is None else Training(self.calls)


class FitHandle:
    """The training of one model by ``fit``; it stays the same over several fits. Made by ``kungfu.keras.attach_model``.

    What is said of the job holds for the fit that is under way, or for the last one. A program that runs alone, and
    without policies, trains by Keras itself: there is one peer, and nothing to register.

    >>> import keras, numpy as np, kungfu as kf
    >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    >>> model.compile("sgd", "mse")
    >>> training = kf.keras.attach(model)
    >>> history = model.fit(np.ones((8, 2)), np.ones((8, 1)), batch_size=4, epochs=3, verbose=0)
    >>> training.step_number, training.epoch, training.rank, training.size
    (6, 3, 0, 1)
    """

    def __init__(self, fitted: Attached) -> None:
        self._fitted = fitted
        self._prepared: list[Callable[[Training], Any]] = []  # what each fit begins with
        self._fed: dict[str, Any] = {}

    @property
    def rank(self) -> int | None:
        """This peer's rank; ``None`` if it is in no view: it was let go, or passes through fits that are over."""
        training = self._fitted.training
        if self._fitted.passes:
            return None
        return 0 if training is None else training.rank

    @property
    def size(self) -> int:
        """The number of peers that train."""
        training = self._fitted.training
        return 1 if training is None else training.size

    @property
    def stopped(self) -> bool:
        """True if a policy, a request or ``stop`` has ended the fit, or the last one."""
        training = self._fitted.training
        return False if training is None else training.stopped

    @property
    def step_number(self) -> int:
        """The steps done so far, over all fits of the job; of a program without policies those of the optimizer."""
        training, optimizers = self._fitted.training, optimizers_of(self._fitted.model)
        return int(optimizers[0].iterations) if training is None else training.step_number

    @property
    def epoch(self) -> int:
        """The epoch under way, as Keras counts it, or after a fit the one after its last."""
        history = getattr(self._fitted.model, "history", None)
        done = history.epoch if history is not None else []
        return done[-1] + 1 if done else self._fitted.first_epoch

    def register(self, name: str, get: Any, set: Any = None, *, kind: Kind = "shared", room_bytes: int = 16384) -> None:
        """Lets further state of the program go along with every fit that follows; see ``kungfu.Training.register``."""
        self._prepared.append(lambda training: training.register(name, get, set, kind=kind, room_bytes=room_bytes))

    def on_rescale(self, function: Callable[[Rescaled], Any]) -> Callable[[Rescaled], Any]:
        """Has a function called after each change of membership, in every fit that follows."""
        self._prepared.append(lambda training: training.on_rescale(function))
        return function

    def publish(self, name: str, value: Any) -> None:
        """Gives the policies a number that the step computes, from a layer, a loss or a ``train_step`` of the user's.

        Undefined:
            Outside of a training step, as in ``evaluate``, nothing comes of it; see ``kungfu.Training.publish``.
        """
        training = self._fitted.training
        if training is not None and training.is_tracing:
            training.publish(name, value)

    def feed(self, name: str, value: Any) -> None:
        """Gives the policies a number, from a callback or between two fits; see ``kungfu.Training.feed``."""
        training, self._fed[name] = self._fitted.training, value
        if training is not None and self._fitted.is_fitting:
            training.feed(name, value)

    def checkpoint(self, path: str | os.PathLike[str] | None = None, *, keep: int = 3) -> None:
        """Asks for a checkpoint at the barrier after the next step of the fit; see ``kungfu.Training.checkpoint``."""
        training = self._fitted.training
        if training is not None and self._fitted.is_fitting:
            training.checkpoint(path, keep=keep)

    def stop(self, reason: str = "") -> None:
        """Ends the fit that is under way, on all peers after the same step; outside of a fit it does nothing.

        Args:
            reason: As in ``kungfu.Training.stop``. The epoch is concluded there, as under ``model.stop_training``.
        """
        fitted = self._fitted
        if not fitted.is_fitting:
            return
        if fitted.training is None:
            fitted.model.stop_training = True
        else:
            fitted.training.stop(reason)

    def prepare(self) -> Training:
        """Registers and feeds what was given before a fit in its training."""
        training = self._fitted.training
        assert training is not None
        for one in self._prepared:
            one(training)
        for name, value in self._fed.items():
            training.feed(name, value)
        return training
