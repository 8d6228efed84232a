"""A policy that grows the batch only as far as new peers need it, and scales the learning rate accordingly."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import kungfu as kf
from kungfu.errors import PolicyError

if TYPE_CHECKING:
    from kungfu.control import Rule
    from kungfu.signal import Signal, TrainingSignals


@kf.policy
def hybrid_scaling(
    training: TrainingSignals, optimal_peers: Mapping[int, int], *, over_steps: float = 100
) -> tuple[Rule, Rule]:
    """Sets, on every rescale, the smallest batch that keeps all peers busy, and a learning rate in proportion.

    Given N peers and the global batch B, both last set by `attach` or by a rule in a step, and N' peers now, the new
    batch is ``k * B`` with the first k of 1, 2, 4, ... up to N'/N whose batch ``k * B`` keeps at least N' peers busy;
    if there is no such k, the new batch is ``B * N' / N``. So a job first scales strongly (the same batch on more
    peers), which does not affect its result, and scales weakly only if peers would otherwise idle. The learning rate
    becomes ``rate * (batch / batch before)``, on a linear ramp. Thus the batch and the rate depend on the size alone,
    and growing and shrinking back restores both. The paper's rule starts from the previous size, and would halve a
    batch that it had not doubled. The policy requests no size: combine it with a policy that does.

    Args:
        training: The signals of a step.
        optimal_peers: Measured values, ``{global batch: number of peers with which it trains fastest}``; a batch
            between two entries counts as the smaller entry; a batch below all entries keeps only one peer busy.
        over_steps: Length of the learning rate's ramp, steps, at least 0.

    Raises:
        PolicyError: At `attach`, for a table that is empty or not of whole numbers from 1 on.

    Cost:
        Nothing in any step; the policy is evaluated inside the barrier.

    Reference:
        Xie et al., *Elan: Towards Generic and Efficient Elastic Training for Deep Learning*, 2020, algorithm 1.

    >>> hybrid_scaling({64: 2, 256: 4, 1024: 16}).name
    'hybrid_scaling'
    """
    _check(optimal_peers)
    base, peers = training.base_global_batch_size, training.size
    growth = peers / training.base_size
    batch: Signal = base * growth
    for doublings in reversed(range(16)):
        factor = 2**doublings
        busy = _looked_up(base * factor, optimal_peers) >= peers
        batch = kf.ops.where((factor <= growth) & busy, base * factor, batch)
    at_rescale = kf.control.on_rescale()
    rate = training.learning_rate * (training.global_batch_size / training.previous_global_batch_size)
    return at_rescale.set_global_batch_size(batch), at_rescale.set_learning_rate(rate, over_steps=over_steps)


def _looked_up(batch: Signal, table: Mapping[int, int]) -> Signal:
    found: Signal = kf.ops.constant(1)
    for entry, peers in sorted(table.items()):
        found = kf.ops.where(batch >= entry, peers, found)
    return found


def _check(table: Mapping[int, int]) -> None:
    entries = [one for pair in table.items() for one in pair] if isinstance(table, Mapping) else []
    if not entries or any(isinstance(one, bool) or not isinstance(one, int) or one < 1 for one in entries):
        raise PolicyError(
            f"hybrid_scaling({table!r}): takes {{global batch: optimal number of peers}} in whole numbers from 1 on, "
            "e.g. {64: 2, 256: 4}"
        )
