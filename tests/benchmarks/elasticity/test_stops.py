"""What is read from stamps: stops, recoveries, and what they cost."""

from __future__ import annotations

import pytest

from benchmarks.elasticity.stamps import Stamp, Writer, read_stamps
from benchmarks.elasticity.stops import Recovery, changes, recovery


def done(ends: list[float], *, sizes: list[int], first: int = 0) -> list[Stamp]:
    """Steps that were done one after the other, ending at these seconds."""
    rows = zip(ends, sizes, strict=True)
    return [Stamp(end - 0.5, end, first + i, first + i + 1, size, 0) for i, (end, size) in enumerate(rows)]


def test_the_longest_gap_of_any_survivor_less_its_normal_step_is_the_stop() -> None:
    survivor = done([1.0, 2.0, 3.0, 6.0, 7.0, 8.0], sizes=[2, 2, 2, 3, 3, 3])
    other = done([1.0, 2.0, 3.0, 6.5, 7.0, 8.0], sizes=[2, 2, 2, 3, 3, 3])
    joiner = done([6.0, 7.0, 8.0], sizes=[3, 3, 3])
    (change,) = changes({10: survivor, 11: other, 12: joiner})
    assert (change.before, change.after, change.stop_s) == (2, 3, 2.5)


def test_each_of_several_changes_is_found_once_and_in_order() -> None:
    ends, sizes = [float(i) for i in range(40)], [2] * 15 + [3] * 15 + [2] * 10
    ends = [end + (0.5 if end >= 15 else 0.0) + (0.25 if end >= 30 else 0.0) for end in ends]
    found = changes({10: done(ends, sizes=sizes), 11: done(ends, sizes=sizes)})
    assert [(one.before, one.after, one.stop_s) for one in found] == [(2, 3, 0.5), (3, 2, 0.25)]


def test_a_stop_in_a_step_beside_the_change_belongs_to_it_and_one_far_away_does_not() -> None:
    ends = [*range(1, 11), 15, *range(16, 36), 55, 56]
    sizes = [2] * 13 + [3] * (len(ends) - 13)
    (change,) = changes({10: done([float(end) for end in ends], sizes=sizes)})
    assert change.stop_s == 4.0


def test_a_step_that_failed_once_and_is_done_again_is_one_step_lost() -> None:
    survivor = [*done([1.0, 2.0], sizes=[3, 3]), Stamp(2.0, 2.9, 2, 2, 0, -1), Stamp(2.9, 3.5, 2, 3, 2, 0)]
    victim = done([1.0, 2.0], sizes=[3, 3])
    assert recovery({10: survivor, 11: victim}, killed=11, at=2.25) == Recovery(1.25, 1, 0.5)


def test_steps_that_are_undone_are_lost_too_and_the_worst_survivor_counts() -> None:
    """Steps that are undone by going back are lost too, and the worst survivor counts."""
    better = [*done([1.0, 2.0], sizes=[3, 3]), Stamp(2.0, 3.0, 2, 2, 0, -1), Stamp(3.0, 4.0, 2, 3, 2, 0)]
    worse = [*done([1.0, 2.0], sizes=[3, 3], first=10), Stamp(2.0, 3.0, 12, 12, 0, -1), Stamp(3.0, 4.5, 9, 10, 2, 0)]
    assert recovery({10: better, 11: worse}, killed=12, at=2.5) == Recovery(2.0, 4, 1.5)


def test_a_job_that_never_goes_on_has_no_recovery() -> None:
    survivor = [*done([1.0, 2.0], sizes=[3, 3]), Stamp(2.0, 3.0, 2, 2, 0, -1)]
    with pytest.raises(ValueError, match="another size than 3"):
        recovery({10: survivor}, killed=11, at=2.5)


def test_stamps_tell_of_steps_that_were_done_and_of_those_that_failed(tmp_path) -> None:
    writer, count = Writer(tmp_path), iter([4, 5, 5])
    with writer.step(lambda: next(count), place=lambda: (2, 1)):
        pass
    with pytest.raises(RuntimeError), writer.step(lambda: next(count), place=lambda: (2, 1)):
        raise RuntimeError
    ((good, bad),) = read_stamps(tmp_path).values()
    assert (good.before, good.after, good.size, good.rank) == (4, 5, 2, 1)
    assert (bad.before, bad.after, bad.size) == (5, 5, 0)
    assert good.began <= good.ended <= bad.began <= bad.ended
