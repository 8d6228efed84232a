"""What a step tells the host: the same as the variables hold, whatever the step came to."""

from __future__ import annotations

import numpy as np
import pytest

import kungfu as kf
from kungfu.errors import UsageError
from kungfu.training.graph.account import Where, read_account, read_where, write_account
from tests.training.linear import linear_run, points


def test_a_step_tells_where_the_run_is_behind_it_and_behind_its_barrier():
    @kf.policy
    def larger(training):
        return kf.control.every(2).set_global_batch_size(3)

    run, told = linear_run(policies=[larger()]), []
    loop = run.training._loop
    for batch in run.training.batches(points(10), batch_size=2, epochs=2, seed=0, max_local_batch_size=2):
        run.step(batch)
        told.append(loop.where())
        assert told[-1] == read_where(loop.ledger)
    assert {(one.micro, one.global_batch_size) for one in told} == {(0, 2), (1, 3), (0, 3)}
    assert told[-1].epoch == 2


def test_a_step_that_was_refused_tells_it_too_and_one_that_raised_asks_the_variables():
    run = linear_run()
    batches, loop = run.training.batches(points(10), batch_size=2, epochs=1, seed=0), run.training._loop
    first = next(batches)
    run.step(first)
    assert run.step(first) is kf.SKIPPED
    assert loop.where() == Where(epoch=0, offset=2, micro=0, version=0, size=1, rank=0, global_batch_size=2)
    next(batches)
    with pytest.raises(UsageError, match="another kind of batch"):
        run.step(np.ones((2, 3, 4), np.float32))
    loop.ledger.progress.offset.assign(4)
    assert loop.where().offset == 4


def test_the_row_behind_it_is_the_tape():
    ledger = linear_run().training._loop.ledger
    tape = np.arange(ledger.figures.tape.row.shape[0], dtype=np.float64)
    ledger.figures.tape.row.assign(tape)
    ledger.progress.offset.assign(2**40 + 1)
    account = read_account(write_account(ledger, 2))
    assert (account.code, account.where.offset) == (2, 2**40 + 1)
    assert account.row.tolist() == tape.tolist()
