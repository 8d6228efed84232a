"""Files that are read in sequence, in the loop and by index."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kungfu as kf
from kungfu.errors import UsageError
from kungfu.keras.data.fit_data import arguments_alone
from tests.keras import fitting
from tests.training.linear import linear_run

COUNTS = [4, 1, 6, 0, 5]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Numbers below 16, some in each file."""
    for number, start in enumerate(np.cumsum([0, *COUNTS[:-1]]).tolist()):
        (tmp_path / f"{number}.txt").write_text("\n".join(map(str, range(start, start + COUNTS[number]))))
    return tmp_path


def numbers(name: str) -> Any:
    return (np.array([float(line), 1.0], np.float32) for line in Path(name).read_text().split())


def files_of(folder: Path, read: Any = numbers, *, opened: list[str] | None = None) -> Any:
    """The files of the folder, whose names are noted when they are opened."""

    def noting(name: str) -> Any:
        if opened is not None:
            opened.append(Path(name).name)
        return read(name)

    return kf.data.partitions(sorted(folder.glob("*.txt")), noting, counts=COUNTS)


def rows_of(run: Any, batches: Any) -> Iterator[list[int]]:
    """The numbers of each step that is done."""
    for x in batches:
        if run.step(x) is not kf.Training.SKIPPED:
            yield np.asarray(x)[:, 0].astype(int).tolist()


def assert_takes(files: Any, *indices: int) -> None:
    assert files.take(np.array(indices))[:, 0].numpy().tolist() == list(indices)


def test_samples_are_those_of_the_files_and_are_counted_once(folder):
    files = kf.data.partitions(str(folder / "*.txt"), numbers)
    assert len(files) == 16
    for indices in ([0, 1, 2, 3, 4], [5, 6, 15], [2, 11], [7, 8]):
        assert_takes(files, *indices)
    assert len(list(folder.glob(".*.count.npz"))) == 5
    assert len(kf.data.partitions(str(folder / "*.txt"), None)) == 16, "as kept"


def test_the_loop_walks_them_each_once_an_epoch_and_opens_each_file_once(folder):
    opened, run = [], linear_run()
    files = files_of(folder, opened=opened)
    seen = list(rows_of(run, run.training.batches(files, batch_size=3, epochs=2, seed=1)))
    assert [len(one) for one in seen] == [3, 3, 3, 3, 3, 1] * 2
    for epoch in (seen[:6], seen[6:]):
        assert sorted(row for batch in epoch for row in batch) == list(range(16))
    assert len(opened) <= 8, "four files in each of two epochs"


@pytest.mark.parametrize(
    ("given", "lengths"),
    [
        ({"max_local_batch_size": 2}, [2, 2, 1] * 3 + [1]),
        ({"remainder": "drop", "max_local_batch_size": 3}, [3, 2] * 3),
    ],
)
def test_shares_may_be_cut_into_micro_batches_and_the_rest_of_an_epoch_be_left_out(folder, given, lengths):
    run = linear_run()
    seen = list(rows_of(run, run.training.batches(files_of(folder), batch_size=5, epochs=2, seed=1, **given)))
    assert [len(one) for one in seen] == lengths * 2
    for epoch in (seen[: len(lengths)], seen[len(lengths) :]):
        rows = [row for batch in epoch for row in batch]
        assert len(set(rows)) == len(rows) == sum(lengths)


def test_a_run_that_is_resumed_goes_on_in_the_middle_of_its_file(folder):
    run, whole = linear_run(), []
    for rows in rows_of(run, run.training.batches(files_of(folder), batch_size=3, epochs=2, seed=1)):
        whole.append(rows)
        if len(whole) == 2:
            run.training.checkpoint(folder / "kept")
    run = linear_run()
    batches = run.training.batches(files_of(folder), batch_size=3, epochs=2, seed=1)
    assert run.training.resume(folder / "kept") is not None
    assert list(rows_of(run, batches)) == whole[3:], "after the step that follows the call"
    run = linear_run()
    assert run.training.resume(folder / "none") is None
    with pytest.raises(UsageError, match=r"call training.batches\(\) first, then training.resume\(\)"):
        run.training.batches(files_of(folder), batch_size=1, epochs=1, seed=0)


def test_the_dataset_for_evaluate_reads_apart_from_what_trains(folder):
    files = files_of(folder)
    assert_takes(files, 5, 6)
    data = files.dataset(5)
    assert [batch[:, 0].numpy().astype(int).tolist() for batch in data] == [
        list(range(start, min(start + 5, 16))) for start in range(0, 16, 5)
    ]
    assert len(data) == 4
    files.take(np.array([7]))
    assert files.passed == 0, "it goes on where it was"


def test_alone_fit_reads_the_files_one_after_the_other(folder):
    opened = []
    files = files_of(folder, opened=opened)
    for shuffle in (True, False):
        given = {"batch_size": 5, "shuffle": shuffle, "steps_per_epoch": None}
        batches, orders = arguments_alone(files, given, seed=3)["x"], []
        for _ in range(2):
            batches.on_epoch_end()
            opened.clear()
            orders.append([int(row) for index in range(len(batches)) for row in batches[index][0][:, 0]])
            assert sorted(orders[-1]) == list(range(16))
            assert len(opened) == 4, "each file once"
        assert (orders[0] != orders[1]) == shuffle


def test_a_place_in_the_middle_of_a_file_is_come_to_before_its_rows_are_taken(folder):
    opened = []
    files = files_of(folder, opened=opened)
    files.read_to(np.array([3, 4, 8, 7, 15]))
    assert (files.passed, opened) == (3 + 2 + 4, ["4.txt", "2.txt", "0.txt"]), "none of one that begins with its start"
    assert_takes(files, 3, 4, 8, 7, 15)
    assert len(opened) == 4, "rows of one file are read in its order"
    assert files.passed == 9


def test_reading_ahead_that_failed_fails_in_the_same_way_when_it_is_needed(folder):
    def read(name: str) -> Any:
        yield from (one for one in numbers(name) if one[0] < 7)
        raise OSError("of the user's disk")

    files = files_of(folder, read)
    for _ in range(2):
        with pytest.raises(OSError, match="of the user's disk"):
            files.take(np.array([8]))


def test_a_file_that_gives_another_number_is_told(folder):
    names = sorted(folder.glob("*.txt"))
    for counts, told in (([4, 1, 5, 0, 5], "2.txt gave more samples than the 5"), ([4, 2, 6, 0, 5], "gave fewer")):
        files = kf.data.partitions(names, numbers, counts=counts)
        with pytest.raises(UsageError, match=told):
            files.take(np.arange(len(files)))


@pytest.mark.parametrize(
    ("counts", "told"),
    [([1], "5 files, so as many numbers"), ([1, 1, 1, 1, -1], "none below 0"), ([0] * 5, "hold no s")],
)
def test_counts_that_do_not_fit_are_refused(folder, counts, told):
    with pytest.raises(UsageError, match=told):
        kf.data.partitions(str(folder / "*.txt"), numbers, counts=counts)


@pytest.mark.slow
def test_fit_trains_on_them_as_on_arrays_in_their_order_and_in_a_second_fit_too():
    """With weights of samples, a smaller last step, several steps per execution, and an evaluation in between."""
    x, y = fitting.points()
    x, y, weights = x.astype("float32"), y.astype("float32"), np.linspace(0.5, 2.0, len(x), dtype="float32")
    names = [str(first) for first in range(0, len(x), 10)]

    def read(name: str) -> Any:
        rows = range(int(name), int(name) + 10)
        return ((x[row], y[row], weights[row]) for row in rows)

    files = kf.data.partitions(names, read, counts=[10] * len(names))
    mine, plain = (fitting.compiled(fitting.network(), metrics=["mae"]) for _ in range(2))
    for epochs in (2, 1):
        mine.steps_per_execution = 3
        fitting.in_job(mine, files, batch_size=16, epochs=epochs, shuffle=True)
        expected: dict[str, list[float]] = {}
        for epoch in range(epochs):
            order = files.make_sampler(0, "keep").order(epoch)
            found = fitting.plainly(plain, x[order], y[order], sample_weight=weights[order], batch_size=16).history
            for name, values in found.items():
                expected.setdefault(name, []).extend(values)
        for name, values in expected.items():
            np.testing.assert_allclose(mine.history.history[name], values, rtol=1e-5, err_msg=name)
        np.testing.assert_allclose(
            mine.evaluate(files.dataset(7), verbose=0),
            plain.evaluate(x, y, sample_weight=weights, verbose=0),
            rtol=1e-5,
        )
    for one, other in zip(mine.weights, plain.weights, strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-4, atol=1e-6)
