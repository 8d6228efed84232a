"""A checkpoint: a snapshot where all peers hold the same state, written while they train on; read whole, or not."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import keras
import tensorflow as tf
from msgspec import structs

from kungfu.errors import UsageError
from kungfu.runtime.api import Manifest, VariableEntry, mismatches, read_manifest, stable_names, write_manifest
from kungfu.training.graph.training_state import StateClasses


@dataclass(frozen=True)
class TrackedTree:
    """Tracked objects, the root first.

    ``tf.train.Checkpoint`` writes the values that variables have while it writes. A copy of the tree holds those of one
    moment, so training continues while it is written; and since it has the same names, what is written can be read into
    the objects themselves, by kungfu or by any program that has ``tf.train.Checkpoint(model=model)``.

    Args:
        variables: The variable that each object is, ``None`` for an object that is none.
        children: The places of each object's children, by name.
    """

    variables: Sequence[tf.Variable | None]
    children: Sequence[Mapping[str, int]]

    def values(self) -> list[Any]:
        """The value that each variable has now. On the CPU nothing is copied: an update makes a buffer of its own."""
        with tf.device("/CPU:0"):
            return [None if one is None else tf.identity(one.read_value()) for one in self.variables]

    def copy_with(self, values: Sequence[Any]) -> Any:
        """A ``tf.train.Checkpoint`` that is like the root, with these values."""
        with tf.device("/CPU:0"):
            nodes = [
                tf.train.Checkpoint() if value is None else tf.Variable(value, trainable=False) for value in values
            ]
        for node, children in zip(nodes, self.children, strict=True):
            for name, place in children.items():
                setattr(node, name, nodes[place])
        return nodes[0]


def tracked_tree(root: Any) -> TrackedTree:
    """The tree of everything that a ``tf.train.Checkpoint`` tracks."""
    view = tf.train.TrackableView(root)
    found, places = [root], {id(root): 0}
    variables: list[tf.Variable | None] = []
    children: list[dict[str, int]] = []
    for one in found:  # which grows meanwhile
        # A variable has no children of its own; one object may be the child of several.
        variable = _variable_of(one)
        below = {} if variable is not None else view.children(one)
        for child in below.values():
            if id(child) not in places:
                places[id(child)] = len(found)
                found.append(child)
        variables.append(variable)
        children.append({name: places[id(child)] for name, child in below.items()})
    return TrackedTree(variables, children)


def _variable_of(one: Any) -> tf.Variable | None:
    if isinstance(one, tf.Variable):
        return one
    return one.value if isinstance(one, keras.Variable) else None


_SHOWN = 4  # differences of a checkpoint, in a message
STATE = "state"  # the prefix of TensorFlow's files in the folder of a checkpoint
_NO_FILES: Mapping[str, Callable[[], bytes]] = MappingProxyType({})


def phase_file(number: int) -> str:
    """The file of a checkpoint that says what a phase before came to."""
    return f"phase-{number}.npz"


@dataclass(frozen=True)
class CheckpointedState:
    """The contents of a checkpoint: ``root`` tracks them for TensorFlow, ``classes`` by kungfu's names."""

    root: Any
    classes: StateClasses
    tree: TrackedTree

    @classmethod
    def of(cls, model: Any, optimizers: Sequence[Any], classes: StateClasses) -> CheckpointedState:
        """Model and optimizers as ``tf.train.Checkpoint`` tracks them; variables that they do not reach by name."""
        trained = {"optimizer": optimizers[0]} if len(optimizers) == 1 else {"optimizers": [*optimizers]}
        reached = {id(one) for one in tracked_tree(tf.train.Checkpoint(model=model, **trained)).variables}
        known = classes.all()
        rest = {
            name: one for name, one in zip(stable_names(known), known.values(), strict=True) if id(one) not in reached
        }
        root = tf.train.Checkpoint(model=model, **trained, kungfu=tf.train.Checkpoint(**rest))
        return cls(root, classes, tracked_tree(root))

    def snapshot(self, files: Mapping[str, Callable[[], bytes]] = _NO_FILES) -> StateSnapshot:
        """The state as it is now, with the contents of files that go beside it, by their names."""
        return StateSnapshot(self, self.tree.values(), files)


@dataclass(frozen=True)
class StateSnapshot:
    """The state of one moment, in memory."""

    checkpointed: CheckpointedState
    values: Sequence[Any]
    files: Mapping[str, Callable[[], bytes]]

    def write(self, manifest: Manifest, path: Path) -> None:
        """Fills an empty folder; ``manifest`` needs neither variables nor files."""
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
    """The entries of a manifest about variables, or about their values."""
    for name, one in variables.items():
        yield VariableEntry(name, tuple(one.shape), one.dtype.name, zlib.crc32(one.numpy().tobytes()))


# ---- resumed -------------------------------------------------------------------------------------------------------


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
    # Names, shapes and types first: they show what the program attached otherwise.
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
