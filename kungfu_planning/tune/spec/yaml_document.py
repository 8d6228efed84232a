"""A YAML file as plain data, with the line of each value for error messages.

Values are texts exactly as written in the file; YAML's type inference is not used. So "12:30" is not read as a number
of seconds, and the error for a number without a unit can quote the number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kungfu.errors import UsageError

_IN_PROGRESS = object()


@dataclass(frozen=True)
class YamlDocument:
    """A parsed file: its name for messages, the root of its syntax tree, and its plain data.

    ``data`` has dictionaries, lists and the texts of scalar values; an empty value is "".
    """

    file: str
    root: yaml.Node
    data: Any

    def refusal(self, location: Sequence[int | str], *, reason: str) -> UsageError:
        """The error for a wrong value, with its file, line and dotted path, and the reason.

        Args:
            location: the keys and indices that lead to the value. If the document lacks the last entries, such as a
                missing key, the error names the line of the closest existing value.
            reason: the rest of the message's sentence, which begins with the dotted path.
        """
        node, path = self.root, ""
        for step in location:
            found = _child(node, step)
            if found is not None:
                node = found
                path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
        return _refusal(node, file=self.file, path=path, reason=reason)


def load_yaml(path: Path) -> YamlDocument:
    """The document in a YAML file; raises ``UsageError`` if the file cannot be read or is not YAML."""
    try:
        return parse_yaml(path.read_text(encoding="utf-8"), file=str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the specification {path}: {error}") from error


def parse_yaml(content: str, *, file: str) -> YamlDocument:
    """The document in a YAML text; ``file`` is the name of the text in messages.

    Raises:
        UsageError: The text is not YAML or is empty, a key occurs twice or is not a word, or lists and mappings are
            nested too deeply.
    """
    try:
        root = yaml.compose(content, Loader=yaml.SafeLoader)
        if root is None:
            raise UsageError(f"{file}: the specification is empty; see examples/tuning.yaml for one")
        return YamlDocument(file, root, _Reader(file).plain(root, path=""))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else file
        raise UsageError(f"{where}: not YAML: {getattr(error, 'problem', None) or error}") from error
    except RecursionError:  # without its chain, which is as long as the nesting
        raise UsageError(
            f"{file}: lists and mappings lie too deep in each other to be read; a specification needs three levels: "
            "see examples/tuning.yaml"
        ) from None


class _Reader:
    """Converts nodes of a YAML tree to plain data, each node once: all aliases of a value share its data."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._known: dict[int, Any] = {}

    def plain(self, node: yaml.Node, *, path: str) -> Any:
        if isinstance(node, yaml.ScalarNode):
            return str(node.value)
        if id(node) not in self._known:
            self._known[id(node)] = _IN_PROGRESS
            self._known[id(node)] = self._collection(node, path=path)
        found = self._known[id(node)]
        if found is _IN_PROGRESS:
            raise _refusal(node, file=self._file, path=path, reason="contains itself by an alias; write its values out")
        return found

    def _collection(self, node: yaml.Node, *, path: str) -> Any:
        if isinstance(node, yaml.SequenceNode):
            return [self.plain(each, path=f"{path}[{index}]") for index, each in enumerate(node.value)]
        found: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                reason = "has a key that is a list or a mapping; give words"
                raise _refusal(key, file=self._file, path=path, reason=reason)
            name = str(key.value)
            inner = f"{path}.{name}" if path else name
            if name in found:
                raise _refusal(key, file=self._file, path=inner, reason="is given twice; leave one of them out")
            found[name] = self.plain(value, path=inner)
        return found


def _child(node: yaml.Node, step: int | str) -> yaml.Node | None:
    """The value at a key or an index of ``node``; None if there is none."""
    if isinstance(node, yaml.MappingNode):
        return next((value for key, value in node.value if key.value == step), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        return node.value[step]  # type: ignore[no-any-return]  # not typed in PyYAML's stubs
    return None


def _refusal(node: yaml.Node, *, file: str, path: str, reason: str) -> UsageError:
    return UsageError(f"{file}:{node.start_mark.line + 1}: {path or 'the specification'} {reason}")
