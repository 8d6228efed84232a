"""A twin of a tree of tracked objects: the same names over copies of the variables.

``tf.train.Checkpoint`` writes the values that variables have while it writes. The twin holds those of one moment, so
training goes on while it is written; and since it has the same names, what is written can be read into the objects
themselves, by kungfu or by anybody who has ``tf.train.Checkpoint(model=model)``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

__all__ = ["Tree", "bag", "survey"]


@dataclass(frozen=True)
class Tree:
    """Tracked objects, the root first: the variable of each (if it is one), and its children by name."""

    variables: Sequence[tf.Variable | None]
    children: Sequence[Mapping[str, int]]

    def values(self) -> list[Any]:
        """The value that each variable has now. On the CPU nothing is copied: an update makes a buffer of its own."""
        with tf.device("/CPU:0"):
            return [None if one is None else tf.identity(one.read_value()) for one in self.variables]

    def twin(self, values: Sequence[Any]) -> Any:
        """A ``tf.train.Checkpoint`` that is like the root, with these values."""
        with tf.device("/CPU:0"):
            nodes = [
                tf.train.Checkpoint() if value is None else tf.Variable(value, trainable=False) for value in values
            ]
        for node, children in zip(nodes, self.children, strict=True):
            for name, place in children.items():
                setattr(node, name, nodes[place])
        return nodes[0]


def survey(root: Any) -> Tree:
    """The tree of everything that a ``tf.train.Checkpoint`` tracks."""
    view = tf.train.TrackableView(root)
    found, places = [root], {id(root): 0}
    variables: list[tf.Variable | None] = []
    children: list[dict[str, int]] = []
    for one in found:  # which grows meanwhile
        variable = _variable_of(one)
        below = {} if variable is not None else view.children(one)
        for child in below.values():
            if id(child) not in places:
                places[id(child)] = len(found)
                found.append(child)
        variables.append(variable)
        children.append({name: places[id(child)] for name, child in below.items()})
    return Tree(variables, children)


def bag(variables: Mapping[str, tf.Variable]) -> Any:
    """Variables under their names, as an object that is tracked."""
    return tf.train.Checkpoint(**variables)


def _variable_of(one: Any) -> tf.Variable | None:
    if isinstance(one, tf.Variable):
        return one
    return one.value if isinstance(one, keras.Variable) else None
