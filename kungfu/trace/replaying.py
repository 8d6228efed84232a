"""Replays a plan over a recorded trace, and compares the replayed decisions with the run's decisions.

The run's own plan is replayed with the run's membership: in a new view, peers that stay keep the states of their local
folds. Every recorded snapshot is compared with the replayed states. After missing steps the states are *lost*, and the
replay resumes at the next snapshot. Any other plan starts with fresh folds, and its decisions are not compared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from kungfu.compiler import CompiledPolicies, Outcome
from kungfu.compiler.fired import FiredRule, fired_rules
from kungfu.compiler.passes.synchronising import STEPS_SINCE_AVERAGE
from kungfu.compiler.replay import Replay
from kungfu.errors import UsageError
from kungfu.signal import NEST
from kungfu.trace.reader import RecordedStep, Snapshot, Trace, rows_without_gap

# The tolerance between results of NumPy and results of TensorFlow or the native library: averages over a few hundred
# steps accumulate the differences.
_CLOSE = 1e-3
_MOST_DIFFERENCES = 20


@dataclass(frozen=True)
class Replayed:
    """The result of a replay.

    Attributes:
        differences: The first differences from the recorded run, about twenty at most; only for the run's own plan.
        remarks: The steps of the record that were not replayed, and why.
    """

    decisions: tuple[FiredRule, ...]
    differences: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass
class _Playing:
    """A replay under way.

    Attributes:
        against: The recorded snapshots with which the states are compared, by step and view.
        is_lost: True if the states are unknown until the next snapshot.
        skipped: The steps that were skipped while the states were unknown.
    """

    replay: Replay
    against: Mapping[tuple[int, int], Snapshot]
    previous: RecordedStep | None = None
    differences: list[str] = field(default_factory=list)
    is_lost: bool = False
    skipped: list[int] = field(default_factory=list)


def replay(plan: CompiledPolicies, trace: Trace, *, whose: Literal["the run's", "another"], start: int = 0) -> Replayed:
    """Replays `plan` over the steps of `trace`, from the first step numbered `start` or higher.

    Args:
        whose: With "the run's", the plan starts from the snapshot before `start`, and its folds and decisions are
            compared with those of the run. With "another", the plan starts with fresh folds, and its decisions have no
            effect on the recorded inputs.
        start: The first step to replay; 0 to replay all steps.

    Raises:
        UsageError: The run did not record a source that the plan reads, or no snapshot lies before `start`.
    """
    _check_recorded(plan, trace)
    own = whose == "the run's"
    snapshots = {(one.after, one.view): one for one in trace.snapshots} if own else {}
    steps, restored = _beginning(trace, start=start, snapshots=snapshots) if own else (_from(trace, start), None)
    playing = _Playing(Replay(plan, size=steps[0].size), snapshots)
    if restored is not None:
        _restore(playing.replay, restored)
    decisions: list[FiredRule] = []
    for step in steps:
        _enter(playing, step)
        if own and _is_lost(playing, step):
            continue
        outcome = _stepped(playing.replay, step)
        found = fired_rules(plan, outcome, step=step.step)
        if own:
            _compare(playing, step, found)
        decisions += [one for one in found if one.step >= start]
        playing.previous = step
    return Replayed(tuple(decisions), tuple(playing.differences), tuple(_unreplayed(playing.skipped)))


def _stepped(replaying: Replay, step: RecordedStep) -> Outcome:
    try:
        return replaying.step(step.local, {**step.agreed, "view": step.view})
    except UsageError as error:
        raise UsageError(
            f"step {step.step}: {error}; the run computed it in other steps only, and a record holds no gradients"
        ) from error


def _check_recorded(plan: CompiledPolicies, trace: Trace) -> None:
    held = {name for step in trace.steps for part in (step.agreed, *step.local) for name in part}
    reductions = sorted(set(plan.gradient_reductions) - held)
    if reductions:
        raise UsageError(
            f"the policy needs {' and '.join(reductions)}, which this run did not record: a record holds of the "
            "gradients only what the run's own policies made of them; record a run whose policies need it too"
        )
    numbers = {name for name, kind in plan.source_kinds.items() if kind.type.shape != NEST}
    missing = sorted(numbers - held - {"size", "view"})
    declared = {**plan.given_by("publish"), **plan.given_by("feed")}
    own = [declared[name].written for name in missing if name in declared]
    if own:
        raise UsageError(
            f"the policy needs {' and '.join(own)}, which this run did not record: a record holds of what a program "
            "publishes and feeds only what the run's own policies use; record a run whose policies use it too"
        )
    if missing:
        raise UsageError(
            f"the policy needs the source {' and '.join(missing)}, which is not in this record: "
            "it was made by another version of kungfu; record the run again"
        )


# ---- the start of a replay, and changes of the view ------------------------------------------------------------------


def _from(trace: Trace, start: int) -> tuple[RecordedStep, ...]:
    steps = tuple(one for one in trace.steps if one.step >= start)
    if not steps:
        raise UsageError(f"step {start} lies behind the last step of the record, which is {trace.steps[-1].step}")
    return steps


def _done_before(step: RecordedStep) -> int:
    """The number of steps before those that a recorded step stands for: the steps since the last average of models, if
    the run averages models."""
    return step.step - int(step.agreed.get(STEPS_SINCE_AVERAGE.source, 1))


def _beginning(
    trace: Trace, *, start: int, snapshots: Mapping[tuple[int, int], Snapshot]
) -> tuple[tuple[RecordedStep, ...], Snapshot | None]:
    """The steps to replay with the run's own plan, and the snapshot before them, ``None`` if there is no snapshot."""
    best: tuple[tuple[RecordedStep, ...], Snapshot | None] | None = None
    for index, step in enumerate(trace.steps):
        found = snapshots.get((_done_before(step), step.view))
        # The run's first step needs no snapshot; any other start needs a snapshot right before it. The latest start up
        # to the requested step is chosen.
        if index == 0 and _done_before(step) == 0:
            best = trace.steps, found
        elif found is not None and (best is None or step.step <= max(start, 1)):
            best = trace.steps[index:], found
    if best is None or (start and best[0][0].step > start):
        raise UsageError(f"no snapshot of the record lies before step {max(start, 1)}: its folds there are not known")
    _from(trace, start)
    return best


def _enter(playing: _Playing, step: RecordedStep) -> None:
    """Enters the view of a step; peers that stay, known from snapshots, keep the states of their local folds."""
    before, replaying = playing.previous, playing.replay
    if before is None or before.view == step.view:
        return
    stayed = _survivors(playing, before, step)
    # If no peer stays, the job was started again, and its folds are those of the checkpoint that rank 0 has written.
    replaying.rescale(step.size, stayed=stayed or [0])
    playing.is_lost = playing.is_lost or not stayed
    # A view begins with a snapshot, which shows whether the replay handled the change as the run did.
    snapshot = playing.against.get((_done_before(step), step.view))
    if snapshot is not None and not playing.is_lost and _done_before(step) == before.step:
        _compare_states(playing, snapshot)


def _is_lost(playing: _Playing, step: RecordedStep) -> bool:
    """True if the folds' states are unknown because steps before `step` are missing; a snapshot restores the states."""
    before = playing.previous
    snapshot = playing.against.get((_done_before(step), step.view))
    # After a gap, the states are unknown until a snapshot restores them.
    if before is not None and _done_before(step) > before.step:
        playing.is_lost = True
    if playing.is_lost and snapshot is not None:
        _restore(playing.replay, snapshot)
        playing.is_lost = False
    if playing.is_lost:
        playing.previous = step
        playing.skipped.append(step.step)
    return playing.is_lost


def _unreplayed(steps: Sequence[int]) -> Iterator[str]:
    """Yields a remark on each series of consecutive steps that were not replayed."""
    for first, last in rows_without_gap(steps):
        which = f"step {first} was" if first == last else f"steps {first} to {last} were"
        yield (
            f"{which} not replayed: steps before are not in the record, and what the folds held then is known from the "
            "next snapshot on"
        )


def _survivors(playing: _Playing, before: RecordedStep, step: RecordedStep) -> list[int]:
    """The old ranks of the peers that are in both views, in the new view's order; joiners come after these peers."""
    views = {one.view: one.peers for one in playing.against.values()}
    old, new = views.get(before.view), views.get(step.view)
    # Without snapshots the peers that left are unknown: the last ranks are assumed to have left.
    if old is None or new is None:
        return list(range(min(before.size, step.size)))
    return [old.index(peer) for peer in new if peer in old]


def _restore(replaying: Replay, snapshot: Snapshot) -> None:
    states = {}
    for fold, names in replaying.plan.state_names.items():
        kinds = [one.type.dtype for one in fold.recurrence.updates]
        states[fold] = tuple(
            tuple(np.asarray(value, kind) for value in _held(snapshot, name))
            for name, kind in zip(names, kinds, strict=True)
        )
    replaying.states = states


def _held(snapshot: Snapshot, name: str) -> list[Any]:
    """A field of a fold's state for each rank; if the field is equal on all peers, only rank 0 records the field."""
    agreed = snapshot.folds[0].get(name, math.nan)
    return [one.get(name, agreed) for one in snapshot.folds]


# ---- comparison of the replay with the run ---------------------------------------------------------------------------


def _compare(playing: _Playing, step: RecordedStep, found: Sequence[FiredRule]) -> None:
    decided = {one.rule: one.value for one in found}
    for name in sorted(decided.keys() | step.fired.keys()):
        if name not in step.fired:
            _differ(playing, f"step {step.step}: {name} fires in the replay, and did not in the run")
        elif name not in decided:
            _differ(playing, f"step {step.step}: {name} fired in the run, and does not in the replay")
        elif not _close(decided[name], step.fired[name]):
            said = f"asks for {decided[name]:g} in the replay, and asked for {step.fired[name]:g} in the run"
            _differ(playing, f"step {step.step}: {name} {said}")
    snapshot = playing.against.get((step.step, step.view))
    if snapshot is not None:
        _compare_states(playing, snapshot)


def _compare_states(playing: _Playing, snapshot: Snapshot) -> None:
    replaying = playing.replay
    for fold, names in replaying.plan.state_names.items():
        for name, values in zip(names, replaying.states[fold], strict=True):
            recorded = _held(snapshot, name)
            if not all(_close(one, other) for one, other in zip(values, recorded, strict=True)):
                here, there = [np.asarray(one).tolist() for one in values], recorded
                _differ(playing, f"after step {snapshot.after}: {name} is {here} in the replay, and was {there}")


def _close(one: Any, other: Any) -> bool:
    given, wanted = np.asarray(one, np.float64), np.asarray(other, np.float64)
    return given.shape == wanted.shape and bool(np.allclose(given, wanted, rtol=_CLOSE, atol=_CLOSE, equal_nan=True))


def _differ(playing: _Playing, text: str) -> None:
    count = len(playing.differences)
    if count < _MOST_DIFFERENCES:
        playing.differences.append(text)
    elif count == _MOST_DIFFERENCES:
        playing.differences.append("and more; these are the first")
