"""Requests of those who steer a job from outside: what may be asked, what is refused, how far each one is."""

from kungfu.runtime.core.requests.admission import AdmissionContext
from kungfu.runtime.core.requests.profiling import Point, TimedStep
from kungfu.runtime.core.requests.request_log import (
    Answer,
    CoordinatorReplied,
    Event,
    LoggedRequest,
    RequestLog,
    RequestSubmitted,
    StepsMeasured,
    TimePassed,
    TrainingEnded,
    ViewChanged,
    current,
    first_answer,
)
from kungfu.runtime.core.requests.request_transitions import react

__all__ = [
    "AdmissionContext",
    "Answer",
    "CoordinatorReplied",
    "Event",
    "LoggedRequest",
    "Point",
    "RequestLog",
    "RequestSubmitted",
    "StepsMeasured",
    "TimePassed",
    "TimedStep",
    "TrainingEnded",
    "ViewChanged",
    "current",
    "first_answer",
    "react",
]
