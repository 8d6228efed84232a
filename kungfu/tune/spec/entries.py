"""A YAML file as entries that know their lines: what a good error message needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from kungfu.errors import UsageError

__all__ = ["Entry", "is_single", "items", "load", "mapping", "refuse", "root", "text"]


@dataclass(frozen=True)
class Entry:
    """One value of the file: its YAML node, its dotted path of keys, and the file, for messages."""

    node: yaml.Node
    path: str
    file: str

    @property
    def line(self) -> int:
        """The line of the value, counted from 1."""
        return int(self.node.start_mark.line) + 1


def root(content: str, *, file: str) -> Entry:
    """The top entry of a file's text. Raises: UsageError for text that is no YAML, or holds nothing."""
    try:
        node = yaml.compose(content, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else file
        raise UsageError(f"{where}: not YAML: {getattr(error, 'problem', None) or error}") from error
    except RecursionError:  # without its chain, which is as long as the nesting is deep
        raise UsageError(
            f"{file}: lists and mappings lie too deep in each other to be read; a specification needs three levels: "
            "see examples/tuning.yaml"
        ) from None
    if node is None:
        raise UsageError(f"{file}: the specification is empty; see examples/tuning.yaml for one")
    return Entry(node, "", file)


def load(path: Path) -> Entry:
    """The top entry of a file. Raises: UsageError when it cannot be read."""
    try:
        return root(path.read_text(encoding="utf-8"), file=str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the specification {path}: {error}") from error


def mapping(entry: Entry) -> Mapping[str, Entry]:
    """The keys of an entry. Raises: UsageError when it is no mapping, or names a key twice."""
    if not isinstance(entry.node, yaml.MappingNode):
        raise refuse(entry, reason=f"is {_shown(entry)}; give keys and values, one a line")
    found: dict[str, Entry] = {}
    for key, value in entry.node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise refuse(Entry(key, entry.path, entry.file), reason="has a key that is a list or a mapping; give words")
        name = str(key.value)
        path = f"{entry.path}.{name}" if entry.path else name
        if name in found:
            raise refuse(Entry(key, path, entry.file), reason="is given twice; leave one of them out")
        found[name] = Entry(value, path, entry.file)
    return found


def is_single(entry: Entry) -> bool:
    """Whether the entry is a single value, neither a list nor a mapping."""
    return isinstance(entry.node, yaml.ScalarNode)


def items(entry: Entry) -> tuple[Entry, ...]:
    """The elements of a list. Raises: UsageError when it is none."""
    if not isinstance(entry.node, yaml.SequenceNode):
        raise refuse(entry, reason=f"is {_shown(entry)}; give a list, as [1, 2, 3]")
    return tuple(Entry(node, f"{entry.path}[{index}]", entry.file) for index, node in enumerate(entry.node.value))


def text(entry: Entry) -> str:
    """The text of a single value, as it stands in the file. Raises: UsageError for a list or a mapping."""
    if not is_single(entry):
        raise refuse(entry, reason=f"is {_shown(entry)}; give a single value")
    return str(entry.node.value)


def refuse(entry: Entry, *, reason: str) -> UsageError:
    """The error that says where, what, and why."""
    return UsageError(f"{entry.file}:{entry.line}: {entry.path or 'the specification'} {reason}")


def _shown(entry: Entry) -> str:
    if is_single(entry):
        return repr(entry.node.value) if entry.node.value else "empty"
    return "a list" if isinstance(entry.node, yaml.SequenceNode) else "a mapping"
