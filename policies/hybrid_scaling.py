"""A policy that grows the batch only as far as new peers need it, and scales the learning rate accordingly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

import msgspec

import kungfu as kf
from kungfu.errors import PolicyError

if TYPE_CHECKING:
    from kungfu.control import Rule
    from kungfu.signal import Signal, TrainingSignals


class _HybridScaling(Protocol):
    """The function that makes the policy from a table, with the one that makes it from a file."""

    from_profile: Callable[..., kf.Policy]

    def __call__(self, optimal_peers: Mapping[int, int], *, over_steps: float = 100) -> kf.Policy: ...


def _extended(made: Callable[..., kf.Policy]) -> _HybridScaling:
    return cast("_HybridScaling", made)


@_extended
@kf.policy
def hybrid_scaling(
    training: TrainingSignals, optimal_peers: Mapping[int, int], *, over_steps: float = 100
) -> tuple[Rule, Rule]:
    """Sets, on every rescale, the smallest batch that keeps all peers busy, and a learning rate in proportion.

    Given N peers and the global batch B, both last set by `attach` or by a rule in a step, and N' peers now, the new
    batch is ``k * B`` with the first k of 1, 2, 4, ... up to N'/N whose batch ``k * B`` keeps at least N' peers busy;
    if there is no such k, the new batch is ``B * N' / N``. So a job first scales strongly (the same batch on more
    peers), which does not affect its result, and scales weakly only if peers would otherwise idle. The learning rate
    becomes ``rate * (batch / batch before)``, on a linear ramp. Thus the batch and the rate depend on the size alone,
    and growing and shrinking back restores both. The paper's rule starts from the previous size, and would halve a
    batch that it had not doubled. The policy requests no size: combine it with a policy that does.

    Args:
        training: The signals of a step.
        optimal_peers: Measured values, ``{global batch: number of peers with which it trains fastest}``; a batch
            between two entries counts as the smaller entry; a batch below all entries keeps only one peer busy.
        over_steps: Length of the learning rate's ramp, steps, at least 0.

    ``hybrid_scaling.from_profile(path)`` makes the table from the file of `kungfu profile`: see `from_profile`.

    Raises:
        PolicyError: At `attach`, for a table that is empty or not of whole numbers from 1 on.

    Cost:
        Nothing in any step; the policy is evaluated inside the barrier.

    Reference:
        Xie et al., *Elan: Towards Generic and Efficient Elastic Training for Deep Learning*, 2020, algorithm 1.

    >>> hybrid_scaling({64: 2, 256: 4, 1024: 16}).name
    'hybrid_scaling'
    """
    _check(optimal_peers)
    return _rules(training, optimal_peers, over_steps=over_steps)


def from_profile(
    training: TrainingSignals,
    path: str | Path,
    *,
    program: str | None = None,
    batch: int | None = None,
    attachment: str | None = None,
    over_steps: float = 100,
) -> tuple[Rule, Rule]:
    """Sets, on every rescale, the smallest batch that keeps all peers busy, by the file of `kungfu profile --batches`.

    The optimal number of peers of a batch is the measured size with the most samples per second, the smaller of two
    equals. Nothing is interpolated or extrapolated: a batch that was not measured counts as the next smaller one, and
    a batch that is fastest at the largest measured size is taken to keep no more peers busy than these. The file is
    read at `attach`; on several hosts, each has to have the same file.

    Args:
        training: The signals of a step.
        path: The file, such as ``runs/measured/profile.json``.
        program: Consecutive words that the measured command must contain, such as ``train.py --small``; of a path, its
            last part counts. ``None``: any program.
        batch: A global batch that must be among the measured ones, in samples. ``None``: any.
        attachment: The all-reduce of the measurement, "local" or "horovod". ``None``: any.
        over_steps: Length of the learning rate's ramp, steps, at least 0.

    Raises:
        PolicyError: At `attach`: the file cannot be read or is no profile; it is of another program, batch or
            attachment; it did not come to its end, or its batches were not all measured at the same two or more sizes.
    """
    optimal_peers = _read(Path(path), program=program, batch=batch, attachment=attachment)
    return _rules(training, optimal_peers, over_steps=over_steps)


# Its rules and errors have the name of the policy; a call is `hybrid_scaling.from_profile(path)`.
from_profile.__name__ = "hybrid_scaling"
hybrid_scaling.from_profile = kf.policy(from_profile)


def _rules(training: TrainingSignals, optimal_peers: Mapping[int, int], *, over_steps: float) -> tuple[Rule, Rule]:
    base, peers = training.base_global_batch_size, training.size
    growth = peers / training.base_size
    batch: Signal = base * growth
    for doublings in reversed(range(16)):
        factor = 2**doublings
        busy = _looked_up(base * factor, optimal_peers) >= peers
        batch = kf.ops.where((factor <= growth) & busy, base * factor, batch)
    at_rescale = kf.control.on_rescale()
    rate = training.learning_rate * (training.global_batch_size / training.previous_global_batch_size)
    return at_rescale.set_global_batch_size(batch), at_rescale.set_learning_rate(rate, over_steps=over_steps)


def _looked_up(batch: Signal, table: Mapping[int, int]) -> Signal:
    found: Signal = kf.ops.constant(1)
    for entry, peers in sorted(table.items()):
        found = kf.ops.where(batch >= entry, peers, found)
    return found


def _check(table: Mapping[int, int]) -> None:
    entries = [one for pair in table.items() for one in pair] if isinstance(table, Mapping) else []
    if not entries or any(isinstance(one, bool) or not isinstance(one, int) or one < 1 for one in entries):
        raise PolicyError(
            f"hybrid_scaling({table!r}): takes {{global batch: optimal number of peers}} in whole numbers from 1 on, "
            "e.g. {64: 2, 256: 4}"
        )


class _Measured(msgspec.Struct, frozen=True):
    """A measurement of `kungfu profile`: the throughput of ``size`` peers on steps of ``batch`` samples in total."""

    size: int
    samples_per_s: float
    batch: float


class _Profile(msgspec.Struct, frozen=True):
    """The part of a profile's file that the policy reads."""

    version: int
    program: tuple[str, ...]
    attachment: str
    sizes: tuple[_Measured, ...]
    state: str = "carried out"


def _read(path: Path, *, program: str | None, batch: int | None, attachment: str | None) -> dict[int, int]:
    """The optimal number of peers by batch, according to the file of a profile."""
    try:
        profile = msgspec.json.decode(path.read_bytes(), type=_Profile)
    except OSError as error:
        raise PolicyError(f"{path}: {error.strerror}; {_MEASURE}") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise PolicyError(f"{path}: is no profile ({error}); {_MEASURE}") from error
    if profile.version != 1:
        raise PolicyError(f"{path}: is a profile of version {profile.version}, and 1 can be read; measure it again")
    if profile.state != "carried out":
        raise PolicyError(f"{path}: is a profile that did not come to its end ({profile.state}): measure it again")
    if program is not None and f" {_last_parts(program.split())} " not in f" {_last_parts(profile.program)} ":
        raise PolicyError(f"{path}: is a profile of `{' '.join(profile.program)}`, and not of `{program}`; measure it")
    if attachment is not None and profile.attachment != attachment:
        raise PolicyError(
            f"{path}: was measured with --attachment {profile.attachment}, and not {attachment}; measure with that one"
        )
    table = _fastest(profile.sizes, path=path)
    if batch is not None and batch not in table:
        raise PolicyError(f"{path}: was measured at batches of {_listed(table)}, and not of {batch}; {_MEASURE}")
    return table


_MEASURE = "give the file of `kungfu profile MIN MAX --batches B ...`"


def _fastest(sizes: tuple[_Measured, ...], *, path: Path) -> dict[int, int]:
    """The measured size with the highest throughput, by batch."""
    by_batch = list[list[_Measured]]()
    for one in sizes:
        if not (one.size >= 1 and one.samples_per_s > 0 and one.batch >= 1):
            raise PolicyError(f"{path}: holds {one}; a size, a throughput and a batch are above 0: measure it again")
        last = by_batch[-1][-1] if by_batch else one
        # Smaller steps at the ends of epochs count too, so the mean batch differs a little from size to size.
        if one.size <= last.size or abs(one.batch - last.batch) > 0.02 * last.batch:
            by_batch.append([])
        by_batch[-1].append(one)
    measured = {tuple(one.size for one in of) for of in by_batch}
    fastest = {round(of[0].batch): max(of, key=lambda one: (one.samples_per_s, -one.size)).size for of in by_batch}
    if len(measured) != 1 or len(measured.pop()) < 2 or len(fastest) < len(by_batch):
        found = "; ".join(f"{of[0].batch:g} samples on {_listed(one.size for one in of)} peers" for of in by_batch)
        raise PolicyError(
            f"{path}: holds {found or 'nothing'}; each batch needs the same sizes, at least two, once: {_MEASURE}"
        )
    return fastest


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def _last_parts(words: Iterable[str]) -> str:
    """A command with the last part of each path."""
    return " ".join(Path(word).name for word in words)
