"""Marks a monitor's signal with the monitor's name, so that ``kungfu explain`` shows the monitor as one item."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import ParamSpec, TypeVar

from kungfu.signal import Signal

P = ParamSpec("P")
S = TypeVar("S", bound=Signal)


def marked(monitor: Callable[P, S]) -> Callable[P, S]:
    """Decorates a monitor, so that the signal that it returns contains the monitor's name in ``Signal.monitor``."""

    @functools.wraps(monitor)
    def made(*args: P.args, **kwargs: P.kwargs) -> S:
        return replace(monitor(*args, **kwargs), monitor=monitor.__name__)

    return made
