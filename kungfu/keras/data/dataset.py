"""A ``tf.data.Dataset`` or a Python generator under ``fit``: every peer reads all batches, and uses its slices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.keras.data.batch_format import BatchFormat, count_of, epochs_of, stream_plan
from kungfu.training.data import BatchPlan
from kungfu.training.data.checksums import samples_checksum
from kungfu.training.data.stream import Stream


def of_dataset(given: Mapping[str, Any]) -> tuple[BatchPlan, Any]:
    """The plan and the first batch of a Dataset in the arguments of ``fit``.

    Cost:
        Without ``steps_per_epoch`` the Dataset is read once before training, to count its samples.
    """
    dataset, steps = given["x"], given["steps_per_epoch"]
    _refuse_elements(dataset)
    batch_format = BatchFormat("a tf.data.Dataset", given["class_weight"])

    def batches() -> Iterator[Any]:
        return map(batch_format.standard, iter(dataset))

    def checksum(batch: Any) -> int:
        return samples_checksum(batch_format.as_given(batch))

    first, samples = _looked_through(batches(), dataset, steps=steps, epochs=epochs_of(given))
    source = Stream(
        lambda reading, at: (0, batches()),
        samples=samples,
        is_endless=bool(steps),
        what="the tf.data.Dataset that model.fit() was given",
        checksum=checksum,
    )
    return stream_plan(source, first, given, checksum=checksum(first)), first


def of_generator(given: Mapping[str, Any]) -> tuple[BatchPlan, Any]:
    """The plan and the first batch of a generator in the arguments of ``fit``.

    A generator can be read only once, so one reading continues over all epochs. An epoch has ``steps_per_epoch`` times
    the samples of the first batch, whatever the sizes of later batches.

    Cost:
        A joining peer first reads all batches that the others have read.

    Raises:
        UsageError: The steps of an epoch are not given, or the generator yields no batch.
    """
    generator, steps = given["x"], given["steps_per_epoch"]
    if not isinstance(steps, int) or steps < 1:
        raise UsageError(
            f"model.fit(steps_per_epoch={steps!r}) with a generator under kungfu-run: it does not tell how many "
            "batches an epoch has, and can be read once only; say steps_per_epoch, an integer of at least 1"
        )
    batch_format = BatchFormat("a generator")
    batches = map(batch_format.standard, generator)
    first = next(batches, None)
    if first is None:
        raise UsageError("model.fit() was given a generator that gives no batch")

    def read(reading: int, at: int) -> tuple[int, Iterator[Any]]:
        return 0, chain([first], batches)

    samples = steps * count_of(first)
    what = "the generator that model.fit() was given"
    source = Stream(read, samples=samples, is_endless=True, what=what, checksum=samples_checksum)
    return stream_plan(source, first, given, checksum=samples_checksum(first)), first


def _refuse_elements(dataset: Any) -> None:
    for spec in tf.nest.flatten(dataset.element_spec):
        if not isinstance(spec, tf.TensorSpec):
            raise UsageError(
                f"model.fit() was given a Dataset of {type(spec).__name__} under kungfu-run: the samples of a batch "
                "are stacked; make them dense in its map()"
            )
        if spec.shape.rank == 0:
            raise UsageError(
                "model.fit() was given a Dataset whose elements are single samples, or hold a single number: batch it "
                "with .batch(n), where n is the batch of the whole job"
            )


def _looked_through(batches: Iterator[Any], dataset: Any, *, steps: int | None, epochs: int) -> tuple[Any, int]:
    """The first batch, and the number of samples in an epoch; all peers begin one reading of the Dataset here."""
    cardinality = int(dataset.cardinality())
    first = next(batches, None)
    if first is None:
        raise UsageError("model.fit() was given a Dataset without elements")
    if steps:
        if 0 <= cardinality < steps * epochs:
            raise UsageError(
                f"model.fit(steps_per_epoch={steps}) with {epochs} epochs takes {steps * epochs} batches of a Dataset "
                f"that has {cardinality}: .repeat() it, or leave steps_per_epoch out"
            )
        return first, steps * count_of(first)
    if cardinality == tf.data.INFINITE_CARDINALITY:
        raise UsageError("model.fit() was given a Dataset without an end: say steps_per_epoch")
    return first, count_of(first) + sum(map(count_of, batches))
