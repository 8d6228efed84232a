"""Requests of those who steer a job from outside: what may be asked, what is refused, how far each one is."""

from kungfu.runtime.core.requests.admission import AdmissionContext
from kungfu.runtime.core.requests.job_request import (
    Action,
    JobRequest,
    Migrate,
    Profile,
    Resize,
    SaveCheckpoint,
    ScaleIn,
    ScaleOut,
    StopTraining,
    in_words,
)
from kungfu.runtime.core.requests.profiling import Point, TimedStep
from kungfu.runtime.core.requests.request_log import (
    Answer,
    Event,
    LeaderReplied,
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
from kungfu.runtime.core.requests.step import step

__all__ = [
    "Action",
    "AdmissionContext",
    "Answer",
    "Event",
    "JobRequest",
    "LeaderReplied",
    "LoggedRequest",
    "Migrate",
    "Point",
    "Profile",
    "RequestLog",
    "RequestSubmitted",
    "Resize",
    "SaveCheckpoint",
    "ScaleIn",
    "ScaleOut",
    "StepsMeasured",
    "StopTraining",
    "TimePassed",
    "TimedStep",
    "TrainingEnded",
    "ViewChanged",
    "current",
    "first_answer",
    "in_words",
    "step",
]
