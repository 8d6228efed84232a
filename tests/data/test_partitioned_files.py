"""Files that are read in sequence, in the loop and by index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kungfu as kf
from kungfu.errors import UsageError
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


def test_samples_are_those_of_the_files_and_are_counted_once(folder):
    files = kf.data.partitions(str(folder / "*.txt"), numbers)
    assert len(files) == 16
    for indices in ([0, 1, 2, 3, 4], [5, 6, 15], [2, 11], [7, 8]):
        assert files.take(np.array(indices))[:, 0].numpy().tolist() == indices
    assert len(list(folder.glob(".*.count.npz"))) == 5
    assert len(kf.data.partitions(str(folder / "*.txt"), None)) == 16, "as kept"


def test_the_loop_walks_them_each_once_an_epoch_and_opens_each_file_once(folder):
    opened, seen, run = [], [], linear_run()

    def read(name: str) -> Any:
        opened.append(Path(name).name)
        return numbers(name)

    files = kf.data.partitions(sorted(folder.glob("*.txt")), read, counts=COUNTS)
    for x in run.training.batches(files, batch_size=3, epochs=2, seed=1):
        if run.step(x) is not kf.Training.SKIPPED:
            seen.append(np.asarray(x)[:, 0].astype(int).tolist())
    assert [len(one) for one in seen] == [3, 3, 3, 3, 3, 1] * 2
    for epoch in (seen[:6], seen[6:]):
        assert sorted(row for batch in epoch for row in batch) == list(range(16))
    assert len(opened) <= 8, "four files in each of two epochs"


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
