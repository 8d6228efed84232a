"""The terms of a view: batch sizes, ramp of the learning rate, change of size under way, and the end of training.

A barrier changes the terms with the membership (``core.barrier``), and applies the settings that rules request.
"""

from __future__ import annotations

from dataclasses import dataclass

from kungfu.runtime.core.request import Asked, Keep, RampUnit, Resize, SetNumber
from kungfu.runtime.core.size_limits import AS_STARTED, SizeLimits
from kungfu.runtime.core.view import View


@dataclass(frozen=True)
class Ramp:
    """A ramp of the learning rate.

    ``lr_t = start + (t - since) / over * (target - start)`` for ``since <= t < since + over``, and ``target`` from
    then on. (The paper's equation agrees; the paper's algorithm ends the ramp at ``over``.)
    """

    start: float  # the learning rate at the beginning of the ramp
    target: float  # the learning rate at the end of the ramp
    since: int  # the steps (or samples) done before the ramp
    over: float  # the length of the ramp, in ``unit``
    unit: RampUnit = "steps"
    asked: float = 0.0  # the rate as it was requested: `target`, times the value that a schedule then had

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
    """The settings of a view, equal on all peers: batch sizes, ramp of the learning rate, change of size under way."""

    global_batch_size: int = 0  # the samples of a step over all peers
    # The intended samples per step and peer; not an integer if the peers cannot share the batch evenly.
    batch_per_peer: float = 0.0
    target_size: int = 0  # the number of peers of the job once the joiners under way have come; 0 if none are under way
    refused_size: int = 0  # the size that was requested last, if it is out of reach; else 0
    keep: Keep = "local_batch_size"  # the batch size that stays constant when the number of peers changes
    ramp: Ramp | None = None  # the current or the last ramp of the learning rate
    stopped: bool = False  # True if training is over
    leaving: tuple[int, ...] = ()  # the ids of the peers that leave once the joiners under way have come
    # The ids of the peers that stay only until their replacements hold the state, and leave at the next barrier.
    departing: tuple[int, ...] = ()
    # The largest global batch that a change of size may set to keep the local batch size constant; 0 for no limit. A
    # batch that was set above the limit remains, but does not grow. With a limit the global batch may be less than
    # ``batch_per_peer`` times the number of peers.
    max_global_batch: int = 0
    replaced_peers: int = 0  # the number of peers replaced so far by request
    # True if no joiner came when replacements for peers were last requested; reset when the view changes, joiners are
    # dismissed, or a host with free slots joins.
    replacement_refused: bool = False
    by_command: bool = False  # True if the size under way, or the last requested size, was requested from outside
    # The batch per peer that a policy or attach had set, if a command has changed the batch per peer since; else 0. The
    # next change of size by a policy restores this value.
    policy_share: float = 0.0
    # The global batch size from which rules on a rescale compute the next one: the size last set by attach or by a rule
    # in a step. 0 if no rule on a rescale has changed the batch since.
    base_batch: int = 0
    base_size: int = 0  # the number of peers for which `base_batch` was set; 0 if `base_batch` is 0
    sizes: SizeLimits = AS_STARTED  # the limits of the size, and the hold, as last sent by the leading agent
    held_rules: tuple[str, ...] = ()  # the rules and hooks whose requests the hold has stopped so far
    # The request for the size under way, if a batch or a learning rate comes into force once the job has that size.
    awaiting_size: Asked | None = None
    average_every: int = 0  # the steps from one average of models to the next; 0 if the run averages gradients
    variables: tuple[SetNumber, ...] = ()  # the values that rules have set, by the name of the registered value

    def base(self, size: int) -> tuple[int, int]:
        """The batch and size from which rules on a rescale compute the next batch; by default, the present ones."""
        return (self.base_batch, self.base_size) if self.base_size else (self.global_batch_size, size)


@dataclass(frozen=True)
class RunPosition:
    """The position of the job at a barrier: steps and samples done, and the learning rate."""

    steps: int  # the number of steps done
    samples: int  # the number of samples of all steps done
    epoch_samples: int  # the number of samples of an epoch; 0 if it is unknown
    learning_rate: float  # the learning rate of the last step, on the scale of the ramp
    schedule: float = 1.0  # the current value of the schedule by which the numbers of a ramp are multiplied


def awaited_size(terms: Terms) -> int:
    """The size with which a requested batch or learning rate comes into force; 0 if none waits for a size."""
    what = None if terms.awaiting_size is None else terms.awaiting_size.what
    return what.size if isinstance(what, Resize) else 0


def missed_settings(before: Terms, after: Terms, *, size: int) -> Asked | None:
    """The request whose batch and rate waited for a size, if the change has ended with ``size`` peers instead."""
    is_over = after.awaiting_size is None and awaited_size(before) != size
    return before.awaiting_size if is_over else None


def meant_size(view: View, terms: Terms) -> int:
    """The number of peers of a view without its departing peers, which stay only until the joiners hold the state.

    >>> from kungfu.runtime.core.view import Peer
    >>> three = View(2, (Peer(0, "a:1"), Peer(1, "a:2"), Peer(2, "a:3")))
    >>> meant_size(three, Terms(departing=(0,)))
    2
    """
    return max(1, view.size - len(set(terms.departing) & set(view.ids)))
