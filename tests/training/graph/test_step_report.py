"""What a step tells the host: the same as the variables hold, whatever the step came to, and what is left of a run.

What is left is compared with a walk of the epochs, step by step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kungfu as kf
from kungfu.errors import UsageError
from kungfu.runtime.core.sample_slices import Position, advanced
from kungfu.training.graph.step_report import PlannedEpochs, StepPosition, read_position, read_report, write_report
from tests.training.linear import Run, linear_run, points


def test_a_step_tells_where_the_run_is_behind_it_and_behind_its_barrier():
    @kf.policy
    def larger(training):
        return kf.control.every(2).set_global_batch_size(3)

    run, reported = linear_run(policies=[larger()]), []
    calls = run.training._calls
    for batch in run.training.batches(points(10), batch_size=2, epochs=2, seed=0, max_local_batch_size=2):
        run.step(batch)
        reported.append(calls.position())
        assert reported[-1] == read_position(calls.run.graph_state)
    assert {(one.micro, one.global_batch_size) for one in reported} == {(0, 2), (1, 3), (0, 3)}
    assert reported[-1].epoch == 2


def test_a_step_that_was_refused_tells_it_too_and_one_that_raised_asks_the_variables():
    run = linear_run()
    batches, calls = run.training.batches(points(10), batch_size=2, epochs=1, seed=0), run.training._calls
    first = next(batches)
    run.step(first)
    assert run.step(first) is kf.Training.SKIPPED
    assert calls.position() == StepPosition(
        step=1, epoch=0, offset=2, micro=0, version=0, size=1, rank=0, global_batch_size=2
    )
    next(batches)
    with pytest.raises(UsageError, match="another kind of batch"):
        run.step(np.ones((2, 3, 4), np.float32))
    calls.run.graph_state.progress.offset.assign(4)
    assert calls.position().offset == 4


def test_the_row_behind_it_is_that_of_the_step_record():
    graph_state = linear_run().training._run.graph_state
    values = np.arange(graph_state.metrics.step_record.packed.shape[0], dtype=np.float64)
    graph_state.metrics.step_record.packed.assign(values)
    graph_state.progress.offset.assign(2**40 + 1)
    report = read_report(write_report(graph_state, 2))
    assert (report.code, report.position.offset) == (2, 2**40 + 1)
    assert report.packed == values.tolist()


# ---- what is left of a run -------------------------------------------------------------------------------------------

START = StepPosition(step=0, epoch=0, offset=0, micro=0, version=1, size=2, rank=0, global_batch_size=0)


@given(st.integers(1, 50), st.integers(1, 60), st.integers(1, 4), st.booleans())
def test_what_is_left_is_what_is_walked_afterwards(samples: int, batch: int, epochs: int, drops: bool) -> None:
    """Of batches at most as large as an epoch; larger ones are an epoch each."""
    planned, position = PlannedEpochs(samples, epochs, drops), Position(0, 0)
    least, walked = (min(batch, samples) if drops else 1), [(0, 0)]
    left = []
    while position.epoch < epochs:
        left.append((position, walked[-1]))
        taken = min(batch, samples - position.offset)
        walked.append((walked[-1][0] + taken, walked[-1][1] + 1))
        position = advanced(position, taken, samples=samples, least=least)
    total, steps = walked[-1]
    for at, (trained, done) in [*left, (position, walked[-1])]:
        here = replace_position(at, batch)
        progress = planned.progress(here, epoch=0)
        assert (progress["samples_left"], progress["steps_left"]) == (total - trained, steps - done)


def replace_position(position: Position, batch: int) -> StepPosition:
    return START._replace(epoch=position.epoch, offset=position.offset, global_batch_size=batch)


def test_epochs_are_told_as_the_program_counts_them_and_which_fit_it_is() -> None:
    resumed = replace(PlannedEpochs(samples=100, epochs=3), done_before=5, fit=2)
    progress = resumed.progress(replace_position(Position(1, 50), 25), epoch=1)
    assert progress == {"epoch": 7, "epochs": 8, "samples_left": 150, "steps_left": 6, "fit": 2}


def recorded_run() -> tuple[Run, list[dict[str, Any]]]:
    """A run, and the lines of its metrics."""
    run, lines = linear_run(), list[dict[str, Any]]()
    run.training._run.membership.record = lambda stream, made: lines.append(made()["metrics"])
    return run, lines


@pytest.mark.parametrize("remainder", ["keep", "drop"])
def test_each_line_of_a_run_tells_what_is_done_and_what_is_left(remainder: str) -> None:
    run, lines = recorded_run()
    for batch in run.training.batches(points(10), batch_size=4, epochs=2, seed=0, remainder=remainder):
        run.step(batch)
    trained = [4, 8, 10, 14, 18, 20] if remainder == "keep" else [4, 8, 12, 16]
    assert [line["progress"] for line in lines] == [
        {
            "samples": samples,
            "epoch": 1 + (nth >= len(trained) // 2),
            "epochs": 2,
            "samples_left": trained[-1] - samples,
            "steps_left": len(trained) - nth - 1,
        }
        for nth, samples in enumerate(trained)
    ]


def test_a_loop_without_batches_tells_the_samples_so_far_and_no_more() -> None:
    run, lines = recorded_run()
    run.steps(2, samples=3)
    assert [line["progress"] for line in lines] == [{"samples": 3}, {"samples": 6}]
