"""Registered values between two steps: compared, given to those who are new, averaged.

A barrier lies inside a step, and what a program does after that step is not done yet: a counter that it counts up
there is one less, on all peers but on a joiner, whose step was none. So registered values meet where every program
is at the same place: before the next step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.runtime.api import VariableGap, gap_of
from kungfu.training.graph.training_state import differing_variables
from kungfu.training.state.registry import Registry
from kungfu.training.state.rescale_hooks import Rescaled

# What travels in one message together with its length.
_SHORT_BYTES = 1016


@dataclass(frozen=True)
class PendingSync:
    """The work that a barrier has left to do before the next step.

    Args:
        source: The rank whose shared values are those of the new view; ``None`` if the view stays.
        loads_values: True if this peer may have held other shared values, in place of which it has the source's.
        holders: The ranks that held the state when the view began, whose averaged values have a part in the mean;
            ``None`` for all.
        rescaled: The change of membership for the hooks; ``None`` if there is none.
        set_values: The values set by a hook of this peer, by name: one that the source's hook sets is all peers'.
    """

    source: int | None = None
    loads_values: bool = False
    holders: tuple[int, ...] | None = None
    rescaled: Rescaled | None = None
    set_values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PeerGroup:
    """The peers of a view between two steps, all at the same position.

    Args:
        rank: The rank of this peer.
        size: The peers.
        total: Gives the sums over them of tensors.
        source: The rank from whose state all in this view have gone on; after a loss it need not be rank 0.
    """

    rank: int
    size: int
    total: Callable[[Sequence[Any]], Sequence[Any]]
    source: int = 0

    @property
    def leads(self) -> bool:
        """True if this peer is rank 0, whose value counts."""
        return self.rank == 0

    def sums(self, values: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        """The sums of arrays over the peers, which all bring arrays of the same shapes and types.

        Cost:
            One message.
        """
        if self.size == 1 or not values:
            return list(values)
        return [one.numpy() for one in self.total([tf.convert_to_tensor(value) for value in values])]

    def from_rank(self, rank: int, content: bytes) -> bytes:
        """The bytes that this rank was called with; those of the others are passed over.

        Cost:
            One message, and a second one where they are many.
        """
        if self.size == 1:
            return content
        own = content if self.rank == rank else b""
        first = self.added(len(own).to_bytes(8, "little") + own[:_SHORT_BYTES], of=8 + _SHORT_BYTES)
        length = int.from_bytes(first[:8], "little")
        rest = self.added(own[_SHORT_BYTES:], of=length - _SHORT_BYTES) if length > _SHORT_BYTES else b""
        return first[8 : 8 + min(length, _SHORT_BYTES)] + rest

    def added(self, own: bytes, *, of: int) -> bytes:
        """The sum of this many bytes of each peer, of which all but one peer's are zeros."""
        # Of whole numbers: every bit arrives as it was.
        (total,) = self.total([tf.constant(np.frombuffer(own.ljust(-(-of // 4) * 4, b"\0"), np.int32))])
        return bytes(total.numpy().tobytes()[:of])

    def any_of(self, flags: Sequence[bool]) -> list[bool]:
        """True for each of these if it is true on any peer; all peers bring the same number of them."""
        if self.size == 1 or not flags:
            return list(flags)
        (total,) = self.total([tf.constant(np.array(flags, np.int32))])
        return [bool(one) for one in total.numpy() > 0]

    def assign_from_rank(self, variables: Sequence[tf.Variable], *, rank: int = 0) -> None:
        """Variables that are not the same on all peers become those of a rank.

        Args:
            variables: The same ones, in the same order, on all peers.
            rank: The one whose values count.

        Cost:
            A pass over their memory and a message of 64 bytes for each; those that differ are sent.
        """
        if self.size == 1 or not variables:
            return
        places = differing_variables(variables, size=self.size, total=self.total)
        if differing := {str(place): variables[place] for place in places}:
            _assign(differing, _sent(differing, PendingSync(), source=rank, peers=self)[0])


def sync_registered(registry: Registry, pending: PendingSync, peers: PeerGroup) -> dict[str, VariableGap]:
    """Reads the program's values, makes them what the peers agree on, and gives those that are others back.

    Args:
        registry: The registered values of this peer.
        pending: The work that the barrier left to do; see `PendingSync`.
        peers: The peers of the view, which all do this now.

    Returns:
        By name, how far those shared values were from the agreed ones that differed by rounding only; see `gap_of`.

    Raises:
        UsageError: A shared value differs by more than rounding between peers that were there before.

    Cost:
        A message with 64 bytes a shared value, with all of them in a new view, and one with those that are averaged.
    """
    for name, value in pending.set_values.items():
        registry.put(name, value)
    registry.collect()
    rounded: dict[str, VariableGap] = {}
    if peers.size > 1:
        shared, averaged = registry.of("shared"), registry.of("averaged")
        # No new view: the peers compare checksums, and send only what differs.
        if shared and pending.source is None:
            places = differing_variables(list(shared.values()), size=peers.size, total=peers.total)
            shared = {name: one for place, (name, one) in enumerate(shared.items()) if place in places}
        if shared:
            rounded = _agree(shared, pending, peers)
        if averaged:
            _average(averaged, pending, peers)
    registry.restore()
    return rounded


def _average(averaged: Mapping[str, tf.Variable], pending: PendingSync, peers: PeerGroup) -> None:
    """The mean over peers, without those that received the state in this view: their values are initial ones."""
    holders = range(peers.size) if pending.holders is None else pending.holders
    values = [one.read_value() for one in averaged.values()]
    sums = peers.total(values if peers.rank in holders else [tf.zeros_like(value) for value in values])
    for variable, total in zip(averaged.values(), sums, strict=True):
        variable.assign(total / tf.cast(len(holders), total.dtype))


def _agree(shared: Mapping[str, tf.Variable], pending: PendingSync, peers: PeerGroup) -> dict[str, VariableGap]:
    """The shared values become the source's, or rank 0's; gives how far those were that differed by rounding.

    Raises:
        UsageError: One differs by more, and neither a hook of the source has set it nor has this peer just come in.
    """
    agreed, were_set = _sent(shared, pending, source=pending.source or 0, peers=peers)
    gaps = {name: gap_of(0, one.numpy(), agreed[name]) for name, one in shared.items()}
    unlike = np.array([not gap.is_rounding and name not in were_set for name, gap in gaps.items()], np.int64)
    # A peer whose values are rank 0's learns by this sum that another peer's are not: all raise, or none.
    if pending.source is None:
        unlike = peers.total([tf.constant(unlike)])[0].numpy()
    for name, is_unlike in zip(shared, unlike, strict=True):
        # A peer that was there before must hold what the source holds; one that has just come in loads it.
        if is_unlike and not pending.loads_values:
            raise UsageError(
                f"the registered value {name!r} differs between the peers, seen by rank {peers.rank}: what is shared "
                "must change alike on all; register it with kind='averaged' or kind='own' where each peer has its own"
            )
    changed = _assign(shared, agreed)
    return {name: gaps[name] for name in changed if gaps[name].is_rounding and not pending.loads_values}


def _sent(
    shared: Mapping[str, tf.Variable], pending: PendingSync, *, source: int, peers: PeerGroup
) -> tuple[dict[str, np.ndarray[Any, Any]], set[str]]:
    """The values of rank ``source``, and the names that its hooks set: a sum to which no other peer adds anything."""
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
    """Assigns the values that differ, and gives their names."""
    changed = [name for name, one in shared.items() if one.numpy().tobytes() != agreed[name].tobytes()]
    for name in changed:
        shared[name].assign(agreed[name])
    return changed
