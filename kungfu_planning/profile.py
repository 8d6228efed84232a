"""Profiles by `kungfu profile`: the throughput of a program at several sizes, measured in a job.

Planning begins with profiling (Misra et al., *RubberBand*, 2021, section 5): a profile gives the curve of a
`ClusterJob`, of the jobs of a trace, and of the trials of a search.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from kungfu.errors import UsageError


class ProfiledSize(msgspec.Struct, frozen=True):
    """A measurement: ``samples_per_s`` of ``size`` peers that train on ``batch`` samples per step in total."""

    size: int
    samples_per_s: float
    batch: float


class ProgramProfile(msgspec.Struct, frozen=True):
    """The profile of a program: its throughput at several numbers of peers.

    Args:
        version: the format, 1.
        program: the command of the job, word by word.
        attachment: the all-reduce in the measurement, "local" or "horovod".
        sizes: the measurements, in order of rising numbers of peers.
    """

    version: int
    program: tuple[str, ...]
    attachment: str
    sizes: tuple[ProfiledSize, ...]

    @property
    def batch(self) -> int | None:
        """The samples of a step of all peers together; None if the sizes differ in these samples by more than 2 %."""
        batches = [each.batch for each in self.sizes]
        return round(batches[0]) if max(batches) <= 1.02 * min(batches) else None

    @property
    def points(self) -> dict[int, float]:
        """The measured samples per second, by number of peers."""
        return {each.size: each.samples_per_s for each in self.sizes}


def read_profile(path: str | Path) -> ProgramProfile:
    """The profile in a file by `kungfu profile`.

    Raises:
        UsageError: The file cannot be read, is not a profile, or has no measurement.
    """
    try:
        found = msgspec.json.decode(Path(path).read_bytes(), type=ProgramProfile)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; give the profile.json of `kungfu profile`") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"{path}: is no profile ({error}); give the profile.json of `kungfu profile`") from error
    if found.version != 1:
        raise UsageError(f"{path}: is a profile of version {found.version}, and 1 can be read; measure it again")
    sizes = [each.size for each in found.sizes]
    if not sizes or min(sizes) < 1 or sizes != sorted({*sizes}):
        raise UsageError(f"{path}: holds the sizes {sizes}; expected whole numbers that rise from 1 or more")
    for each in found.sizes:
        if not (each.samples_per_s > 0 and each.batch >= 1):
            raise UsageError(
                f"{path}: size {each.size} has {each.samples_per_s:g} samples/s at a batch of {each.batch:g}; the "
                f"first must be above 0, the batch at least 1: measure it again"
            )
    return found


def check_profile(
    profile: ProgramProfile,
    *,
    where: str,
    program: str | None = None,
    batch: int | None = None,
    attachment: str | None = None,
) -> None:
    """Refuses a profile whose program, batch or attachment differs from the planned one; None is not compared.

    Args:
        profile: the measured profile.
        where: the profile's file, for the message.
        program: consecutive words that the profile's command must contain, such as ``train.py --model small``; a
            word may be the last part of a path in the command.
        batch: the samples of a step of all peers.
        attachment: "local" or "horovod".

    Raises:
        UsageError: The profile differs; the message has both the measured and the planned value.
    """
    if program is not None and not _has(profile.program, program.split()):
        words = " ".join(profile.program)
        raise UsageError(f"{where}: is a profile of `{words}`, and the plan is for `{program}`: measure it")
    if batch is not None and profile.batch != batch:
        measured = profile.batch or " and ".join(f"{one.batch:g} on {one.size}" for one in profile.sizes)
        raise UsageError(
            f"{where}: was measured at a batch of {measured}, and the plan is for {batch}; measure that batch"
        )
    if attachment is not None and profile.attachment != attachment:
        raise UsageError(
            f"{where}: was measured with --attachment {profile.attachment}, and the plan is for {attachment}; measure "
            f"with --attachment {attachment}"
        )


def _has(command: Sequence[str], words: Sequence[str]) -> bool:
    """True if the command contains the words consecutively, each whole or as the last part of a path."""

    def fits(place: int) -> bool:
        found = command[place : place + len(words)]
        return len(found) == len(words) and all(
            word in (said, said.rpartition("/")[2]) for said, word in zip(found, words, strict=True)
        )

    return any(fits(place) for place in range(len(command)))
