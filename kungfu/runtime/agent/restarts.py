"""Starts a job again from its newest checkpoint, in the same folder and record.

A job whose peers or hosts were lost is started again by the same kungfu-run; a kungfu-run that was killed is started
again by its supervisor, such as Slurm or systemd. Both read the record of the job, and number the peers and views of
the next run after those in it. Restarts without a newer checkpoint are counted, so that a crash loop ends.

Reference: Amoeba, 5.1: "the job restarts from the latest checkpoint".
"""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

from kungfu.errors import UsageError
from kungfu.event_log.events import EndedEvent, FailedEvent, RestartedEvent
from kungfu.event_log.job import Job
from kungfu.event_log.numbers import as_whole
from kungfu.event_log.record_follower import JobWatcher
from kungfu.runtime.agent.consensus.host_admission import FormerJob
from kungfu.runtime.agent.context import JobSpec
from kungfu.runtime.checkpoints.folder import claim, newest_whole
from kungfu.runtime.checkpoints.manifest import read_manifest
from kungfu.runtime.core.failure import NO_QUORUM_CODE
from kungfu.runtime.job_api.job_file import read_job_file, state_of
from kungfu.runtime.settings import Settings

_LOCK = ".kungfu-run.lock"
_APART = 1000  # the numbers left to the peers and views that this record may lack


class UnreadableCheckpoints(UsageError):  # noqa: N818 - a state of the folder
    """The job has checkpoints, and none of them can be read."""


def plan_restart(folder: Path, job: JobSpec) -> RestartedEvent | None:
    """The next start of a job according to its record in ``folder``; ``None`` if the job has not started yet.

    Raises:
        UnreadableCheckpoints: The job has written checkpoints, and none can be read.
        UsageError: The record cannot be read.
    """
    past, given = JobWatcher(folder).look(), job.settings.checkpoints
    if past.started is None:
        return None
    # A program may write its checkpoints to a folder of its own.
    folders = {Path(given.folder), *([Path(past.checkpoint.path).parent] if past.checkpoint else [])}
    found = [newest_whole(one, past.names) for one in sorted(folders)]
    damaged = tuple(str(path) for _, paths in found for path in paths)
    whole = [path for path, _ in found if path is not None]
    if damaged and not whole:
        raise UnreadableCheckpoints(
            f"no checkpoint of the job can be read: {', '.join(damaged)}; restore one of them, or give another "
            "--logdir to begin anew"
        )
    # Before its first own checkpoint the job begins as its command line says.
    own = max(whole, key=lambda path: read_manifest(path).step, default=None)
    path = str(own or given.resume)
    manifest = read_manifest(Path(path)) if path else None
    step = manifest.step if manifest else 0
    # Other hosts may have elected a leader and gone on after the loss of this host, whose record lacks their numbers.
    several, before = job.is_networked, past.restarted.first_peer if past.restarted else 0
    peer, view = max([before, *(peer + 1 for peer in past.peers)]), _newest_view(past)
    return RestartedEvent(
        why=job.lost or _end_of(past),
        nth=_in_a_row(past, path) + (bool(job.lost) or not isinstance(past.ending, EndedEvent)),
        limit=job.restarts,
        path=path,
        step=step,
        steps_again=max(0, past.steps - step),
        size=job.settings.limits.clip(manifest.size) if manifest and own else job.size,
        first_peer=(peer // _APART + 1) * _APART if several else peer,
        # Even on one host, a view that was not recorded any more may have begun.
        first_view=(view // _APART + 1) * _APART if several else view + 2,
        damaged=damaged,
    )


def _in_a_row(past: Job, path: str) -> int:
    """The restarts up to now that were made from the checkpoint at ``path``, so that no newer one was written since."""
    return past.restarted.nth if past.restarted is not None and past.restarted.path == path else 0


def _end_of(past: Job) -> str:
    match past.ending:
        case FailedEvent(error=error):
            return error
        case EndedEvent(reason=reason):
            return f"{reason} had ended it"
    return "its kungfu-run was killed, or the machine failed"


def _newest_view(past: Job) -> int:
    recorded = as_whole(past.newest.get("view")) or 0
    return max(recorded, past.view.version if past.view else 0, past.restarted.first_view if past.restarted else 0)


def next_restart(folder: Path, job: JobSpec) -> int:
    """The number of restarts in a row, including the one that follows the loss of this job; 0 if none may follow."""
    if not job.restarts:
        return 0
    try:
        planned = plan_restart(folder, replace(job, lost="lost"))
    except UsageError:  # the restart names the checkpoints that cannot be read
        return 1
    nth = 1 if planned is None else planned.nth
    return nth if nth <= job.restarts else 0


def restarted(settings: Settings, restart: RestartedEvent) -> Settings:
    """The settings of the peers of a job that is started again."""
    checkpoints = replace(settings.checkpoints, resume=restart.path, founders=restart.size)
    return replace(settings, first_peer=restart.first_peer, checkpoints=checkpoints)


# ---- the folder ------------------------------------------------------------------------------------------------------


def is_over(folder: Path) -> bool:
    """True if the job in ``folder`` has trained to its end; raises ``UsageError`` if the record cannot be read."""
    ending = JobWatcher(folder).look().ending
    return isinstance(ending, EndedEvent) and ending.code == 0


def former_job(folder: Path) -> FormerJob:
    """The job whose record is in ``folder``, with its hosts unless its end is recorded: a quorum holds the end."""
    past = JobWatcher(folder).look()
    is_over = past.ending is not None and past.ending.code != NO_QUORUM_CODE
    hosts = {} if is_over else {host.address: host.name for host in past.hosts.values() if host.address}
    return FormerJob(past.names, hosts)


def lock_record(folder: Path) -> str:
    """Locks the folder of a record until this process ends, so that no second kungfu-run uses the folder.

    Returns:
        The reason why another kungfu-run might use the folder nevertheless; empty if none does.

    Raises:
        FolderInUse: Another kungfu-run uses the folder; the error names its process and its host.
    """
    own = f"kungfu-run, process {os.getpid()} on {socket.gethostname()},"
    if not claim(folder, own, lock=_LOCK, what="keeps the record of its job there"):
        return f"{folder} cannot be locked on its file system: make sure that no other kungfu-run uses this folder"
    try:
        former = read_job_file(folder)
    except UsageError:  # there is no job yet
        return ""
    if former.ended is not None or state_of(former) != "unknown":
        return ""
    return (
        f"the last kungfu-run in {folder} was on another machine, or this one was restarted since, and its end is not "
        "recorded: make sure that it does not run any more"
    )
