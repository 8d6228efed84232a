"""The rollback of a step's changes to variables on a peer without samples.

A peer without samples runs the step on another peer's sample. Variables that are equal on all peers (weights, slots,
counters, registered values) must change there as everywhere; a statistic, a metric or a table of the program must not
count that sample twice. After a failed step, `StepTrace.undo` restores variables.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import tensorflow as tf

from kungfu.training.graph.variable_io import call_on_host_where, read_handles, write_handles


class BatchRollback:
    """The variables that a step touches, found by tracing it, except ``kept``, whose values after the step
    remain."""

    def __init__(self, kept: Iterable[tf.Variable]) -> None:
        self.kept = {id(one.handle) for one in kept}
        self._handles: list[Any] = []
        self._before: list[Any] = []

    @property
    def is_needed(self) -> bool:
        """True if the step touches any variable that must be restored."""
        return bool(self._handles)

    def covers(self, handles: Sequence[Any], *, alike: Collection[int] = ()) -> None:
        """Tracing: sets the variables to restore: these handles, without those assigned ``alike`` on all peers."""
        self._handles = [one for one in handles if id(one) not in self.kept and id(one) not in alike]

    def remember(self) -> None:
        """Host: saves the variables' values, before a step without samples."""
        self._before = read_handles(self._handles)

    def restore(self) -> None:
        """Host: restores the saved values, after the step or its failure; does nothing if none are saved."""
        if self._before:  # otherwise the step finished, and has restored them itself
            write_handles(self._handles, self._before)
            self._before = []

    def remembered(self, samples: Any) -> None:
        """Graph: calls ``remember`` if there are no samples."""
        self._on_host(self.remember, samples)

    def restored(self, samples: Any) -> None:
        """Graph: calls ``restore`` if there are no samples; later ops of the step see the restored values."""
        self._on_host(self.restore, samples)

    def _on_host(self, act: Callable[[], None], samples: Any) -> None:
        if self._handles:  # without handles the step needs no host call
            call_on_host_where(tf.equal(samples, 0), act, self._handles)
