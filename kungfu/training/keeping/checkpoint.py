"""A checkpoint: drawn up where all peers hold the same state, written while they train on."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from kungfu.runtime.api import Manifest, VariableEntry, stable_names, write_manifest
from kungfu.training.graph.state import StateClasses
from kungfu.training.keeping.twin import Tree, bag, survey

__all__ = ["STATE", "Draft", "Subject", "entries"]

STATE = "state"  # the prefix of TensorFlow's files in the folder of a checkpoint


@dataclass(frozen=True)
class Subject:
    """What is written: ``root`` tracks it all for TensorFlow, ``classes`` knows it by our names."""

    root: Any
    classes: StateClasses
    tree: Tree

    @classmethod
    def of(cls, model: Any, optimizers: Sequence[Any], classes: StateClasses) -> Subject:
        """Model and optimizers as ``tf.train.Checkpoint`` tracks them, and what they do not reach in a bag beside."""
        trained = {"optimizer": optimizers[0]} if len(optimizers) == 1 else {"optimizers": [*optimizers]}
        reached = {id(one) for one in survey(tf.train.Checkpoint(model=model, **trained)).variables}
        known = {**classes.shared, **classes.averaged, **classes.own}
        rest = {
            name: one for name, one in zip(stable_names(known), known.values(), strict=True) if id(one) not in reached
        }
        root = tf.train.Checkpoint(model=model, **trained, kungfu=bag(rest))
        return cls(root, classes, survey(root))

    @property
    def named(self) -> dict[str, tf.Variable]:
        """All its variables that are training, by our names, in the same order on all peers."""
        return {**self.classes.shared, **self.classes.averaged, **self.classes.own}

    def draft(self) -> Draft:
        """The state as it is now."""
        return Draft(self, self.tree.values())


@dataclass(frozen=True)
class Draft:
    """The state of one moment, in memory."""

    subject: Subject
    values: Sequence[Any]

    def write(self, manifest: Manifest, path: Path) -> None:
        """Fills an empty folder; ``manifest`` needs neither variables nor files."""
        self.subject.tree.twin(self.values).write(str(path / STATE))
        files = {file.name: file.stat().st_size for file in path.iterdir()}
        write_manifest(replace(manifest, variables=tuple(self._entries()), files=files), path)

    def _entries(self) -> Iterator[VariableEntry]:
        tree = self.subject.tree
        values = {id(one): value for one, value in zip(tree.variables, self.values, strict=True) if one is not None}
        return entries({name: values[id(one)] for name, one in self.subject.named.items()})


def entries(variables: Mapping[str, Any]) -> Iterator[VariableEntry]:
    """What a manifest says of variables, or of their values."""
    for name, one in variables.items():
        yield VariableEntry(name, tuple(one.shape), one.dtype.name, zlib.crc32(one.numpy().tobytes()))
