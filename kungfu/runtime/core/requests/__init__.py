"""Requests of those who steer a job from outside: what may be asked, what is refused, how far each one is."""

from kungfu.runtime.core.requests.ledger import (
    Answer,
    Asked,
    Entry,
    Event,
    Heard,
    Ledger,
    Measured,
    Over,
    Tick,
    Viewed,
    current,
    first_answer,
)
from kungfu.runtime.core.requests.profiling import Point, Step
from kungfu.runtime.core.requests.request import (
    Action,
    Checkpoint,
    Migrate,
    Profile,
    Request,
    Resize,
    ScaleIn,
    ScaleOut,
    Stop,
    in_words,
)
from kungfu.runtime.core.requests.situation import Situation
from kungfu.runtime.core.requests.step import step

__all__ = [
    "Action",
    "Answer",
    "Asked",
    "Checkpoint",
    "Entry",
    "Event",
    "Heard",
    "Ledger",
    "Measured",
    "Migrate",
    "Over",
    "Point",
    "Profile",
    "Request",
    "Resize",
    "ScaleIn",
    "ScaleOut",
    "Situation",
    "Step",
    "Stop",
    "Tick",
    "Viewed",
    "current",
    "first_answer",
    "in_words",
    "step",
]
