"""The folds of a truth value."""

from __future__ import annotations

from kungfu.signal import TrainingSignals
from tests.signal.fold.played import played

training = TrainingSignals()


def test_an_edge_is_true_in_the_step_in_which_a_signal_becomes_true() -> None:
    assert played(lambda x: (x > 2).rising(), [3, 4, 1, 5, 5, 0]) == [1, 0, 0, 1, 0, 0]


def test_a_count_is_of_all_true_steps_and_a_streak_of_those_in_a_row() -> None:
    losses = [3, 4, 1, 5, 5, 0]
    assert played(lambda x: (x > 2).count(), losses) == [1, 2, 2, 3, 4, 4]
    assert played(lambda x: (x > 2).streak(), losses) == [1, 2, 0, 1, 2, 0]
