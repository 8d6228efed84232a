"""A ``keras.utils.PyDataset`` under ``fit``: its batches by index, in the job's order.

An index selects a whole batch of the job: every peer loads the step's batch and uses its slice. So a step has the same
samples as under Keras, but peers do not share the loading. If training waits for loading, let several ``workers`` of
the PyDataset load batches in parallel, or pass single samples by index (``kf.data``, ``training.batches``), of which
each peer loads only its slice. A joining peer begins at the batch that the other peers have reached.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count, islice
from typing import Any

import keras

from kungfu.errors import UsageError
from kungfu.keras.data.whole_batches import BatchFormat, count_of, stream_plan
from kungfu.runtime.api import shuffled
from kungfu.training.data import BatchPlan
from kungfu.training.data.checksums import checksum
from kungfu.training.data.stream import Stream


def of_py_dataset(given: Mapping[str, Any], *, seed: int) -> tuple[BatchPlan, Any]:
    """The `BatchPlan` and the first batch of a PyDataset; ``shuffle=True`` leaves a smaller last batch at the end.

    Cost:
        The first and the last batch are loaded once more at the start, to count the samples.

    Raises:
        UsageError: There are no batches, their number is not stated, or it is infinite without ``steps_per_epoch``.
    """
    dataset, steps = given["x"], given["steps_per_epoch"]
    name = type(dataset).__name__
    try:
        number = dataset.num_batches
    except NotImplementedError as error:
        raise UsageError(
            f"model.fit() was given {name}, a PyDataset that does not say how many batches it has: give it a __len__, "
            "or a num_batches that is None where it has no end"
        ) from error
    if number is None and not steps:
        raise UsageError(f"model.fit() was given {name}, a PyDataset without an end: say steps_per_epoch")
    if number == 0:
        raise UsageError(f"model.fit() was given {name}, a PyDataset without batches")
    order = seed if given["shuffle"] and number is not None else None
    batch_format = BatchFormat(f"{name}, a PyDataset,", given["class_weight"])
    batches = IndexedBatches(dataset, batch_format, number, order, steps)

    def targets_checksum(batch: Any) -> int:
        """The checksum of a batch's targets: each peer may change the inputs at random, but not the targets."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch_format.as_given(batch))
        return checksum(x if y is None else (y, sample_weight))

    source = Stream(
        batches.read,
        samples=batches.epoch_samples,
        is_endless=True,
        what=f"{name}, the PyDataset that model.fit() was given",
        can_seek=True,
        checksum=targets_checksum,
    )
    seed = -1 if order is None else order
    return stream_plan(source, batches.first, given, checksum=targets_checksum(batches.first), seed=seed), batches.first


class IndexedBatches:
    """Reads the batches of a PyDataset one after the other, from any position.

    Batch ``k`` of the reading is number ``k % batches`` in the order of pass ``k // batches`` over the data. The
    dataset's epoch hooks are called as often as by Keras, also on a peer that joins later. So a dataset whose hooks
    shuffle it with a seed has the same order on all peers.

    Args:
        batch_format: Converts the dataset's batches into the structure of ``fit``.
        number: The number of batches; ``None`` for a dataset without an end.
        seed: The seed of the order; ``None`` for the order of the indices.
        steps: The number of steps in an epoch; ``None`` if an epoch is a pass over the data.
    """

    def __init__(
        self, dataset: Any, batch_format: BatchFormat, number: int | None, seed: int | None, steps: int | None
    ) -> None:
        self._dataset, self._format, self._seed = dataset, batch_format, seed
        self._number = sys.maxsize if number is None else number
        self.first = batch_format.standard(dataset[0])
        self.batch_size = self._last_size = count_of(self.first)
        if number is not None and number > 1:
            self._last_size = count_of(batch_format.standard(dataset[number - 1]))
        if self._last_size > self.batch_size:
            raise self._uneven(number, self._last_size, expected=self.batch_size)
        self._pass_samples = (self._number - 1) * self.batch_size + self._last_size
        # As in Keras, an epoch with more steps than batches ends with the data.
        is_whole = not steps or steps >= self._number
        self.epoch_samples = self._pass_samples if is_whole else (steps or 0) * self.batch_size
        self._begun = self._ended = 0  # epochs announced to the dataset
        if dataset.use_multiprocessing:
            print(
                f"kungfu: {type(dataset).__name__}(use_multiprocessing=True): a peer of a job cannot be forked, so its "
                f"{max(1, dataset.workers)} workers load in threads",
                file=sys.stderr,
            )

    def read(self, reading: int, at: int) -> tuple[int, Iterator[Any]]:
        """The number of the first sample in the batch that contains sample ``at``, and the batches from this one on."""
        place = self._place_of(at)
        return self._first_sample(place), self._from(place)

    def _place_of(self, sample: int) -> int:
        passes, within = divmod(sample, self._pass_samples)
        return passes * self._number + within // self.batch_size

    def _first_sample(self, place: int) -> int:
        passes, within = divmod(place, self._number)
        return passes * self._pass_samples + within * self.batch_size

    def _index_at(self, place: int) -> int:
        passes, within = divmod(place, self._number)
        if self._seed is None:
            return within
        # A smaller last batch remains the last one, so each step is one batch as long as the batch size is unchanged.
        full = self._number - (self._last_size < self.batch_size)
        return int(shuffled(full, seed=self._seed, epoch=passes)[within]) if within < full else within

    def _end_of(self, epoch: int) -> int:
        """The end of an epoch as a batch number: one more than the number of the last batch with its samples."""
        end = (epoch + 1) * self.epoch_samples
        place = self._place_of(end)
        return place + (self._first_sample(place) < end)

    def _from(self, place: int) -> Iterator[Any]:
        while True:
            epoch = self._first_sample(place) // self.epoch_samples
            self._begin(epoch)
            end = self._end_of(epoch)
            for at, batch in zip(count(place), self._loaded(place, end), strict=False):
                if at + 1 == end:
                    self._end(epoch)  # before anything of the next epoch is loaded
                yield batch
            place = end

    def _loaded(self, place: int, end: int) -> Iterator[Any]:
        """Yields the batches ``place`` to ``end - 1``; loads in parallel if the dataset has several workers."""
        indices = map(self._index_at, range(place, end))
        workers = self._dataset.workers
        if workers <= 1 and not self._dataset.use_multiprocessing:
            yield from map(self._load, indices)
            return
        pool, waiting = ThreadPoolExecutor(max(1, workers), "kungfu-batches"), deque[Future[Any]]()
        try:
            ahead = max(workers, self._dataset.max_queue_size)
            waiting.extend(pool.submit(self._load, index) for index in islice(indices, ahead))
            while waiting:
                batch = waiting.popleft().result()
                waiting.extend(pool.submit(self._load, index) for index in islice(indices, 1))
                yield batch
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _load(self, index: int) -> Any:
        batch = self._format.standard(self._dataset[index])
        expected = self._last_size if index == self._number - 1 else self.batch_size
        if count_of(batch) != expected:
            raise self._uneven(index + 1, count_of(batch), expected=expected)
        return batch

    def _uneven(self, number: int | None, size: int, *, expected: int) -> UsageError:
        return UsageError(
            f"model.fit() was given {type(self._dataset).__name__}, a PyDataset whose batch {number} has {size} "
            f"samples where {expected} were expected: peers count samples, so all "
            "batches have as many as the first one, and only the last may have fewer"
        )

    def _begin(self, epoch: int) -> None:
        """Calls the dataset's hooks for this epoch, and for earlier epochs that were not announced yet."""
        if not self._begun:
            self._dataset.on_epoch_end()  # Keras' fit calls this first, too
        while self._begun <= epoch:
            self._end(self._begun - 1)
            if hasattr(self._dataset, "on_epoch_begin"):  # since Keras 3.7
                self._dataset.on_epoch_begin()
            self._begun += 1

    def _end(self, epoch: int) -> None:
        if epoch >= self._ended:
            self._dataset.on_epoch_end()
            self._ended = epoch + 1
