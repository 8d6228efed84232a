"""What may be asked of a running job, as values; table 1 of the paper on Amoeba and what schedulers need beside it.

``keep`` says which batch size stays when the size changes. It is the whole one if nothing is said: a scheduler gives
and takes peers, and the training must not be another because of it (Wu et al., 2019, section 5).
"""

from __future__ import annotations

from dataclasses import dataclass

from kungfu.runtime.core.terms import Keep

__all__ = [
    "Action",
    "JobRequest",
    "Migrate",
    "Profile",
    "Resize",
    "SaveCheckpoint",
    "ScaleIn",
    "ScaleOut",
    "StopTraining",
    "in_words",
]


@dataclass(frozen=True)
class Resize:
    """The job shall have ``size`` peers."""

    size: int
    keep: Keep = "global_batch_size"


@dataclass(frozen=True)
class ScaleOut:
    """The job shall have ``count`` peers more than now."""

    count: int
    keep: Keep = "global_batch_size"


@dataclass(frozen=True)
class ScaleIn:
    """These peers shall leave."""

    peers: tuple[int, ...]
    keep: Keep = "global_batch_size"


@dataclass(frozen=True)
class Migrate:
    """A new peer on ``host`` takes the place of ``peer``: it joins before the other one leaves."""

    peer: int
    host: str


@dataclass(frozen=True)
class SaveCheckpoint:
    """The state of the job shall be written to disk."""


@dataclass(frozen=True)
class Profile:
    """The throughput of every size from ``minimum`` to ``maximum`` shall be measured, over ``steps`` steps each."""

    minimum: int
    maximum: int
    steps: int
    keep: Keep = "global_batch_size"


@dataclass(frozen=True)
class StopTraining:
    """Training shall end on all peers."""


Action = Resize | ScaleOut | ScaleIn | Migrate | SaveCheckpoint | Profile | StopTraining


@dataclass(frozen=True)
class JobRequest:
    """An action under an id that the asker chose; with ``if_view`` only in the view of that version."""

    id: str
    action: Action
    if_view: int | None = None


def in_words(action: Action) -> str:
    """An action as a person would type it.

    Args:
        action: The action.

    >>> in_words(ScaleIn((1, 3))), in_words(Migrate(2, "b")), in_words(Profile(1, 4, 50))
    ('scale-in 1 3', 'migrate 2 -> b', 'profile 1 4')
    """
    match action:
        case Resize(size):
            return f"resize {size}"
        case ScaleOut(count):
            return f"scale-out {count}"
        case ScaleIn(peers):
            return " ".join(["scale-in", *(str(peer) for peer in peers)])
        case Migrate(peer, host):
            return f"migrate {peer} -> {host}"
        case SaveCheckpoint():
            return "checkpoint"
        case Profile(minimum, maximum):
            return f"profile {minimum} {maximum}"
        case StopTraining():
            return "stop"
