"""Checkpoints: a snapshot taken when all peers hold the same state, written during training, and loaded atomically."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from msgspec import structs

from kungfu.errors import UsageError
from kungfu.runtime.api import Manifest, VariableEntry, mismatches, read_manifest, stable_names, write_manifest
from kungfu.training.graph.training_state import StateClasses


@dataclass(frozen=True)
class TrackedTree:
    """The objects that TensorFlow tracks from a root, the root first.

    ``tf.train.Checkpoint`` writes the values of variables at the time of writing. A copy of the tree contains the
    values of one moment, so training continues during the write. The copy has the same names, so the file can be loaded
    into the original objects, by kungfu or by any program with ``tf.train.Checkpoint(model=model)``.
    """

    variables: Sequence[tf.Variable | None]  # for each object its variable, or ``None`` if it is not a variable
    children: Sequence[Mapping[str, int]]  # for each object the indices of its children, by name

    def values(self) -> list[Any]:
        """The current value of each variable. On the CPU nothing is copied: an update allocates a new buffer."""
        with tf.device("/CPU:0"):
            return [None if one is None else tf.identity(one.read_value()) for one in self.variables]

    def copy_with(self, values: Sequence[Any]) -> Any:
        """A ``tf.train.Checkpoint`` with the structure of this tree and with these values."""
        return self.copies_of(values)[0]

    def copies_of(self, values: Sequence[Any]) -> list[Any]:
        """Copies of the objects of this tree with these values; the first is a ``tf.train.Checkpoint`` of all."""
        with tf.device("/CPU:0"):
            nodes = [
                tf.train.Checkpoint() if value is None else tf.Variable(value, trainable=False) for value in values
            ]
        for node, children in zip(nodes, self.children, strict=True):
            for name, index in children.items():
                setattr(node, name, nodes[index])
        return nodes


def tracked_tree(root: Any) -> TrackedTree:
    """The tree of all objects that TensorFlow tracks from a root, such as a ``tf.train.Checkpoint``."""
    view = tf.train.TrackableView(root)
    found, indices = [root], {id(root): 0}
    variables: list[tf.Variable | None] = []
    children: list[dict[str, int]] = []
    for one in found:  # the loop appends to this list
        # A variable has no children; an object may be the child of several objects.
        variable = _variable_of(one)
        below = {} if variable is not None else view.children(one)
        for child in below.values():
            if id(child) not in indices:
                indices[id(child)] = len(found)
                found.append(child)
        variables.append(variable)
        children.append({name: indices[id(child)] for name, child in below.items()})
    return TrackedTree(variables, children)


def _variable_of(one: Any) -> tf.Variable | None:
    if isinstance(one, tf.Variable):
        return one
    return one.value if isinstance(one, keras.Variable) else None


_SHOWN = 4  # the number of a checkpoint's differences shown in a message
STATE = "state"  # the prefix of TensorFlow's files in the folder of a checkpoint
_UNREADABLE = (tf.errors.OpError, ValueError, RuntimeError, IndexError)  # raised for a damaged file


def phase_file(number: int) -> str:
    """The file name, in a checkpoint, of the result of a previous phase."""
    return f"phase-{number}.npz"


@dataclass(frozen=True)
class CheckpointedState:
    """The variables in a checkpoint: ``root`` tracks them for TensorFlow, ``classes`` lists them by kungfu's names."""

    root: Any
    classes: StateClasses
    tree: TrackedTree

    @classmethod
    def of(cls, model: Any, optimizers: Sequence[Any], classes: StateClasses) -> CheckpointedState:
        """Tracks model and optimizers as ``tf.train.Checkpoint`` does, and all other variables by name."""
        trained = {"optimizer": optimizers[0]} if len(optimizers) == 1 else {"optimizers": [*optimizers]}
        reached = {id(one) for one in tracked_tree(tf.train.Checkpoint(model=model, **trained)).variables}
        known = classes.all()
        rest = {
            name: one for name, one in zip(stable_names(known), known.values(), strict=True) if id(one) not in reached
        }
        root = tf.train.Checkpoint(model=model, **trained, kungfu=tf.train.Checkpoint(**rest))
        return cls(root, classes, tracked_tree(root))


@dataclass(frozen=True)
class StateSnapshot:
    """The state at one moment, in memory, and the contents of additional files by name."""

    checkpointed: CheckpointedState
    values: Sequence[Any]
    files: Mapping[str, Callable[[], bytes]]

    def write(self, manifest: Manifest, path: Path) -> None:
        """Writes the snapshot into an empty folder, and ``manifest`` with the snapshot's variables and files added."""
        self.checkpointed.tree.copy_with(self.values).write(str(path / STATE))
        for name, content in self.files.items():
            (path / name).write_bytes(content())
        files = {file.name: file.stat().st_size for file in path.iterdir()}
        write_manifest(structs.replace(manifest, variables=tuple(self._entries()), files=files), path)

    def _entries(self) -> Iterator[VariableEntry]:
        tree = self.checkpointed.tree
        values = {id(one): value for one, value in zip(tree.variables, self.values, strict=True) if one is not None}
        return entries({name: values[id(one)] for name, one in self.checkpointed.classes.all().items()})


def entries(variables: Mapping[str, Any]) -> Iterator[VariableEntry]:
    """The entries for these variables in a manifest; ``variables`` may also map the names to values."""
    for name, one in variables.items():
        yield VariableEntry(name, tuple(one.shape), one.dtype.name, zlib.crc32(one.numpy().tobytes()))


# ---- resume --------------------------------------------------------------------------------------------------------


def load(path: Path, checkpointed: CheckpointedState) -> Manifest:
    """Reads a checkpoint into the variables.

    Args:
        path: The folder of the checkpoint.
        checkpointed: All variables to be read.

    Returns:
        The manifest of the checkpoint.

    Raises:
        UsageError: The checkpoint does not fit or cannot be read; no variable was changed in this case.
    """
    manifest = read_manifest(path)
    _refuse_unlike(path, manifest.variables, list(entries(checkpointed.classes.all())))
    # Variables are written from here on, so every check that may fail comes before.
    _check_readable(path)
    checkpointed.root.read(str(path / STATE))
    _check_same(path, manifest.variables, list(entries(checkpointed.classes.all())))
    return manifest


def read_values(
    path: Path, checkpointed: CheckpointedState, variables: Mapping[str, tf.Variable], *, within: tuple[str, ...]
) -> tuple[Manifest, list[Any]]:
    """Reads the values of some variables from a checkpoint, into a copy of all: no variable changes.

    Args:
        path: The folder of the checkpoint.
        checkpointed: All variables of checkpoints.
        variables: The variables to be read, by name.
        within: The prefixes of the names that must be the same in the checkpoint and here; other variables, such as
            the folds of policies, may differ.

    Returns:
        The manifest of the checkpoint, and the values in the order of ``variables``.

    Raises:
        UsageError: The checkpoint does not fit or cannot be read.
    """
    manifest = read_manifest(path)
    ours = {name: one for name, one in checkpointed.classes.all().items() if name.startswith(within)}
    written = [one for one in manifest.variables if one.name.startswith(within)]
    _refuse_unlike(path, written, list(entries(ours)))
    tree = checkpointed.tree
    nodes = tree.copies_of(tree.values())
    try:
        nodes[0].read(str(path / STATE)).expect_partial()
    except _UNREADABLE as error:
        raise _damaged(path, error) from error
    copies = {id(one): node for one, node in zip(tree.variables, nodes, strict=True) if one is not None}
    _check_same(path, written, list(entries({name: copies[id(one)] for name, one in ours.items()})))
    return manifest, [copies[id(one)] for one in variables.values()]


def _refuse_unlike(path: Path, written: Sequence[VariableEntry], here: Sequence[VariableEntry]) -> None:
    """Compares names, shapes and types: they reveal which attached object differs."""
    wrong = list(mismatches(written, here))
    if wrong:
        more = f" (and {len(wrong) - _SHOWN} more)" if len(wrong) > _SHOWN else ""
        raise UsageError(
            f"the checkpoint {path} is not of this program: {'; '.join(islice(wrong, _SHOWN))}{more}. Attach the "
            "model, optimizer and policies and register the values that it was written with; of a model alone, "
            f"tf.train.Checkpoint(model=model).read({str(path / STATE)!r}) takes what fits"
        )


def _check_readable(path: Path) -> None:
    """Reads every tensor once, so that TensorFlow verifies the checksums of the file."""
    try:
        reader = tf.train.load_checkpoint(str(path / STATE))
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)
    except _UNREADABLE as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: BaseException) -> UsageError:
    reason = str(error).splitlines()[0]
    return UsageError(f"the checkpoint {path} is damaged: {reason}; resume from another one in {path.parent}")


def _check_same(path: Path, written: Sequence[VariableEntry], read: Sequence[VariableEntry]) -> None:
    for there, here in zip(written, read, strict=True):
        if there.checksum != here.checksum:
            raise UsageError(
                f"the checkpoint {path} holds another value of {here.name} than was written: its model tracks its "
                "layers in another order than the one that was saved; build it in the same way"
            )
