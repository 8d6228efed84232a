"""Message layouts: how collectives share one message."""

from __future__ import annotations

from kungfu import ops
from kungfu.compiler import MessageLayout
from kungfu.signal import TrainingSignals

training = TrainingSignals()


def test_scalars_come_first_and_vectors_grow_with_the_cluster() -> None:
    total, gathered = ops.all_reduce(training.loss, "sum"), ops.all_gather(training.loss)
    mean = ops.all_reduce(training.busy_seconds, "mean")
    layout = MessageLayout.of((total, gathered, mean))
    assert layout.collectives == (total, mean, gathered)
    assert [layout.floats(size) for size in (1, 2, 5)] == [3, 4, 7]


def test_a_reduced_vector_takes_one_float_a_peer_and_no_collective_none() -> None:
    spread = ops.all_gather(training.loss) - training.loss
    assert MessageLayout.of((ops.all_reduce(spread, "sum"),)).floats(3) == 3
    assert MessageLayout.of(()).floats(4) == 0
