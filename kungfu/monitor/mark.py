"""A monitor's signal knows which monitor it comes from: to a reader of a plan it is one thing."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import ParamSpec, TypeVar

from kungfu.signal import Signal

P = ParamSpec("P")
S = TypeVar("S", bound=Signal)


def marked(monitor: Callable[P, S]) -> Callable[P, S]:
    """The monitor, whose signal bears its name in ``Signal.monitor``."""

    @functools.wraps(monitor)
    def made(*args: P.args, **kwargs: P.kwargs) -> S:
        return replace(monitor(*args, **kwargs), monitor=monitor.__name__)

    return made
