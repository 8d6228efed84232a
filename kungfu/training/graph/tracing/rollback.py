"""The rollback of a step's changes to variables before they become visible.

A peer without samples runs the step on a sample that is another peer's. What is equal on all peers (weights, slots,
counters, registered values) must change there as everywhere; a statistic, a metric or a table of the program must not
count that sample twice. What a step that fails has moved is put back too: `StepTrace.undo`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import tensorflow as tf

from kungfu.training.graph.variable_io import call_on_host_where, read_handles, write_handles


class BatchRollback:
    """The variables that a step touches, found by tracing it, without ``kept``, which continue from what the step
    did."""

    def __init__(self, kept: Iterable[tf.Variable]) -> None:
        self.kept = {id(one.handle) for one in kept}
        self._handles: list[Any] = []
        self._before: list[Any] = []

    @property
    def is_needed(self) -> bool:
        """True if there is any such variable."""
        return bool(self._handles)

    def covers(self, handles: Sequence[Any], *, alike: Collection[int] = ()) -> None:
        """Tracing: the step touches the variables with these handles; some it assigns ``alike`` on all peers."""
        self._handles = [one for one in handles if id(one) not in self.kept and id(one) not in alike]

    def remember(self) -> None:
        """Host: before a step without samples."""
        self._before = read_handles(self._handles)

    def restore(self) -> None:
        """Host: after it, or after one that failed; does nothing where nothing is remembered."""
        if self._before:  # else the step has done it itself: it came to its end
            write_handles(self._handles, self._before)
            self._before = []

    def remembered(self, samples: Any) -> None:
        """Graph: ``remember`` where there are no samples."""
        self._on_host(self.remember, samples)

    def restored(self, samples: Any) -> None:
        """Graph: ``restore`` where there are no samples; what comes later in the step sees what was before."""
        self._on_host(self.restore, samples)

    def _on_host(self, act: Callable[[], None], samples: Any) -> None:
        if self._handles:  # no host call in a step that needs none
            call_on_host_where(tf.equal(samples, 0), act, self._handles)
