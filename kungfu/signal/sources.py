"""The sources that a step provides to policies, one line each; ``program_sources`` has those of the user's program.

A source has a type, a placement, and the moment it is known. *Local*: each peer has its own value. *Agreed*: all
peers hold the same value. *Before* and *after* are meant against the gradient all-reduce of the step: what is made of
local sources known before it can ride on that message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kungfu.signal.operation import NEST, SignalType

Placement = Literal["local", "agreed"]
GivenBy = Literal[
    "step", "publish", "feed"
]  # kungfu's step, or the user's program by training.publish or training.feed
Known = Literal["before", "after"]

_FLOAT = SignalType("float32")
_INT = SignalType("int64")
_BOOL = SignalType("bool")
_NEST = SignalType("float32", NEST)


@dataclass(frozen=True)
class SourceKind:
    """One source: its meaning, unit and provider, and its replacement if an agreed value is needed."""

    type: SignalType
    placement: Placement
    known: Known
    unit: str
    meaning: str
    agreed_counterpart: str = ""
    given_by: GivenBy = "step"


SOURCES = {
    "grads": SourceKind(_NEST, "local", "before", "", "this peer's own gradients", "mean_grads"),
    "loss": SourceKind(_FLOAT, "local", "before", "", "this peer's own loss", "mean_loss"),
    "samples": SourceKind(_FLOAT, "local", "before", "samples", "this peer's true share of the step", "total_samples"),
    "rank": SourceKind(_INT, "local", "before", "", "this peer's place in the view, 0 to size - 1"),
    "busy_seconds": SourceKind(
        _FLOAT, "local", "before", "s", "own time from the last synchronisation to own gradients; NaN after a barrier"
    ),
    "step_seconds": SourceKind(
        _FLOAT, "local", "before", "s", "the previous whole step on this peer; NaN after a barrier"
    ),
    "host_joiners": SourceKind(_INT, "local", "before", "peers", "joiners that are getting ready on this peer's host"),
    "mean_grads": SourceKind(_NEST, "agreed", "after", "", "the gradients averaged over all samples of the step"),
    "mean_loss": SourceKind(_FLOAT, "agreed", "after", "", "the loss averaged over all samples of the step"),
    "total_samples": SourceKind(_FLOAT, "agreed", "after", "samples", "samples of the step over all peers"),
    "pending": SourceKind(_BOOL, "agreed", "after", "", "peers join, or the barrier may change the cluster"),
    "barrier_due": SourceKind(_BOOL, "agreed", "after", "", "this step ends with a barrier that was requested"),
    "change_due": SourceKind(_BOOL, "agreed", "after", "", "the barrier after this step may change the cluster"),
    "target_size": SourceKind(
        _INT, "agreed", "before", "peers", "size of the job once those under way have come, 0 if none are"
    ),
    "replacing": SourceKind(_BOOL, "agreed", "before", "", "peers are under exchange for others"),
    "step": SourceKind(_INT, "agreed", "before", "steps", "number of the running step, from 1"),
    "size": SourceKind(_INT, "agreed", "before", "peers", "peers in the view"),
    "local_batch_size": SourceKind(_FLOAT, "agreed", "before", "samples", "global batch size over size"),
    "global_batch_size": SourceKind(_INT, "agreed", "before", "samples", "samples requested by a step"),
    "epoch_samples": SourceKind(
        _INT, "agreed", "before", "samples", "samples of an epoch, beyond which no step goes; 0 if unknown"
    ),
    "learning_rate": SourceKind(_FLOAT, "agreed", "before", "", "the optimizer's learning rate"),
    "view": SourceKind(_INT, "agreed", "before", "", "number of the view: larger whenever other peers are in it"),
    "min_size": SourceKind(_INT, "agreed", "before", "peers", "fewest peers this job may have"),
    "max_size": SourceKind(_INT, "agreed", "before", "peers", "most peers this job may have"),
    "replacement_refused": SourceKind(
        _BOOL, "agreed", "before", "", "nobody came for the peers that were to be replaced last"
    ),
    "refused_size": SourceKind(_INT, "agreed", "before", "peers", "last size that could not be reached, 0 if none"),
    "replaced_peers": SourceKind(
        _INT, "agreed", "before", "peers", "peers that were replaced so far, as rules, hooks or commands asked"
    ),
    "samples_done": SourceKind(_INT, "agreed", "before", "samples", "samples trained on before this step"),
    "job_samples": SourceKind(
        _INT, "agreed", "before", "samples", "samples of the whole job, all epochs of training.batches; 0 if unknown"
    ),
    "clock_seconds": SourceKind(_FLOAT, "local", "before", "s", "time since this peer's first step"),
    "rescale_seconds": SourceKind(
        _FLOAT, "local", "before", "s", "the time for which the last rescale stopped this peer; NaN before its first"
    ),
    "previous_size": SourceKind(
        _INT, "agreed", "before", "peers", "peers before the rescale; in kf.control.on_rescale()"
    ),
    "previous_global_batch_size": SourceKind(
        _INT, "agreed", "before", "samples", "samples of a step before the rescale; in kf.control.on_rescale()"
    ),
    "base_global_batch_size": SourceKind(
        _INT,
        "agreed",
        "before",
        "samples",
        "samples of a step as set last outside kf.control.on_rescale(); in its rules",
    ),
    "base_size": SourceKind(_INT, "agreed", "before", "peers", "peers that it was set for; in kf.control.on_rescale()"),
}

# What a gate may be a function of: whole numbers that are equal on every peer whatever its arithmetic.
GATE_SOURCES = frozenset({"step", "size", "min_size", "max_size"})

# What only a barrier that changes the size knows, and all that a rule of control.on_rescale() may use.
ONLY_AT_RESCALE = frozenset({"previous_size", "previous_global_batch_size", "base_global_batch_size", "base_size"})
RESCALE_SOURCES = GATE_SOURCES | ONLY_AT_RESCALE | {"global_batch_size", "epoch_samples", "learning_rate"}
