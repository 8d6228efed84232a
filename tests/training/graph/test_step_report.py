"""What a step tells the host: the same as the variables hold, whatever the step came to."""

from __future__ import annotations

import numpy as np
import pytest

import kungfu as kf
from kungfu.errors import UsageError
from kungfu.training.graph.step_report import StepPosition, read_position, read_report, write_report
from tests.training.linear import linear_run, points


def test_a_step_tells_where_the_run_is_behind_it_and_behind_its_barrier():
    @kf.policy
    def larger(training):
        return kf.control.every(2).set_global_batch_size(3)

    run, told = linear_run(policies=[larger()]), []
    calls = run.training._calls
    for batch in run.training.batches(points(10), batch_size=2, epochs=2, seed=0, max_local_batch_size=2):
        run.step(batch)
        told.append(calls.position())
        assert told[-1] == read_position(calls.run.graph_state)
    assert {(one.micro, one.global_batch_size) for one in told} == {(0, 2), (1, 3), (0, 3)}
    assert told[-1].epoch == 2


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
