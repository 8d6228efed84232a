"""The handle that ``kf.keras.attach`` returns, for the training of a model by ``fit``."""

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
        model: The attached model.
        policies: The policies, unchanged.
        seed: The seed of the samples' order and of each peer's random numbers.
        budget: Bounds how often the policies together may change the cluster.
        combine: The combination over the peers of metrics' states and layers' statistics, by name.
        optimizer: The model's optimizer at the time of ``attach``.
        is_fitting: True while a ``fit`` is under way.
        passes: True while this peer skips fits that are over.
        calls: The step's calls in the present fit, or in the last one.
        first_epoch: The first epoch of that fit.
        evaluations: The results of ``evaluate`` after the last fit.
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
        """The present or last fit as a `Training`, as in a program without Keras' ``fit``."""
        return None if self.calls is None else Training(self.calls)


class FitHandle:
    """The training of one model by ``fit``; it stays the same over several fits. Made by ``kungfu.keras.attach_model``.

    Values about the job are those of the present fit, or of the last one. A program alone and without policies trains
    by Keras itself: there is one peer, and nothing to register.

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
        self._prepared: list[Callable[[Training], Any]] = []  # calls at the beginning of each fit
        self._fed: dict[str, Any] = {}

    @property
    def rank(self) -> int | None:
        """This peer's rank; ``None`` if it is in no view: it was removed, or skips fits that are over."""
        training = self._fitted.training
        if self._fitted.passes:
            return None
        return 0 if training is None else training.rank

    @property
    def size(self) -> int:
        """The number of peers."""
        training = self._fitted.training
        return 1 if training is None else training.size

    @property
    def stopped(self) -> bool:
        """True if a policy, a request or ``stop`` has ended the present or last fit."""
        training = self._fitted.training
        return False if training is None else training.stopped

    @property
    def step_number(self) -> int:
        """The steps done so far, over all fits of the job; without policies, the optimizer's iterations."""
        training, optimizers = self._fitted.training, optimizers_of(self._fitted.model)
        return int(optimizers[0].iterations) if training is None else training.step_number

    @property
    def epoch(self) -> int:
        """The present epoch in Keras' count; after a fit, its last epoch plus one."""
        history = getattr(self._fitted.model, "history", None)
        done = history.epoch if history is not None else []
        return done[-1] + 1 if done else self._fitted.first_epoch

    def register(self, name: str, get: Any, set: Any = None, *, kind: Kind = "shared", room_bytes: int = 16384) -> None:
        """Adds state of the program to the state of every later fit; see ``kungfu.Training.register``."""
        self._prepared.append(lambda training: training.register(name, get, set, kind=kind, room_bytes=room_bytes))

    def on_rescale(self, function: Callable[[Rescaled], Any]) -> Callable[[Rescaled], Any]:
        """Registers a function that every later fit calls after each change of membership."""
        self._prepared.append(lambda training: training.on_rescale(function))
        return function

    def publish(self, name: str, value: Any) -> None:
        """Gives the policies a number that the step computes, in a custom layer, loss or ``train_step``.

        Undefined:
            Without effect outside of a training step, as in ``evaluate``; see ``kungfu.Training.publish``.
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
        """Requests a checkpoint at the barrier after the fit's next step; see ``kungfu.Training.checkpoint``."""
        training = self._fitted.training
        if training is not None and self._fitted.is_fitting:
            training.checkpoint(path, keep=keep)

    def stop(self, reason: str = "") -> None:
        """Ends the present fit, on all peers after the same step; without effect outside of a fit.

        Args:
            reason: As in ``kungfu.Training.stop``. The epoch ends at that step, as under ``model.stop_training``.
        """
        fitted = self._fitted
        if not fitted.is_fitting:
            return
        if fitted.training is None:
            fitted.model.stop_training = True
        else:
            fitted.training.stop(reason)

    def prepare(self) -> Training:
        """Applies the registrations and fed numbers from before a fit to its training, and returns the training."""
        training = self._fitted.training
        assert training is not None
        for one in self._prepared:
            one(training)
        for name, value in self._fed.items():
            training.feed(name, value)
        return training
