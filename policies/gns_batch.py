"""Let the batch follow the gradient noise scale."""

from __future__ import annotations

from kungfu import control, monitor
from kungfu.control import Rule
from kungfu.ops import clip, round
from kungfu.policy import policy
from kungfu.signal import TrainingSignals

__all__ = ["gns_batch"]


@policy
def gns_batch(
    training: TrainingSignals, *, max_peers: int, min_peers: int = 2, decay: float = 0.01, every: int = 50
) -> Rule:
    """As many peers as their local batches make up one noise scale, so that the batch is as large as it is useful."""
    noise = monitor.gradient_noise_scale(training, decay=decay)
    peers = clip(round(noise / training.local_batch_size), min_peers, max_peers)
    return control.every(every).rescale(peers)
