"""What the assembler writes; what the native op makes of it is shown beside the other kernels."""

from __future__ import annotations

from typing import Any

import pytest

from kungfu import control, ops
from kungfu.compiler.assembler import after_sync, before_sync
from kungfu.errors import InternalError
from tests.compiler.small import ignore, plan_of, plan_showing


def test_a_small_policy_is_a_listing_that_can_be_read() -> None:
    bytecode = after_sync(plan_showing(lambda t: t.mean_loss + 0.1, every=2))
    assert bytecode.inputs == {"summed": "float32", "step": "int64", "change_due": "bool", "mean_loss": "float32"}
    assert bytecode.text.splitlines() == [
        "states",
        "inputs 0 2 6 7",
        "constant int64 1 0",
        "constant int64 3 2",
        "constant float32 8 0x1.99999a0000000p-4",  # 0.1 as a float32
        "constant bool 14 0",
        "constant float32 15 nan",
        "results 18 19 20 21 22 23 24 25",
        "kept",
        "modulo.int64 4 2 3",
        "equal.int64 5 4 1",
        "skip_unless 5 6",  # the rest is for every second step
        "not.bool 9 6",
        "and.bool 10 5 9",
        "add.float32 11 7 8",
        "copy 12 10",
        "copy 13 11",
        "skip 2",
        "copy 12 14",
        "copy 13 15",
        "where.bool 16 12 15 15",
        "where.bool 17 5 13 15",
        "join 18 12",
        "join 19 16",
        "join 20",
        "join 21 17",
        "join 22",
        "join 23",
        "join 24",
        "join 25",
    ]


def test_only_the_states_that_the_riders_need_are_read_before_them() -> None:
    def body(training: Any) -> Any:
        early, late = training.samples.previous(), training.mean_loss.ema(0.5)
        return control.every(2).call(ignore, ops.all_reduce(early, "sum"), late)

    plan = plan_of(body)
    assert len(before_sync(plan).states) == 2
    assert len(after_sync(plan).states) == sum(map(len, plan.state_names.values())) == 4


def test_a_message_of_its_own_is_no_instruction() -> None:
    plan = plan_showing(lambda t: ops.all_reduce(t.mean_loss - t.loss, "sum"), every=2)
    with pytest.raises(InternalError, match="sends messages of its own, and one peer's bytecode can't wait"):
        after_sync(plan)
