"""What somebody outside the training graph wants of a job: a person, a scheduler, a platform that takes a peer away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kungfu.runtime.core.decide import Keep

__all__ = ["Demand", "DemandKind"]

DemandKind = Literal["resize", "leave", "notice", "replace", "checkpoint", "stop"]


@dataclass(frozen=True)
class Demand:
    """One wish that the agent passes to the leader, carried out at a barrier.

    | kind         | what                                                                        |
    | ------------ | --------------------------------------------------------------------------- |
    | `resize`     | the job shall have ``size`` peers                                            |
    | `leave`      | ``peers`` leave at once, down to the job's minimum, and nobody comes instead |
    | `notice`     | ``peers`` leave at once: they will be taken away; ``size`` with those to come |
    | `replace`    | ``peers`` leave when as many others are ready to take their places           |
    | `checkpoint` | the state is written down                                                    |
    | `stop`       | training ends on all peers                                                   |

    ``why`` stands where an event names the rule that decided; ``keep`` is the batch size that stays when the size
    changes: the whole one, unless it says else, for nobody outside may change what is trained without saying so.
    ``host`` is the number of the host on which those who replace others shall run, ``None`` for any.
    """

    kind: DemandKind
    why: str
    size: int = 0
    peers: tuple[int, ...] = ()
    id: str = ""
    keep: Keep = "global_batch_size"
    host: int | None = None
