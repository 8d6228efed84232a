"""Data in files, for ``training.batches`` and for Keras' ``fit``: samples with an index, by which peers share them."""

from kungfu.data.indexed_samples import LoadedRecords, MappedItems, mapped, records
from kungfu.data.partitioned_files import PartitionedFiles, partitions
from kungfu.data.tfrecord_files import TFRecords, tfrecords

__all__ = [
    "LoadedRecords",
    "MappedItems",
    "PartitionedFiles",
    "TFRecords",
    "mapped",
    "partitions",
    "records",
    "tfrecords",
]
