"""The settings that the launcher passes to a peer; only this module reads them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from kungfu.errors import UsageError

AttachmentName = Literal["solo", "local", "horovod"]

ENVIRONMENT_KEY = "KUNGFU_SETTINGS"


@dataclass(frozen=True)
class Limits:
    """The limits of the job's size, in peers, both inclusive."""

    minimum: int
    maximum: int

    def clip(self, size: int) -> int:
        """The number of peers within the limits that is nearest to ``size``."""
        return max(self.minimum, min(self.maximum, size))


@dataclass(frozen=True)
class Deadlines:
    """The longest waits of the job, in seconds.

    Args:
        ready_s: The longest wait for a peer to get ready.
        wait_s: The longest wait for a peer during training.
        longest_wait_s: The longest wait in a step for a peer that is alive but late, if the measured steps make such a
            delay plausible; see ``plausible_wait_s``.
        heartbeat_s: The time without a heartbeat after which a process counts as lost.
        grace_s: The longest wait for the exit of a process whose program has ended while the others train.
        forget_s: The time after which a lost host leaves the list of the job's hosts.
    """

    ready_s: float = 300.0
    wait_s: float = 60.0
    longest_wait_s: float = 300.0
    heartbeat_s: float = 5.0
    grace_s: float = 30.0
    forget_s: float = 600.0


@dataclass(frozen=True)
class CheckpointSettings:
    """The folder for checkpoints, and the checkpoint to resume from.

    Args:
        folder: The folder for checkpoints if the program names none.
        keep: The number of newest checkpoints to keep.
        restarts: The number of restarts in a row from the job's newest checkpoint; 0 if the job never starts again.
        best_signal: The signal whose lowest value makes a checkpoint the one called "best"; empty for none.
        resume: The checkpoint, or a folder of checkpoints, to resume from; empty for none.
        founders: The number of peers that begin the job; 0 for a peer that joins later and receives the state.
        job: The job's name; empty for a program without a job.
        resume_option: The path given on the command line; its folder may contain newer checkpoints by now.
    """

    folder: str = "checkpoints"
    keep: int = 3
    resume: str = ""
    founders: int = 1
    job: str = ""
    resume_option: str = ""
    best_signal: str = ""
    restarts: int = 0


@dataclass(frozen=True)
class Settings:
    """The settings of one peer.

    Args:
        agent: The address of the agent on the peer's host.
        secret: The job's secret, hexadecimal, drawn at random for each job.
        attachment: The name of the attachment, which implements the all-reduce.
        policies: The policies named on the command line, in order.
        checkpoints: The folder for checkpoints, and the checkpoint to resume from.
        report_s: Seconds between two reports of steps.
        compare_every: Steps between two comparisons of the state that must be the same on all peers.
        first_peer: The first id of the peers that started last; above 0 if the job was started again.
        joiner_page: The path of the ``JoinerPage`` of the peer's host; empty if there is none.
    """

    job: str
    peer: int
    agent: str
    secret: str
    attachment: AttachmentName
    limits: Limits
    deadlines: Deadlines
    policies: tuple[str, ...] = ()
    recording: Literal["steps", "nothing"] = "steps"
    checkpoints: CheckpointSettings = CheckpointSettings()
    report_s: float = 2.0
    compare_every: int = 100
    first_peer: int = 0
    joiner_page: str = ""

    @property
    def host(self) -> str:
        """The name of this host in the job; its agent and its peers listen under this name."""
        return self.agent.partition(":")[0]

    def to_json(self) -> bytes:
        """Serializes the settings for ``parse_settings``; a path may contain bytes that are not valid UTF-8."""
        return json.dumps(msgspec.to_builtins(self)).encode()

    def to_environment(self) -> dict[str, str]:
        """The environment variables that pass these settings to a child process."""
        return {ENVIRONMENT_KEY: self.to_json().decode()}


def parse_settings(text: str | bytes) -> Settings:
    """Parses the output of ``to_json``; raises ``ValueError`` for any other text, and for an unknown field."""
    fields = json.loads(text)
    settings = msgspec.convert(fields, Settings)
    if unknown := _keys(fields) - _keys(msgspec.to_builtins(settings)):
        raise ValueError(f"{', '.join(sorted(unknown))} is not known")
    return settings


def _keys(fields: Mapping[str, Any]) -> set[str]:
    """The names of all fields, including nested fields as ``FIELD.KEY``."""
    return {*fields, *(f"{name}.{key}" for name, one in fields.items() if isinstance(one, dict) for key in one)}


def read_settings(environment: Mapping[str, str] | None = None) -> Settings | None:
    """The settings that ``kungfu-run`` set in the environment; ``None`` for a program without a job.

    Raises ``UsageError`` for a variable that was not written by this version of kungfu.
    """
    text = (os.environ if environment is None else environment).get(ENVIRONMENT_KEY)
    if text is None:
        return None
    try:
        return parse_settings(text)
    except ValueError as error:
        raise UsageError(
            f"{ENVIRONMENT_KEY} does not hold what this version of kungfu-run writes ({error}): "
            "start peers with the kungfu-run of the same installation, or unset it to run alone"
        ) from error
