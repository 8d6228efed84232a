"""Training continues from a checkpoint: all of it fits, or nothing of it is taken."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import tensorflow as tf

from kungfu.errors import UsageError
from kungfu.runtime.api import Manifest, VariableEntry, mismatches, read_manifest
from kungfu.training.state.snapshot import STATE, CheckpointedState, entries

_SHOWN = 4


def load(path: Path, checkpointed: CheckpointedState) -> Manifest:
    """Reads a checkpoint into the variables.

    Args:
        path: The folder of the checkpoint.
        checkpointed: All variables that are to be read.

    Returns:
        What the checkpoint says of itself.

    Raises:
        UsageError: It names what does not fit or cannot be read; then no variable was touched.
    """
    manifest = read_manifest(path)
    # Names, shapes and types first: they tell what the program attached otherwise.
    wrong = list(mismatches(manifest.variables, list(entries(checkpointed.classes.all()))))
    if wrong:
        more = f" (and {len(wrong) - _SHOWN} more)" if len(wrong) > _SHOWN else ""
        raise UsageError(
            f"the checkpoint {path} is not of this program: {'; '.join(islice(wrong, _SHOWN))}{more}. Attach the "
            "model, optimizer and policies and register the values that it was written with; of a model alone, "
            f"tf.train.Checkpoint(model=model).read({str(path / STATE)!r}) takes what fits"
        )
    # From here on variables are written, so what could fail is done before.
    _check_readable(path)
    checkpointed.root.read(str(path / STATE))
    _check_same(path, manifest.variables, list(entries(checkpointed.classes.all())))
    return manifest


def _check_readable(path: Path) -> None:
    """TensorFlow knows by its own checksums whether a tensor is as it was written: all are read once before."""
    try:
        reader = tf.train.load_checkpoint(str(path / STATE))
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
    except (tf.errors.OpError, ValueError, RuntimeError, IndexError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(
            f"the checkpoint {path} is damaged: {reason}; resume from another one in {path.parent}"
        ) from error


def _check_same(path: Path, written: Sequence[VariableEntry], read: Sequence[VariableEntry]) -> None:
    for there, here in zip(written, read, strict=True):
        if there.checksum != here.checksum:
            raise UsageError(
                f"the checkpoint {path} holds another value of {here.name} than was written: its model tracks its "
                "layers in another order than the one that was saved; build it in the same way"
            )
