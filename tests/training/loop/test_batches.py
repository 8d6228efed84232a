"""The loader: slices of one agreed order, each sample once an epoch, loaded ahead of who asks in a thread."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import tensorflow as tf

import kungfu as kf
from kungfu.errors import UsageError
from kungfu.training.loop.batches import Prefetch
from tests.training.linear import linear_run, points

DEADLINE_S = 180.0


def walked(run, data, **given):
    """The batches that were trained on, as index arrays."""
    trained = []
    for x in run.training.batches(data, **given):
        if run.step(x) is not kf.Training.SKIPPED:
            trained.append(np.asarray(x)[:, 0].astype(int).tolist())
    return trained


def larger_batch_every(steps):
    return kf.policy(lambda training: kf.control.every(steps).set_global_batch_size(6))()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 2.0}, r"batch_size=2\.0"),
        ({"batch_size": 9}, "only 8 samples"),
        ({"epochs": -1}, "epochs=-1"),
        ({"seed": -1}, "seed=-1"),
        ({"max_local_batch_size": 0}, "max_local_batch_size=0"),
        ({"remainder": "cut"}, "one of keep, drop"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(given, message):
    with pytest.raises(UsageError, match=message):
        linear_run().training.batches(points(8), **{"batch_size": 4, "epochs": 1, "seed": 0, **given})


def test_a_second_loop_is_refused():
    run = linear_run()
    run.training.batches(points(8), batch_size=4, epochs=1, seed=0)
    with pytest.raises(UsageError, match="called twice"):
        run.training.batches(points(8), batch_size=4, epochs=1, seed=0)


def test_a_batch_that_is_not_given_to_the_step_is_refused():
    run = linear_run()
    loop = run.training.batches(points(8), batch_size=4, epochs=1, seed=0)
    next(loop)
    with pytest.raises(UsageError, match="was not given to the function"):
        next(loop)


def test_a_batch_that_was_mapped_on_the_way_is_known_by_its_turn():
    run = linear_run()
    count = 0
    for x in run.training.batches(points(8), batch_size=4, epochs=1, seed=0):
        count += run.step(tf.identity(x) * 2) is not kf.Training.SKIPPED
    assert count == 2


def test_no_epochs_are_no_batches():
    assert list(linear_run().training.batches(points(4), batch_size=2, epochs=0, seed=0)) == []


@pytest.mark.parametrize(("remainder", "totals"), [("drop", (48, 40)), ("keep", (51, 51))])
def test_the_samples_of_the_job_are_those_that_it_comes_to_though_the_batch_changes(remainder, totals):
    seen = {}

    def look(control, step, samples, done):
        seen[step] = samples, done

    @kf.policy
    def larger(training):
        watched = training.step, training.job_samples, training.samples_done
        grow = kf.control.every(3).until(training.step > 3).set_global_batch_size(6)
        return grow, kf.control.always().call(look, *watched)

    run = linear_run(policies=[larger()])
    batches = walked(run, points(17), batch_size=4, epochs=3, seed=0, remainder=remainder)
    trained = [len(one) for one in batches]
    run.training.finish()
    # The rule of step 3 is carried out after step 4, with one sample left anyway; then two steps of 6 make an epoch.
    assert trained[:6] == [4] * 4 + ([6, 6] if remainder == "drop" else [1, 6])
    assert remainder == "keep" or len(trained) == 8
    assert remainder == "keep" or all(len({*batches[at], *batches[at + 1]}) == 12 for at in (4, 6))
    assert {step: samples for step, (samples, _) in seen.items()} == {step: totals[step > 4] for step in seen}
    assert min(seen) <= 4 < max(seen)
    for step, (samples, done) in seen.items():
        assert done == sum(trained[: step - 1])
        assert step <= 4 or samples == sum(trained)


def test_an_epoch_ends_at_the_barrier_that_makes_its_rest_a_remainder():
    run = linear_run(policies=[larger_batch_every(1)])
    trained = walked(run, points(12), batch_size=4, epochs=2, seed=0, remainder="drop")
    assert [len(batch) for batch in trained] == [4, 4, 6, 6]
    assert run.training._run.graph_state.progress.position().epoch == 2


def test_records_are_loaded_in_a_thread_that_ends_with_the_loop():
    names = set()

    def load(row):
        names.add(threading.current_thread().name)
        return row

    run = linear_run()
    trained = walked(run, list(points(9)), batch_size=4, epochs=2, seed=1, load=load)
    assert [len(batch) for batch in trained] == [4, 4, 1] * 2
    assert sorted(one for batch in trained for one in batch) == sorted([*range(9)] * 2)
    assert names == {"kungfu-loader"}
    assert "kungfu-loader" not in {thread.name for thread in threading.enumerate()}


# ---- the loading thread: never far ahead, and never with something that was not asked for ----------------------------


class Loading:
    """Loads numbers as text; says which it has begun, and waits where it is told to."""

    def __init__(self, *, failing: frozenset[int] = frozenset()) -> None:
        self.begun: list[int] = []
        self.threads: set[str] = set()
        self.failing = failing
        self.gate = threading.Event()
        self.gate.set()
        self._moved = threading.Condition()

    def __call__(self, key: int) -> str:
        with self._moved:
            self.begun.append(key)
            self.threads.add(threading.current_thread().name)
            self._moved.notify_all()
        assert self.gate.wait(DEADLINE_S)
        if key in self.failing:
            raise OSError(f"cannot read {key}")
        return str(key)

    def awaited(self, count: int) -> list[int]:
        """What was begun, once so many were."""
        with self._moved:
            assert self._moved.wait_for(lambda: len(self.begun) >= count, DEADLINE_S)
            return list(self.begun)


def ahead(loading: Loading) -> Prefetch[int]:
    return Prefetch(loading, following=lambda key: key + 1)


def begun(loading: Loading) -> Prefetch[int]:
    """It has loaded the first one, and runs ahead of it."""
    prefetch = ahead(loading)
    assert prefetch.get(0) == "0"
    prefetch.run_ahead(0)
    return prefetch


def test_the_next_two_are_loaded_while_nobody_asks_and_no_more() -> None:
    loading = Loading()
    prefetch = begun(loading)
    assert loading.awaited(3) == [0, 1, 2]
    assert prefetch.get(1) == "1"
    assert loading.begun == [0, 1, 2], "the third is asked for when the second is in use"
    prefetch.run_ahead(1)
    assert loading.awaited(4) == [0, 1, 2, 3]
    prefetch.close()
    assert loading.threads == {"kungfu-loader"}


def test_a_guess_that_is_wrong_is_thrown_away_and_so_is_what_hung_on_it() -> None:
    loading = Loading()
    prefetch = ahead(loading)
    prefetch.get(0)
    loading.gate.clear()
    prefetch.run_ahead(0)
    assert loading.awaited(2) == [0, 1]
    loading.gate.set()
    assert prefetch.get(50) == "50"
    prefetch.run_ahead(50)
    assert prefetch.get(51) == "51"
    prefetch.close()
    assert [key for key in loading.begun if key >= 50][:2] == [50, 51]


def test_an_error_of_loading_reaches_who_asks_for_that_batch_only() -> None:
    prefetch = begun(Loading(failing=frozenset({1})))
    with pytest.raises(OSError, match="cannot read 1"):
        prefetch.get(1)
    assert prefetch.get(2) == "2"
    prefetch.close()


def test_an_error_of_a_guess_that_nobody_needs_is_nobodys() -> None:
    prefetch = begun(Loading(failing=frozenset({1, 2})))
    assert prefetch.get(7) == "7"
    prefetch.close()


def test_it_tells_whether_a_batch_is_there_without_taking_it() -> None:
    loading = Loading(failing=frozenset({8}))
    prefetch = ahead(loading)
    loading.gate.clear()
    assert not prefetch.is_loaded(7, within_s=0.0)
    assert not prefetch.is_loaded(7, within_s=0.01)
    loading.gate.set()
    assert prefetch.is_loaded(7, within_s=DEADLINE_S)
    assert prefetch.get(7) == "7"
    assert prefetch.is_loaded(8, within_s=DEADLINE_S), "nothing is to be waited for"
    with pytest.raises(OSError, match="cannot read 8"):
        prefetch.get(8)
    assert loading.begun == [7, 8]
    prefetch.close()


def test_the_thread_ends_with_its_loop() -> None:
    prefetch = begun(Loading())
    prefetch.close()
    prefetch.close()
    assert not prefetch._thread.is_alive()


def test_a_loop_that_is_abandoned_may_end_in_the_thread_itself() -> None:
    held: list[Prefetch[int]] = []
    held.append(Prefetch(lambda key: held[0].close() or key, following=lambda key: None))
    assert held[0].get(3) == 3
    held[0]._thread.join(DEADLINE_S)
    assert not held[0]._thread.is_alive()


def test_a_read_that_hangs_does_not_hold_up_the_end(monkeypatch) -> None:
    monkeypatch.setattr("kungfu.training.loop.batches._END_S", 0.01)
    loading = Loading()
    prefetch = ahead(loading)
    prefetch.get(0)
    loading.gate.clear()
    prefetch.run_ahead(0)
    loading.awaited(2)
    with pytest.warns(RuntimeWarning, match=r"has not ended within 0\.01 s"):
        prefetch.close()
    loading.gate.set()
    prefetch._thread.join(DEADLINE_S)
    assert not prefetch._thread.is_alive()
