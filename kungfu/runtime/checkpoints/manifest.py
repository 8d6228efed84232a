"""The manifest of a checkpoint, stored with TensorFlow's files: it reveals a checkpoint of another program."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from kungfu.errors import UsageError
from kungfu.runtime.core.terms import Terms

MANIFEST = "kungfu.json"
_FORMAT = 1
# The terms that a checkpoint contains; the other terms concern peers that no longer exist.
_LASTING = (
    "global_batch_size", "keep", "max_global_batch", "ramp", "policy_share", "base_batch", "base_size", "average_every",
)  # fmt: skip
_COUNTED = re.compile(r"_\d+(?=[/_]|$)")  # the number in an unnamed layer's name depends on the layers made before it


class VariableEntry(NamedTuple):
    """A variable: its name, shape and dtype, and the CRC-32 of its bytes."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    checksum: int = 0


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="format", tag=_FORMAT):
    """The manifest of a checkpoint: the position of training when it was written, and the files.

    Args:
        batch: The global batch size at the start of training, in samples.
        terms: The settings of the view in force, such as the batch sizes.
        data: The position in the data, as numbers by name.
        files: The size in bytes of each file of the checkpoint except the manifest, by name.
        phase: The phase of the job.
        signals: The value, in the last step, of the signal of ``kungfu-run --keep best:SIGNAL``, by the signal's name.
    """

    step: int
    size: int
    batch: int
    terms: Terms
    variables: tuple[VariableEntry, ...] = ()
    data: Mapping[str, int] = msgspec.field(default_factory=dict)
    files: Mapping[str, int] = msgspec.field(default_factory=dict)
    phase: int = 1
    signals: Mapping[str, float] = msgspec.field(default_factory=dict)


def write_manifest(manifest: Manifest, path: Path) -> None:
    """Writes the manifest into the checkpoint folder ``path``, as JSON in which a learning rate may be ``Infinity``."""
    fields = msgspec.to_builtins(manifest)
    fields["terms"] = {name: fields["terms"][name] for name in _LASTING}
    (path / MANIFEST).write_text(json.dumps(fields) + "\n")


def read_manifest(path: Path) -> Manifest:
    """The manifest of the checkpoint in the folder ``path``.

    Raises ``UsageError`` if the manifest is missing or damaged, or if a file of the checkpoint has the wrong size.
    """
    try:
        fields = json.loads((path / MANIFEST).read_text())
        if fields["format"] != _FORMAT:
            raise UsageError(
                f"{path} was written by another version of kungfu, in format {fields['format']!r}, and this one reads "
                f"format {_FORMAT}: resume with the version that wrote it"
            )
        if unknown := set(fields["terms"]).difference(_LASTING):
            raise ValueError(f"{', '.join(sorted(unknown))} is no term of format {_FORMAT}")
        manifest = msgspec.convert(fields, Manifest)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is no whole checkpoint of kungfu: {MANIFEST} cannot be read ({error})") from error
    for name, size in manifest.files.items():
        there = (path / name).stat().st_size if (path / name).is_file() else 0
        if there != size:
            raise UsageError(f"the checkpoint {path} is damaged: {name} has {there} of {size} bytes")
    return manifest


def mismatches(written: Sequence[VariableEntry], here: Sequence[VariableEntry]) -> Iterator[str]:
    """Yields sentences on how a checkpoint and the program differ; ignores the numbers that Keras adds to names.

    >>> written = [VariableEntry("model/dense_4/bias", (3,), "float32")]
    >>> list(mismatches(written, [VariableEntry("model/dense/bias", (2,), "float32")]))
    ['model/dense/bias is float32[2] here and float32[3] there']
    """
    there, ours = (dict(zip(stable_names([one.name for one in side]), side, strict=True)) for side in (written, here))
    for name, one in ours.items():
        other = there.get(name)
        if other is None:
            yield f"{one.name} is not in it"
        elif (other.shape, other.dtype) != (one.shape, one.dtype):
            yield f"{one.name} is {_type(one)} here and {_type(other)} there"
    yield from (f"it holds {one.name}, which is not here" for name, one in there.items() if name not in ours)


def stable_names(names: Iterable[str]) -> list[str]:
    """The names without the numbers that Keras adds, so equal in every process of a program; duplicates are numbered.

    >>> stable_names(["model/dense_7/bias", "model/dense_8/bias"])
    ['model/dense/bias', 'model/dense/bias:1']
    """
    seen: Counter[str] = Counter()
    stable = []
    for name in names:
        plain = _COUNTED.sub("", name)
        stable.append(f"{plain}:{seen[plain]}" if seen[plain] else plain)
        seen[plain] += 1
    return stable


def _type(entry: VariableEntry) -> str:
    return f"{entry.dtype}[{', '.join(map(str, entry.shape))}]"
