"""Chooses the slot of a peer on its host; the slot determines which of the host's devices the peer uses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import takewhile

# The seconds for which a vacated slot comes last: its device may have caused a straggler or a failure.
AVOIDED_S = 600.0

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_SLURM = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")  # where Slurm is configured not to set CUDA_VISIBLE_DEVICES
_CONTAINER = "NVIDIA_VISIBLE_DEVICES"
_BY_NAME = ("GPU-", "MIG-")


def devices_of(environment: Mapping[str, str], *, gpus: int) -> tuple[str, ...]:
    """The devices that this host may use, each by its name in CUDA.

    The user's choice comes first, then Slurm's, then the container's.

    Args:
        environment: The variables that name devices.
        gpus: The number of GPUs that the driver shows; all GPUs are used if no variable names devices.

    Returns:
        The names; empty if there are no devices, or none should be used.

    >>> devices_of({"CUDA_VISIBLE_DEVICES": "3,GPU-8f2a,-1,5"}, gpus=8)
    ('3', 'GPU-8f2a')
    >>> devices_of({"SLURM_JOB_GPUS": "2,3"}, gpus=8), devices_of({"NVIDIA_VISIBLE_DEVICES": "all"}, gpus=2)
    (('2', '3'), ('0', '1'))
    """
    for name in (_VISIBLE, *_SLURM):
        if name in environment:
            return _listed(environment[name])
    return _in_container(environment.get(_CONTAINER, "all"), gpus)


def _listed(text: str) -> tuple[str, ...]:
    """The entries of a device list as CUDA reads it: up to the first entry that names no device."""
    words = (entry.strip() for entry in text.split(","))
    return tuple(dict.fromkeys(takewhile(lambda word: word.isdecimal() or word.startswith(_BY_NAME), words)))


def _in_container(text: str, gpus: int) -> tuple[str, ...]:
    """The devices that a container lists: numbered anew inside the container, or by names, which stay the same."""
    words = [entry.strip() for entry in text.split(",")]
    if words[0] in ("", "none", "void"):
        return ()
    if words == ["all"]:
        return tuple(str(number) for number in range(gpus))
    named = all(word.startswith(_BY_NAME) for word in words)
    return tuple(words) if named else tuple(str(number) for number in range(min(len(words), gpus)))


def device_for_slot(slot: int, devices: Sequence[str]) -> str:
    """The device of a slot; if there are more slots than devices, the slots share the devices in turn.

    Args:
        slot: The number of the slot, from 0.
        devices: The names of the host's devices.

    >>> [device_for_slot(slot, ("GPU-a", "GPU-b")) for slot in range(3)]
    ['GPU-a', 'GPU-b', 'GPU-a']
    """
    return devices[slot % len(devices)]


def choose_slot(
    used: Mapping[int, int], *, slots: int, leaving: Collection[int], vacated: Mapping[int, float], now: float
) -> int:
    """The slot for a new peer: the lowest free slot; slots vacated in the last ``AVOIDED_S`` seconds come last.

    Args:
        used: The slots of the processes that run, by peer.
        slots: The number of slots of the host.
        leaving: The peers that will leave; if all slots are used, the new peer shares the slot of one of these peers,
            and keeps that slot afterwards.
        vacated: The times at which slots were vacated, on the clock of ``now``.
        now: The present time, in seconds.

    >>> choose_slot({0: 0, 1: 1}, slots=4, leaving=(), vacated={2: 50.0}, now=60.0)
    3
    >>> choose_slot({0: 0, 1: 1}, slots=2, leaving=(1,), vacated={}, now=60.0)
    1
    """
    shared = Counter(used.values())
    free = [slot for slot in range(slots) if slot not in shared]
    # The lowest free slot; if all were vacated recently, the slot that was vacated first.
    if free:
        return min(free, key=lambda slot: (_avoided(vacated.get(slot), now), slot))
    of_leaving = [slot for peer, slot in used.items() if peer in leaving]
    return min(of_leaving or range(slots), key=lambda slot: (shared[slot], slot))


def _avoided(left_at: float | None, now: float) -> float:
    """A sort key for free slots: slots not vacated recently come first, then the slot that was vacated longest ago."""
    return left_at if left_at is not None and now - left_at < AVOIDED_S else float("-inf")
