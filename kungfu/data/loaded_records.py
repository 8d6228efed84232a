"""Records of the program, such as a list of files, as samples: each is loaded when it is needed, several in parallel.

``training.batches(records, load=...)`` does the same for a custom loop; Keras' ``fit`` takes them in this form.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kungfu.data.indexed_samples import IndexedSamples
from kungfu.errors import UsageError
from kungfu.training.data.refusals import refuse_readers, refuse_unnumbered
from kungfu.training.data.sample_source import Records


def records(records: Any, load: Callable[[Any], Any], *, readers: int = 1) -> LoadedRecords:
    """Records that become samples by a function, for ``training.batches`` and for Keras' ``fit``.

    Samples are accessed by index in the job's shuffled order, so a peer loads only the samples that it trains on.

    Args:
        records: A sequence with one record per sample, such as a list of files: any object with a length whose items
            are numbered from 0.
        load: Turns one record into a nest of arrays, of the same shapes and types for all. For ``fit`` it returns
            ``x``, ``(x, y)`` or ``(x, y, sample_weight)``.
        readers: The number of threads that call ``load`` at once, for the records of one batch; it must be
            thread-safe. The result does not depend on their number.

    Returns:
        The samples. ``dataset(batch_size)`` gives them as a ``tf.data.Dataset``, for ``evaluate``.

    Raises:
        UsageError: This is not a sequence, or an empty one, or ``readers`` is not a number. An error in ``load`` is
            raised from the loop, with a note on the samples: if several records fail, the first one in the batch.

    Cost:
        One record is loaded here, to get the spec of samples.

    >>> import kungfu as kf, numpy as np
    >>> squares = kf.data.records(range(5), lambda number: (float(number), float(number**2)), readers=2)
    >>> len(squares), squares.take(np.array([3, 1]))[1].numpy().tolist()
    (5, [9.0, 1.0])
    """
    refuse_readers(readers, of="kf.data.records")
    refuse_unnumbered(records, of="kf.data.records()")
    if not len(records):
        raise UsageError("kf.data.records() was given no record")
    if not callable(load):
        raise UsageError(f"kf.data.records(load={load!r}): must be a function of a record")
    found = LoadedRecords(records, load, int(readers))
    _ = found.sample_spec  # an error of load comes out here, and not in the loop
    return found


class LoadedRecords(Records, IndexedSamples):
    """The samples loaded from records; see `records`."""
