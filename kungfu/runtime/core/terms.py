"""The terms of a view: its batch sizes, the change under way, the ramp of the learning rate, and the end of training.

A barrier changes the terms along with the membership (``core.barrier``), and by the settings that rules request.
"""

from __future__ import annotations

from dataclasses import dataclass

from kungfu.runtime.core.request import Keep, RampUnit
from kungfu.runtime.core.view import View


@dataclass(frozen=True)
class Ramp:
    """A ramp of the learning rate.

    ``lr_t = start + (t - since) / over * (target - start)`` for ``since <= t < since + over``, and ``target`` from
    then on. (The paper's algorithm ends the ramp at ``over``, its equation at ``since + over``, as here.)

    Args:
        start: The learning rate at the beginning of the ramp.
        target: The learning rate at the end of the ramp.
        since: The steps (or samples) done before the ramp.
        over: The length of the ramp, in ``unit``.
        unit: Steps or samples.
    """

    start: float
    target: float
    since: int
    over: float
    unit: RampUnit = "steps"

    def at(self, done: int) -> float:
        """The learning rate of a step.

        Args:
            done: The steps (or samples) done before the step.

        >>> [Ramp(0.1, 0.2, since=40, over=4).at(t) for t in (40, 41, 42, 44, 99)]
        [0.1, 0.125, 0.15000000000000002, 0.2, 0.2]
        """
        if done >= self.since + self.over:
            # The ramp has ended; a ramp of length 0 ends where it begins.
            return self.target
        return self.start + (done - self.since) / self.over * (self.target - self.start)


@dataclass(frozen=True)
class Terms:
    """The agreed values of a view besides its members.

    Args:
        global_batch_size: The samples of a step over all peers.
        batch_per_peer: The intended samples per step and peer; a fraction if the global batch is not a multiple.
        target_size: The number of peers of the job once the joiners under way have come; 0 if none are under way.
        refused_size: The size that was requested last, if it is out of reach; else 0.
        keep: The batch size that stays constant when the number of peers changes.
        ramp: The current or the last ramp of the learning rate.
        stopped: True if training is over.
        leaving: The ids of the peers that leave once the joiners under way have come.
        departing: The ids of the peers that stay only until their replacements hold the state, and leave at the next
            barrier.
        max_global_batch: The largest global batch that a change of size may set while the local batch stays; 0 for no
            limit. A batch that was set to more stays, but does not grow. With a limit the global batch may be less
            than ``batch_per_peer`` times the peers.
        replaced_peers: The number of peers replaced so far by request.
        replacement_refused: True if no joiner came for the last peers to replace; reset when the view changes,
            joiners are dismissed, or a host with free slots comes.
        by_command: True if the size under way, or the last requested size, was requested from outside.
        policy_share: The batch per peer that a policy or attach had set, if a command has changed it since; else 0.
            The next change of size by a policy restores it.
        base_batch: The global batch size from which rules on a rescale compute theirs, as last set by attach or by a
            rule in a step; 0 if no rule on a rescale has changed the batch since.
        base_size: The number of peers for which `base_batch` was set; 0 if `base_batch` is 0.
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
        """The base of rules on a rescale: a global batch size, and the peers it was set for (by default ``size``)."""
        return (self.base_batch, self.base_size) if self.base_size else (self.global_batch_size, size)


@dataclass(frozen=True)
class RunPosition:
    """The position of the job at a barrier.

    Args:
        steps: The number of steps done.
        samples: The number of samples of all steps done.
        epoch_samples: The number of samples of an epoch; 0 if it is unknown.
        learning_rate: The learning rate of the last step, on the scale of the ramp.
    """

    steps: int
    samples: int
    epoch_samples: int
    learning_rate: float


def meant_size(view: View, terms: Terms) -> int:
    """The number of peers of a view without its departing peers, which stay only until others hold the state.

    Args:
        view: The view.
        terms: The terms of the view, which name the departing peers.

    >>> from kungfu.runtime.core.view import Peer
    >>> three = View(2, (Peer(0, "a:1"), Peer(1, "a:2"), Peer(2, "a:3")))
    >>> meant_size(three, Terms(departing=(0,)))
    2
    """
    return max(1, view.size - len(set(terms.departing) & set(view.ids)))
