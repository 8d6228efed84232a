"""Compares registered values between two steps, sends the values to new peers, and averages some of them.

A barrier is inside a step, before the program's work that follows the step. A counter incremented by that work still
has its old value, except on a joiner, which has done no step. So registered values are exchanged at a point that every
program reaches in the same state: before the next step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.runtime.api import VariableGap, gap_of
from kungfu.training.graph.training_state import differing_variables
from kungfu.training.state.registry import Registry, Rescaled

# Content up to this length travels in one message together with its length.
_SHORT_BYTES = 1016
_TELL_EVERY_S = 1.0


@dataclass(frozen=True)
class PendingSync:
    """The exchange of registered values that a barrier leaves for the time before the next step."""

    source: int | None = None  # the rank whose shared values the new view adopts; ``None`` if the view did not change
    loads_values: bool = False  # True if this peer may hold other shared values and loads the source's
    # The ranks that held the state when the view began, whose averaged values enter the mean; ``None`` for all.
    holders: tuple[int, ...] | None = None
    rescaled: Rescaled | None = None  # passed to the hooks; ``None`` without a change of membership
    # The values set by a hook of this peer, by name; the values that the source's hook sets apply to all peers.
    set_values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PeerGroup:
    """The peers of a view between two steps, all at the same position."""

    rank: int  # of this peer
    size: int
    total: Callable[[Sequence[Any]], Sequence[Any]]  # the sums of tensors over the peers
    source: int = 0  # the rank from whose state all peers of this view continued; after a loss it need not be rank 0

    @property
    def leads(self) -> bool:
        """True if this peer is rank 0, whose values the other peers adopt."""
        return self.rank == 0

    def sums(self, values: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        """The sums of arrays over the peers, by one message; shapes and types must be the same on all peers."""
        if self.size == 1 or not values:
            return list(values)
        return [one.numpy() for one in self.total([tf.convert_to_tensor(value) for value in values])]

    def from_rank(self, rank: int, content: bytes) -> bytes:
        """Returns the ``content`` of rank ``rank`` on every peer; the content of the other ranks is ignored.

        Cost: one message, and a second message if the content is long."""
        if self.size == 1:
            return content
        own = content if self.rank == rank else b""
        first = self.added(len(own).to_bytes(8, "little") + own[:_SHORT_BYTES], of=8 + _SHORT_BYTES)
        length = int.from_bytes(first[:8], "little")
        rest = self.added(own[_SHORT_BYTES:], of=length - _SHORT_BYTES) if length > _SHORT_BYTES else b""
        return first[8 : 8 + min(length, _SHORT_BYTES)] + rest

    def from_rank_0(self, work: Callable[[], bytes]) -> bytes:
        """Returns the result of ``work`` on every peer; only rank 0 does the work, such as the reading of a file.

        While a thread does the work, rank 0 tells the others so: no peer waits for a message for longer than a second,
        and none counts as late.

        Raises:
            Exception: The error of ``work``, on rank 0.

        Cost:
            A message per second of work, one at its end, and those of `from_rank`.
        """
        if self.size == 1:
            return work()
        worker = ThreadPoolExecutor(1, thread_name_prefix="kungfu-rank-0")
        try:
            doing = worker.submit(work) if self.leads else None
            while not self.any_of([doing is not None and bool(wait([doing], timeout=_TELL_EVERY_S).done)])[0]:
                pass
        finally:
            worker.shutdown(wait=False)  # a peer may be lost meanwhile, and this one has to regroup
        return self.from_rank(0, b"" if doing is None else doing.result())

    def added(self, own: bytes, *, of: int) -> bytes:
        """The bytewise sum over the peers of ``of`` bytes, which must be zeros on all peers but one."""
        # Sums integers, which keeps every bit.
        (total,) = self.total([tf.constant(np.frombuffer(own.ljust(-(-of // 4) * 4, b"\0"), np.int32))])
        return bytes(total.numpy().tobytes()[:of])

    def any_of(self, flags: Sequence[bool]) -> list[bool]:
        """For each of the flags, True if it is True on any peer; all peers must pass the same number of flags."""
        return [bool(one) for one in self.sums([np.array(flags, np.int32)])[0] > 0] if flags else []

    def assign_from_rank(self, variables: Sequence[tf.Variable], *, rank: int = 0) -> None:
        """Assigns the values of ``rank`` to variables that differ between peers; their order is equal on all peers.
        Costs one pass over the memory, a message with 64 bytes per variable, and the values that differ."""
        if self.size == 1 or not variables:
            return
        indices = differing_variables(variables, size=self.size, total=self.total)
        if differing := {str(index): variables[index] for index in indices}:
            _assign(differing, _sent(differing, PendingSync(), source=rank, peers=self)[0])


def sync_registered(registry: Registry, pending: PendingSync, peers: PeerGroup) -> dict[str, VariableGap]:
    """Reads the program's values, synchronises them with the other peers, and passes changed values to the program.

    Args:
        registry: The registered values of this peer.
        pending: The work that the barrier left to do; see `PendingSync`.
        peers: The peers of the view, which all call this function now.

    Returns:
        By name, differences due to rounding between this peer's previous shared values and the common values.

    Raises:
        UsageError: A shared value differs by more than rounding between peers of the previous view.

    Cost:
        One message with 64 bytes per shared value, or all shared values in a new view; one with the averaged values.
    """
    for name, value in pending.set_values.items():
        registry.put(name, value)
    registry.collect()
    rounded: dict[str, VariableGap] = {}
    if peers.size > 1:
        shared, averaged = registry.of("shared"), registry.of("averaged")
        # The view did not change: the peers compare checksums, and send only values that differ.
        if shared and pending.source is None:
            indices = differing_variables(list(shared.values()), size=peers.size, total=peers.total)
            shared = {name: one for index, (name, one) in enumerate(shared.items()) if index in indices}
        if shared:
            rounded = _agree(shared, pending, peers)
        if averaged:
            _average(averaged, pending, peers)
    registry.restore()
    return rounded


def _average(averaged: Mapping[str, tf.Variable], pending: PendingSync, peers: PeerGroup) -> None:
    """Assigns the mean over the peers, without those that received the state in this view: their values are initial."""
    holders = range(peers.size) if pending.holders is None else pending.holders
    values = [one.read_value() for one in averaged.values()]
    sums = peers.total(values if peers.rank in holders else [tf.zeros_like(value) for value in values])
    for variable, total in zip(averaged.values(), sums, strict=True):
        variable.assign(total / tf.cast(len(holders), total.dtype))


def _agree(shared: Mapping[str, tf.Variable], pending: PendingSync, peers: PeerGroup) -> dict[str, VariableGap]:
    """Assigns the shared values of the source, or of rank 0 in an unchanged view; returns differences due to rounding.
    ``UsageError``, except on a joiner, if a value differs by more and was not set by a hook of the sending peer."""
    agreed, were_set = _sent(shared, pending, source=pending.source or 0, peers=peers)
    gaps = {name: gap_of(0, one.numpy(), agreed[name]) for name, one in shared.items()}
    unlike = np.array([not gap.is_rounding and name not in were_set for name, gap in gaps.items()], np.int64)
    # This sum also notifies a peer with rank 0's values that another peer's values differ: all peers raise, or none.
    if pending.source is None:
        unlike = peers.total([tf.constant(unlike)])[0].numpy()
    for name, is_unlike in zip(shared, unlike, strict=True):
        # A peer of the previous view must hold the source's value; a peer that has just joined loads that value.
        if is_unlike and not pending.loads_values:
            raise UsageError(
                f"the registered value {name!r} differs between the peers, seen by rank {peers.rank}: what is shared "
                "must change alike on all; register it with kind='averaged' or kind='local' where each peer has its own"
            )
    changed = _assign(shared, agreed)
    return {name: gaps[name] for name in changed if gaps[name].is_rounding and not pending.loads_values}


def _sent(
    shared: Mapping[str, tf.Variable], pending: PendingSync, *, source: int, peers: PeerGroup
) -> tuple[dict[str, np.ndarray[Any, Any]], set[str]]:
    """Returns rank ``source``'s values, and the names of those set by its hooks, as a sum with the zeros of others."""
    marks = np.array([name in pending.set_values for name in shared], np.uint8).tobytes()
    content = marks + b"".join(one.numpy().tobytes() for one in shared.values())
    agreed = peers.added(content if peers.rank == source else b"", of=len(content))
    values, start = {}, len(shared)
    were_set = {name for name, mark in zip(shared, agreed[:start], strict=True) if mark}
    for name, one in shared.items():
        dtype = np.dtype(one.dtype.as_numpy_dtype)
        count = int(np.prod(one.shape))
        values[name] = np.frombuffer(agreed, dtype, count, offset=start).reshape(one.shape)
        start += count * dtype.itemsize
    return values, were_set


def _assign(shared: Mapping[str, tf.Variable], agreed: Mapping[str, np.ndarray[Any, Any]]) -> list[str]:
    """Assigns the values that differ, and returns their names."""
    changed = [name for name, one in shared.items() if one.numpy().tobytes() != agreed[name].tobytes()]
    for name in changed:
        shared[name].assign(agreed[name])
    return changed
