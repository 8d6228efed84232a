"""The ways in which the replicas of a model are kept alike: by their gradients in every step, or by averages of models.

Between two averages every peer applies its own gradients (*local SGD*), and no peer waits for another. The *window* is
the steps since the last average.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kungfu.errors import PolicyError
from kungfu.signal.whole_number import is_whole_number


@dataclass(frozen=True)
class AverageModels:
    """Averages the models every ``every`` steps, in place of gradients in every step; made by `average_models`."""

    every: int

    def __post_init__(self) -> None:
        if not is_whole_number(self.every, least=1):
            raise PolicyError(
                f"average_models(every={self.every!r}): takes a whole number of steps, at least 1, such as 16"
            )


Synchronisation = Literal["gradients"] | AverageModels


def average_models(*, every: int) -> AverageModels:
    """Each peer applies its own gradients, and every ``every``-th step ends with an average of the peers' models.

    The average covers weights and optimizer slots: of peers ``r`` with models ``w_r``, which have trained on ``b_r``
    samples since the last average, it is ``sum(b_r w_r) / sum(b_r)``. With ``every=1`` and an optimizer that is linear
    in the gradient, such as SGD with momentum, it is the model that an average of the gradients gives.

    An epoch, a barrier and the end of training are preceded by an average, so there all peers hold one model. A rule
    that is due acts at the next average. Samples that a lost peer has trained on since the last average, at most
    ``every`` times its share of a batch, are in no average; an event says how many.

    Args:
        every: H, the number of steps from one average to the next, at least 1.

    Returns:
        The value for ``kungfu.attach(sync=...)`` and ``kungfu.keras.attach(sync=...)``.

    Raises:
        PolicyError: ``every`` is not a whole number of at least 1.

    Cost:
        No message in the steps between two averages. Every H-th step sends a small message with the policies' values
        and one message with weights and slots, and copies these, to undo the step if a peer is lost in it.

    Reference:
        Stich, 2019, *Local SGD Converges Fast and Communicates Little*; Lin et al., 2020, *Don't Use Large
        Mini-Batches, Use Local SGD*; Mai et al., *Adaptive Distributed Training of Deep Learning Models*, section 2.

    >>> average_models(every=16)
    AverageModels(every=16)
    """
    return AverageModels(every)
