"""The loaders of several peers, each in a thread, over files that they take over from each other in the middle."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf

import kungfu as kf
from kungfu.runtime.core.sample_slices import Position
from kungfu.training.data import make_batch_plan
from kungfu.training.data.catch_up import await_readers
from kungfu.training.data.sampler import StepSlice
from kungfu.training.graph.step_report import StepPosition
from kungfu.training.loop.batches import loop_batches
from kungfu.training.loop.step_calls import Stamps

DEADLINE_S = 120.0
FILES, ROWS, BATCH = 6, 10, 6
# The members by the step with which their view begins: one is gone in the middle of its file, and one comes later.
VIEWS = {0: [0, 1, 2], 3: [0, 1], 5: [0, 1, 3]}


@dataclass
class Meetings:
    """Sums over the peers of a view, of which each brings a number at the same place."""

    arrived: dict[tuple[int, int], dict[int, int]] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def total(self, place: tuple[int, int], peer: int, value: int, *, size: int) -> int:
        with self.changed:
            here = self.arrived.setdefault(place, {})
            here[peer] = value
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: len(here) == size, DEADLINE_S), f"{here} of {size} at {place}"
            return sum(here.values())

    def rounds_at(self, step: int) -> int:
        """How often all met before a step, as far as somebody has come."""
        with self.changed:
            return sum(place[0] == step for place in self.arrived)


@dataclass
class Job:
    """What the peers have in common: what was trained on, and before which steps they met."""

    meetings: Meetings = field(default_factory=Meetings)
    trained: list[tuple[int, int]] = field(default_factory=list)
    slow: dict[str, Callable[[], None]] = field(default_factory=dict)  # by file, on the way to the middle of it
    variables: dict[int, tf.Variable] = field(default_factory=dict)  # who reads what, by peer

    def read(self, peer: int, name: str) -> Iterator[Any]:
        for row in range(ROWS):
            if row == 1 and (linger := self.slow.get(f"{peer}:{name}")) is not None:
                linger()
            yield np.array([int(name) * ROWS + row], np.int64)


def run(job: Job, peer: int, *, begins: int) -> list[int]:
    """One peer from a step on, as long as it is a member; gives the steps before which it met the others."""
    names = [str(number) for number in range(FILES)]
    files = kf.data.partitions(names, lambda name: job.read(peer, name), counts=[ROWS] * FILES)
    plan = make_batch_plan(files, batch_size=BATCH, epochs=1, seed=1)
    job.variables[peer] = plan.sampler.make_variable(most_peers=4)
    state, met = SimpleNamespace(step=begins, count=0), list[int]()

    def view() -> tuple[int, list[int]]:
        version, began = max((place, one) for place, one in enumerate(VIEWS, 1) if one <= state.step)
        return version, VIEWS[began]

    def is_over() -> bool:
        return peer not in view()[1] or state.step * BATCH >= FILES * ROWS

    def position() -> StepPosition:
        version, members = view()
        done = state.step * BATCH
        return StepPosition(state.step, 0, done, 0, version, len(members), members.index(peer), BATCH)

    def exchange(values: Callable[[Any], None]) -> bool:
        # As the state is: one that comes is given what the others held at the end of the step before.
        if state.count == 0 and begins:
            job.variables[peer].assign(job.variables[0])
        return True

    def await_others(is_loaded: Callable[[float], bool], *, exchange: Any) -> bool:
        met.append(state.step)
        size, turns = len(view()[1]), iter(range(1_000_000))

        def total(tensors: Any) -> Any:
            place = state.step, next(turns)
            return [tf.constant([job.meetings.total(place, peer, int(tensors[0][0]), size=size)])]

        await_readers(is_loaded, total)
        return True

    class Membership:
        view = property(lambda _: SimpleNamespace(ids=view()[1]))

    settings = SimpleNamespace(limits=SimpleNamespace(maximum=4))
    state.run = SimpleNamespace(settings=settings, membership=Membership())
    state.position, state.exchange, state.stamps = position, exchange, Stamps()
    state.data_cursor = SimpleNamespace(await_others=await_others)
    for x in loop_batches(state, plan, over=is_over):
        job.trained += [(state.step, int(row)) for row in np.asarray(x).ravel()]
        # All have done the step: the state of each is that of the next one.
        job.meetings.total((-1 - state.step, 0), peer, 0, size=len(view()[1]))
        state.step += 1
        state.count += 1
    return met


def test_a_peer_that_takes_over_a_file_reads_while_the_others_meet_again(monkeypatch):
    monkeypatch.setattr("kungfu.training.data.catch_up._REPORT_EVERY_S", 0.05)
    job = Job()

    def linger() -> None:
        with job.meetings.changed:
            waited = job.meetings.changed.wait_for(lambda: rounds() >= 4, DEADLINE_S)
        assert waited, "nobody waits for the reader"

    def rounds() -> int:
        return sum(place[0] == taken_over for place in job.meetings.arrived)

    taken_over, of_gone, reader = whose_file_is_taken_over()
    job.slow[f"{reader}:{of_gone}"] = linger
    with ThreadPoolExecutor(4) as pool:
        founders = [pool.submit(run, job, peer, begins=0) for peer in (0, 1, 2)]
        with job.meetings.changed:
            assert job.meetings.changed.wait_for(lambda: len(job.meetings.arrived.get((-5, 0), {})) == 2, DEADLINE_S)
        joiner = pool.submit(run, job, 3, begins=5)
        met = [one.result(DEADLINE_S) for one in (*founders, joiner)]
    assert sorted(row for _, row in job.trained) == list(range(FILES * ROWS)), "each sample once"
    assert met[0] == met[1]
    assert met[2] == [step for step in met[0] if step < 3]
    assert met[3] == [step for step in met[0] if step >= 5]
    assert {0, 3, 5} <= {*met[0]}, "in a new view"
    assert {1, 2} & {*met[0]} == set(), "nobody meets where each goes on with its own"
    assert job.meetings.rounds_at(taken_over) >= 4


def whose_file_is_taken_over() -> tuple[int, str, int]:
    """The step before which somebody takes over what the one that is gone had left, that file, and who does."""
    sampler, held = kf.data.partitions([str(one) for one in range(FILES)], iter, counts=[ROWS] * FILES), ""
    order = sampler.make_sampler(1, "keep")
    order.make_variable(most_peers=4)
    for step in range(8):
        version, members = (1, [0, 1, 2]) if step < 3 else (2, [0, 1])
        for rank, peer in enumerate(members):
            slice_ = StepSlice(Position(0, step * BATCH), version, len(members), rank, BATCH)
            order.reach(slice_, members)
            files = {str(row // ROWS) for row in order.indices(slice_).tolist()}
            if step == 2 and peer == 2:
                (held,) = files
            if step > 2 and held in files:
                return step, held, peer
    raise AssertionError("nobody takes it over")
