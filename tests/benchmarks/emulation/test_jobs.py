"""What the stamps of emulated jobs say, and how long an emulated device takes."""

from __future__ import annotations

import pytest

from benchmarks.elasticity.stamps import Stamp
from benchmarks.emulation.curves import Curve
from benchmarks.emulation.jobs import Slow, Task, Work, from_stamps
from benchmarks.emulation.worker import HIDDEN_S, Device, StepCounter, factor_at, is_slow


def stamps(first: int, ends: list[float], sizes: list[int], *, began: float) -> list[Stamp]:
    """Steps one after the other; the first one began long before, with the start of the process."""
    begins = [began, *ends]
    rows = zip(begins, ends, sizes, strict=False)
    return [Stamp(begin, end, first + i, first + i + 1, size, 0) for i, (begin, end, size) in enumerate(rows)]


def test_a_job_begins_with_its_first_step_and_counts_what_each_peer_was_there_for() -> None:
    stays = stamps(0, [11.0, 12.0, 13.0, 14.0], [1, 1, 2, 2], began=2.0)
    joins = stamps(2, [13.0, 14.0], [2, 2], began=7.0)
    run = from_stamps({10: stays, 11: joins}, wall_s=30.0)
    assert (run.seconds, run.peer_seconds, run.size, run.wall_s) == (4.0, 6.0, 2, 30.0)
    assert (run.ends, run.sizes) == ((1.0, 2.0, 3.0, 4.0), (1, 1, 2, 2))
    assert run.settled_s == 3.0


def test_a_peer_that_leaves_does_not_tell_the_size_and_a_skipped_call_is_no_step() -> None:
    stays = [*stamps(0, [1.0, 2.0], [2, 2], began=0.0), Stamp(2.0, 2.5, 2, 2, 1, 0), Stamp(2.5, 3.0, 2, 3, 1, 0)]
    leaves = stamps(0, [1.0, 2.0], [2, 0], began=0.0)
    run = from_stamps({10: stays, 11: leaves})
    assert (run.sizes, run.ends) == ((2, 2, 1), (1.0, 2.0, 3.0))
    assert run.peer_seconds == pytest.approx(5.0)


def test_a_job_whose_size_stays_is_settled_from_its_start() -> None:
    run = from_stamps({10: stamps(0, [1.0, 2.0, 3.0], [1, 1, 1], began=0.0)})
    assert run.settled_s == 0.0
    assert from_stamps({10: stamps(0, [float(i) for i in range(1, 9)], [1] * 8, began=0.0)}).step_s == 1.0


def test_the_batch_of_a_step_follows_the_one_that_is_kept() -> None:
    curve = Curve("flat", {1: 100.0, 2: 100.0, 4: 100.0, 3: 100.0})
    split, fixed = Work(curve, 1000, 40), Work(curve, 1000, 40, "local_batch_size")
    assert [split.step_s(size) for size in (1, 4)] == [0.4, 0.4]
    assert [fixed.step_s(size) for size in (1, 4)] == [0.4, 1.6]
    assert Task(split, 1, 4, slow=Slow(4, (4.0, 2.0))).longest_s == 40.0


def test_a_device_is_due_a_step_after_it_was_due_before_and_hides_a_short_message() -> None:
    device = Device({2: 0.1}, lambda: 2, due=5.0, synchronised=5.0 + HIDDEN_S / 2, called=5.0 + HIDDEN_S / 2)
    assert device.next_due() == pytest.approx(5.1)


def test_a_device_that_waited_for_a_slow_peer_or_a_barrier_begins_after_it() -> None:
    waited = Device({2: 0.1}, lambda: 2, due=5.0, synchronised=6.0, called=6.0)
    assert waited.next_due() == pytest.approx(6.1 - HIDDEN_S)
    stopped = Device({2: 0.1}, lambda: 2, lambda: 4.0, due=5.0, synchronised=6.0, called=7.0)
    assert stopped.next_due() == pytest.approx(7.4 - HIDDEN_S)


def test_every_fourth_peer_is_slow_by_the_factor_of_the_phase() -> None:
    assert [peer for peer in range(9) if is_slow(peer, every=4)] == [3, 7]
    assert not any(is_slow(peer, every=0) for peer in range(9))
    assert [factor_at(step, [1.0, 4.0], phase=3) for step in (-1, 0, 2, 3, 99)] == [1.0, 1.0, 1.0, 4.0, 4.0]
    assert factor_at(99, [2.0], phase=0) == 2.0


def test_steps_are_read_at_first_and_after_a_skipped_call_and_counted_otherwise() -> None:
    said = iter([7, 9])
    counter = StepCounter(lambda: next(said))
    told = []
    for skipped in (False, False, True, False):
        counter.count(skipped=skipped)
        told.append(counter.steps)
    assert told == [7, 8, 9, 10]
