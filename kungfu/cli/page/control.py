"""The requests behind the buttons of a page, and previews of their effects; both require the job's secret."""

from __future__ import annotations

import hmac
import math
import secrets
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kungfu.cli.job.plan_forecast import forecast_plan, plan_lines
from kungfu.cli.page.feed import PageFeed
from kungfu.errors import UsageError
from kungfu.event_log.events import CheckpointEvent
from kungfu.event_log.job import Job
from kungfu.event_log.values import counted, duration, figure
from kungfu.runtime.core.request import AnyRequest, Asked, Release, Request, Resize, SaveCheckpoint, StopTraining
from kungfu.runtime.core.requests.admission import MOST_HOLD_S
from kungfu.runtime.job_api.client import connected
from kungfu.runtime.job_api.job_file import read_job_file
from kungfu.runtime.job_api.request_plan import RequestPlan
from kungfu.runtime.job_api.status import JobStatus

_ACTIONS = ("resize", "release", "checkpoint", "stop")
_LONGEST_ID = 100


class JobControl:
    """Sends requests to the job recorded in ``folder``; every call returns or raises within a few seconds."""

    def __init__(self, folder: Path, *, feed: PageFeed) -> None:
        self._folder, self._feed = folder, feed

    def knows(self, secret: str) -> bool:
        """True if `secret` is the job's secret; raises ``UsageError`` if the job's file cannot be read."""
        expected = read_job_file(self._folder).secret
        # A job that is over has no secret, so no value matches.
        return bool(expected) and hmac.compare_digest(secret.strip().lower().encode(), expected.lower().encode())

    def plan(self, request: Asked) -> dict[str, Any]:
        """Previews the effects of a request, and changes nothing; raises ``KungfuError`` if the job does not answer."""
        with connected(self._folder) as job:
            plan, status = job.plan(request), job.status()
        what, is_held = request.what, status.membership.held_at is not None
        changes_nothing = isinstance(what, Resize) and plan.before == plan.after and what.hold_s is None and not is_held
        return {
            "request": plan.words,
            "refusal": plan.refusal,
            "view": plan.view,
            "changes_nothing": changes_nothing and not plan.refusal,
            "lines": self._preview(what, plan, status),
        }

    def _preview(self, what: AnyRequest, plan: RequestPlan, status: JobStatus) -> list[str]:
        if plan.refusal and not isinstance(what, Resize):
            return [f"{plan.words} would be refused: {plan.refusal}"]
        match what:
            case Resize() | Release():
                forecast = forecast_plan(self._folder, plan, status, measured=self._feed.measured())
                if isinstance(what, Resize):
                    return [*plan_lines(plan, forecast)]
                return [f"the job keeps {counted(plan.before, 'peer')}; policies decide again", *forecast.undone_by]
            case SaveCheckpoint():
                return _checkpoint_lines(self._feed.job, self._folder.absolute())
        return _stop_lines(self._feed.job, plan)

    def submit(self, request: Asked) -> dict[str, Any]:
        """Submits a request and returns the job's first answer; the record shows the outcome. Raises as `plan` does."""
        with connected(self._folder) as job:
            return {**asdict(job.submit(request)), "points": []}


def request_of(body: Any) -> Asked:
    """Parses an object from a browser: ``action``, and optionally ``id`` and ``if_view``.

    With ``resize`` come ``size`` and perhaps ``hold``: the seconds of a hold, or true for a hold until it is released.

    Raises:
        UsageError: The object is not a request.
    """
    if not isinstance(body, Mapping):
        raise UsageError('the request must be an object, such as {"action": "resize", "size": 3}')
    name = body.get("id", "")
    if not isinstance(name, str) or len(name) > _LONGEST_ID:
        raise UsageError(f"id: must be a text of up to {_LONGEST_ID} characters")
    if_view = body.get("if_view")
    if_view = None if if_view is None else _whole("if_view", if_view)
    return Asked(_action(body), id=name or secrets.token_hex(4), if_view=if_view)


def _checkpoint_lines(job: Job, folder: Path) -> list[str]:
    first = "rank 0 writes the state of the job after the step under way; the others train on meanwhile"
    if (newest := job.checkpoint) is None:
        return [
            first,
            f"where: the job's folder of checkpoints ({folder / 'checkpoints'}, unless --checkpoints of "
            "kungfu-run names another one)",
            "this job has written no checkpoint yet, so how long it stops the training is not known",
        ]
    stopped = f"it stopped the training for {duration(newest.stop_s)}"
    return [first, f"where: beside the newest one, {newest.path}", f"that one is {_age(newest, job)}; {stopped}"]


def _stop_lines(job: Job, plan: RequestPlan) -> list[str]:
    newest, now = job.checkpoint, figure(_newest_step(job))
    return [
        f"training ends on {counted(plan.before, 'peer')} after the step under way; now it is step {now}",
        "their programs run on to their ends, and save what they save there; the record stays",
        "this job has written no checkpoint: what is not saved by the program itself is lost"
        if newest is None
        else f"the newest checkpoint is {_age(newest, job)}: {newest.path}",
        "a stopped job does not continue by itself; kungfu-run --resume continues from a checkpoint",
    ]


def _age(checkpoint: CheckpointEvent, job: Job) -> str:
    behind = counted(_newest_step(job) - checkpoint.step, "step")
    return f"of step {figure(checkpoint.step)}, {behind} before this one"


def _newest_step(job: Job) -> int:
    return int(job.known.get("step", 0))


def _action(body: Mapping[str, Any]) -> Request:
    match body.get("action"):
        case "resize":
            return Resize(_whole("size", body.get("size")), "global_batch_size", hold_s=_hold_s(body.get("hold")))
        case "release":
            return Release()
        case "checkpoint":
            return SaveCheckpoint()
        case "stop":
            return StopTraining()
    raise UsageError(f"action: must be one of {', '.join(_ACTIONS)}")


def _hold_s(value: Any) -> float | None:
    """The seconds of a hold, infinite for true; ``None`` for no hold."""
    if value is None or isinstance(value, bool):
        return math.inf if value else None
    if not isinstance(value, int | float) or not 0 < value <= MOST_HOLD_S:
        raise UsageError(f"hold: must be true, or a number of seconds from 0 to {MOST_HOLD_S:g}")
    return float(value)


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
        raise UsageError(f"{name}: must be a whole number, 0 or more")
    return value
