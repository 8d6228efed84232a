"""Profiles by `kungfu profile`: the throughput of a program at several sizes, measured in a job.

Planning begins with profiling (Misra et al., *RubberBand*, 2021, section 5): a profile gives the curve of a
`ClusterJob`, of the jobs of a trace, and of the trials of a search.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
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
        sizes: the measurements, in order of rising numbers of peers; of several batches, one batch after the other.
    """

    version: int
    program: tuple[str, ...]
    attachment: str
    sizes: tuple[ProfiledSize, ...]

    def by_batch(self) -> tuple[ProgramProfile, ...]:
        """A profile for each measured batch: a batch begins where the number of peers does not rise."""
        starts = [0, *(at for at, (one, next_) in enumerate(pairwise(self.sizes), 1) if one.size >= next_.size)]
        ends = [*starts[1:], len(self.sizes)]
        return tuple(msgspec.structs.replace(self, sizes=self.sizes[a:b]) for a, b in zip(starts, ends, strict=True))

    @property
    def batch(self) -> int | None:
        """The samples of a step of all peers together; None if the sizes differ in these samples by more than 2 %."""
        batches = [each.batch for each in self.sizes]
        return round(batches[0]) if max(batches) <= 1.02 * min(batches) else None

    @property
    def points(self) -> dict[int, float]:
        """The measured samples per second, by number of peers."""
        return {each.size: each.samples_per_s for each in self.sizes}

    def at_batch(self, batch: int | None, *, where: str) -> ProgramProfile:
        """The measurements at one batch; those of the only batch if there is no other.

        Args:
            batch: the samples of a step of all peers; None if not known.
            where: the profile's file, for the message.

        Raises:
            UsageError: Several batches were measured, and this is none of them.
        """
        found = self.by_batch()
        chosen = [one for one in found if len(found) == 1 or one.batch == batch]
        if not chosen:
            measured = ", ".join(str(one.batch) for one in found)
            raise UsageError(f"{where}: was measured at batches of {measured}; name one of these, not {batch}")
        return chosen[0]


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
    sizes, batches = [each.size for each in found.sizes], [of.batch for of in found.by_batch() if of.sizes]
    rise = all(one is not None and two is not None and one < two for one, two in pairwise(batches))
    if not sizes or min(sizes) < 1 or not rise:
        raise UsageError(
            f"{path}: holds the sizes {sizes}; expected whole numbers from 1 on that rise, at each of rising batches"
        )
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
