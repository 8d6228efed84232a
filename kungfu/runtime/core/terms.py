"""The terms of a view beside its members: batch sizes, the change under way, the ramp of the learning rate, the end.

A barrier changes them: by what happens to the membership (``core.barrier``), and by the settings that rules request.
"""

from __future__ import annotations

from dataclasses import dataclass

from kungfu.runtime.core.request import Keep, RampUnit
from kungfu.runtime.core.view import View


@dataclass(frozen=True)
class Ramp:
    """A ramp of the learning rate.

    ``lr_t = start + (t - since) / over * (target - start)`` for ``since <= t < since + over``, and ``target`` from
    there on. (The paper's algorithm ends the ramp at ``over``, its equation at ``since + over``, as here.)

    Args:
        start: The rate at its beginning.
        target: The rate at its end.
        since: The steps (or samples) done before it.
        over: Its length, in ``unit``.
        unit: Steps or samples.
    """

    start: float
    target: float
    since: int
    over: float
    unit: RampUnit = "steps"

    def at(self, done: int) -> float:
        """The rate of a step.

        Args:
            done: The steps (or samples) done before it.

        >>> [Ramp(0.1, 0.2, since=40, over=4).at(t) for t in (40, 41, 42, 44, 99)]
        [0.1, 0.125, 0.15000000000000002, 0.2, 0.2]
        """
        if done >= self.since + self.over:
            # The ramp has ended; one of length 0 ends where it begins.
            return self.target
        return self.start + (done - self.since) / self.over * (self.target - self.start)


@dataclass(frozen=True)
class Terms:
    """The agreed values of a view besides its members.

    Args:
        global_batch_size: Samples of a step, of all peers together.
        batch_per_peer: Samples of a step per peer, as it is meant: a fraction where the batch is not a multiple.
        target_size: The number of peers that the job will have when those under way have come; 0 if none are.
        refused_size: The size that was requested last, where it is out of reach; else 0.
        keep: The batch size that stays when the number of peers changes.
        ramp: The ramp of the learning rate that is under way, or was last.
        stopped: True if training is over.
        leaving: The ids of the peers that leave when those under way have come.
        departing: The ids of the peers that stay only until those who came hold the state, and leave at the next
            barrier.
        max_global_batch: The most samples that a change of size makes of a step where the local batch stays; 0 for any
            number. A batch that was set to more stays, and grows no more. With it the global batch may be less than
            ``batch_per_peer`` times the peers.
        replaced_peers: The number of peers replaced so far by request.
        replacement_refused: True if no peer came for the last peers to replace. It is remembered until the
            view changes, joiners are dismissed, or a host with free slots comes.
        by_command: True if a request from outside requested the size that is under way, or was requested last.
        policy_share: The batch per peer that a policy, or attach, had set, where a command has changed it since; else
            0. The next change of the size that a policy decides takes it up again.
        base_batch: The global batch size from which rules on a rescale choose, as it was set last, by attach or by a
            rule in a step; 0 if no rule on a rescale has chosen another one since.
        base_size: The peers that it was set for; 0 as `base_batch`.
    """

    global_batch_size: int = 0
    batch_per_peer: float = 0.0
    target_size: int = 0
    refused_size: int = 0
    keep: Keep = "local_batch_size"
    ramp: Ramp | None = None
    stopped: bool = False
    leaving: tuple[int, ...] = ()
    departing: tuple[int, ...] = ()
    max_global_batch: int = 0
    replaced_peers: int = 0
    replacement_refused: bool = False
    by_command: bool = False
    policy_share: float = 0.0
    base_batch: int = 0
    base_size: int = 0

    def base(self, size: int) -> tuple[int, int]:
        """The global batch size that rules on a rescale of this many peers go by, and the peers that it was set for."""
        return (self.base_batch, self.base_size) if self.base_size else (self.global_batch_size, size)


@dataclass(frozen=True)
class RunPosition:
    """The position of the job at a barrier.

    Args:
        steps: Steps done.
        samples: Samples of all these steps.
        epoch_samples: Samples of an epoch; 0 if they are not known.
        learning_rate: The rate of the last step, on the scale of the ramp.
    """

    steps: int
    samples: int
    epoch_samples: int
    learning_rate: float


def meant_size(view: View, terms: Terms) -> int:
    """The intended number of peers of a view: a peer that stays only until others hold the state does not count.

    Args:
        view: The view.
        terms: Its terms, which name the peers that stay only so long.

    >>> from kungfu.runtime.core.view import Peer
    >>> three = View(2, (Peer(0, "a:1"), Peer(1, "a:2"), Peer(2, "a:3")))
    >>> meant_size(three, Terms(departing=(0,)))
    2
    """
    return max(1, view.size - len(set(terms.departing) & set(view.ids)))
