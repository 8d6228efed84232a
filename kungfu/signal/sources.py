"""The sources that a step provides to policies, one row each; policies declare the sources of the user's program.

A source has a type, a placement, and a time at which it is known. *Local*: each peer has a separate value. *Agreed*:
all peers have the same value. *Before* and *after* refer to the gradient all-reduce of the step: a local value that is
known before this message can be sent with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kungfu.signal.operation import NEST, SignalType

Placement = Literal["local", "agreed"]
# The provider: kungfu's step, the user's program through training.publish or training.feed, or the average of models
GivenBy = Literal["step", "publish", "feed", "average"]
Known = Literal["before", "after"]

_FLOAT = SignalType("float32")
_INT = SignalType("int64")
_BOOL = SignalType("bool")
_NEST = SignalType("float32", NEST)


@dataclass(frozen=True)
class SourceKind:
    """A source: its meaning, unit and provider; if it is local, also the source for all peers together."""

    type: SignalType
    meaning: str
    unit: str = ""
    placement: Placement = "agreed"
    known: Known = "before"
    agreed_counterpart: str = ""
    given_by: GivenBy = "step"


SOURCES = {
    "grads": SourceKind(_NEST, "this peer's own gradients", placement="local", agreed_counterpart="mean_grads"),
    "loss": SourceKind(_FLOAT, "this peer's own loss", placement="local", agreed_counterpart="mean_loss"),
    "samples": SourceKind(
        _FLOAT,
        "the number of samples in this peer's share of the step",
        "samples",
        placement="local",
        agreed_counterpart="total_samples",
    ),
    "micro_batches": SourceKind(
        _INT, "the micro-batches with samples in this peer's share of the step", placement="local"
    ),
    "micro_batch_variance": SourceKind(
        _FLOAT,
        "variance of a sample's gradient within this peer's share; NaN with fewer than two micro-batches",
        "samples",
        placement="local",
    ),
    "rank": SourceKind(_INT, "this peer's rank in the view, 0 to size - 1", placement="local"),
    "busy_seconds": SourceKind(
        _FLOAT,
        "time of this peer from the last synchronisation to its gradients; NaN after a barrier",
        "s",
        placement="local",
    ),
    "step_seconds": SourceKind(
        _FLOAT, "the duration of the previous step on this peer; NaN after a barrier", "s", placement="local"
    ),
    "host_joiners": SourceKind(_INT, "joiners that are getting ready on this peer's host", "peers", placement="local"),
    "mean_grads": SourceKind(_NEST, "the gradients averaged over all samples of the step", known="after"),
    "mean_loss": SourceKind(_FLOAT, "the loss averaged over all samples of the step", known="after"),
    "total_samples": SourceKind(_FLOAT, "samples of the step over all peers", "samples", known="after"),
    "pending": SourceKind(_BOOL, "peers join, or the barrier may change the cluster", known="after"),
    "barrier_due": SourceKind(_BOOL, "this step ends with a barrier that was requested", known="after"),
    "change_due": SourceKind(_BOOL, "the barrier after this step may change the cluster", known="after"),
    "target_size": SourceKind(
        _INT, "size of the job once the peers under way have joined; 0 if no peer is under way", "peers"
    ),
    "replacing": SourceKind(_BOOL, "peers are being exchanged"),
    "step": SourceKind(_INT, "number of the running step, from 1", "steps"),
    "size": SourceKind(_INT, "peers in the view", "peers"),
    "local_batch_size": SourceKind(_FLOAT, "global batch size divided by size", "samples"),
    "global_batch_size": SourceKind(_INT, "samples requested by a step", "samples"),
    "epoch_samples": SourceKind(_INT, "samples of an epoch; no step crosses its end; 0 if unknown", "samples"),
    "learning_rate": SourceKind(_FLOAT, "the optimizer's learning rate"),
    "requested_rate": SourceKind(_FLOAT, "the learning rate that a rule or a hook requested last, 0 if none"),
    "view": SourceKind(_INT, "number of the view, which increases whenever the set of peers changes"),
    "min_size": SourceKind(_INT, "the minimum number of peers of the job", "peers"),
    "max_size": SourceKind(_INT, "the maximum number of peers of the job", "peers"),
    "replacement_refused": SourceKind(_BOOL, "the last replacement failed: no new peer came"),
    "refused_size": SourceKind(_INT, "last size that could not be reached, 0 if none", "peers"),
    "replaced_peers": SourceKind(_INT, "peers replaced so far at the request of rules, hooks or commands", "peers"),
    "epoch": SourceKind(_INT, "the running epoch of the loader, or of `fit`, from 0", "epochs"),
    "samples_done": SourceKind(_INT, "samples trained on before this step", "samples"),
    "job_samples": SourceKind(
        _INT, "samples of the whole job, all epochs of training.batches; 0 if unknown", "samples"
    ),
    "clock_seconds": SourceKind(_FLOAT, "time since this peer's first step", "s", placement="local"),
    "rescale_seconds": SourceKind(
        _FLOAT, "the time for which the last rescale stopped this peer; NaN before its first", "s", placement="local"
    ),
    "previous_size": SourceKind(_INT, "peers before the rescale; in kf.control.on_rescale()", "peers"),
    "previous_global_batch_size": SourceKind(
        _INT, "samples of a step before the rescale; in kf.control.on_rescale()", "samples"
    ),
    "base_global_batch_size": SourceKind(
        _INT, "samples of a step, as last set outside kf.control.on_rescale(); in its rules", "samples"
    ),
    "base_size": SourceKind(
        _INT, "peers of the job when `base_global_batch_size` was set; in kf.control.on_rescale()", "peers"
    ),
}

# The sources allowed in a gate: whole numbers that are equal on every peer whatever its arithmetic.
GATE_SOURCES = frozenset({"step", "size", "min_size", "max_size"})

# Sources known only to a barrier that changes the size, and all sources allowed in rules of control.on_rescale().
ONLY_AT_RESCALE = frozenset({"previous_size", "previous_global_batch_size", "base_global_batch_size", "base_size"})
RESCALE_SOURCES = GATE_SOURCES | ONLY_AT_RESCALE | {"global_batch_size", "epoch_samples", "learning_rate"}
