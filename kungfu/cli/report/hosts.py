"""Hosts that came, left or were lost, in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kungfu.cli.report.values import figure, text_of

__all__ = ["HOST_TELLERS"]

Fields = Mapping[str, Any]


def _host(event: Fields) -> str:
    return f"host {figure(event.get('host'))} ({text_of(event, 'name')})"


HOST_TELLERS: Mapping[str, Callable[[Fields], str]] = {
    "host": lambda event: f"{_host(event)} is in",
    "host noticed": lambda event: (
        f"{_host(event)} was told that it will be taken away ({text_of(event, 'signal')}): its peers leave at the next "
        "barrier"
    ),
    "host left": lambda event: f"{_host(event)} has left: {text_of(event, 'why')}",
    "host lost": lambda event: f"{_host(event)} is lost: {text_of(event, 'why')}",
    "head": lambda event: f"{_host(event)} leads the job now",
}
