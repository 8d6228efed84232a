"""The parts of a peer's program that must be the same on all peers, compared by hashes.

Peers with different policies would compute different numbers where all need the same, and peers with different models
cannot share one state. So each peer describes its program before the peer is admitted to a view. The agent compares the
short digests of the descriptions. It fetches the parts only if two digests differ, to report the difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

# A model may have many variables: parts beyond this number are compared as one part.
MOST_PARTS = 20_000
_MOST_SHOWN = 240  # displayed characters of a part
_MOST_SECTIONS = 3  # sections named in a difference


@dataclass(frozen=True)
class Identity:
    """The digest of the description of a peer's program, and a description of the peer's machine."""

    program: str = ""
    machine: str = ""


@dataclass(frozen=True)
class ProgramPart:
    """One part of a program that must be the same on all peers."""

    section: str  # the section of the description that contains the part
    shown: str  # the part as text, for display; empty for a part that is derived from other parts
    content: str  # a hash; two parts are equal if their hashes are equal

    @classmethod
    def of(cls, section: str, shown: str, content: str | None = None) -> ProgramPart:
        """A part that is compared by ``content``, or by ``shown`` if no content is given."""
        return cls(section, shown[:_MOST_SHOWN], hash_of(shown if content is None else content))


@dataclass(frozen=True)
class Description:
    """The parts of a peer's program, in order."""

    parts: tuple[ProgramPart, ...] = ()

    @classmethod
    def of(cls, parts: Iterable[ProgramPart]) -> Description:
        """The description of these parts; parts beyond ``MOST_PARTS`` are combined into one part."""
        every = tuple(parts)
        kept, others = every[:MOST_PARTS], every[MOST_PARTS:]
        if others:
            rest = hash_of(" ".join(one.content for one in others))
            kept = (*kept, ProgramPart(others[0].section, f"{len(others)} more parts", rest))
        return cls(kept)

    @property
    def digest(self) -> str:
        """The hash of the sections and contents of all parts, in their order; empty for a description without parts.

        >>> one = ProgramPart.of("model", "dense/kernel", "(2, 2)")
        >>> other = ProgramPart.of("model", "dense_1/kernel", "(2, 2)")
        >>> Description((one,)).digest == Description((other,)).digest
        True
        """
        return hash_of(" ".join(f"{one.section} {one.content}" for one in self.parts), size=16) if self.parts else ""


# The description of a peer that does not describe its program; two such descriptions are equal.
NOTHING_SAID = Description()


def hash_of(text: str, *, size: int = 8) -> str:
    """A hash of ``size`` bytes, in hexadecimal."""
    return blake2b(text.encode(), digest_size=size).hexdigest()


def difference(reference: Description, other: Description, *, names: tuple[str, str]) -> str:
    """The sections in which two programs differ, each with its first different part; empty if the programs are equal.

    >>> one = Description((ProgramPart.of("model", "kernel (2, 2)"),))
    >>> difference(one, Description((ProgramPart.of("model", "kernel (2, 3)"),)), names=("peer 0", "peer 1"))
    'model: peer 0 has kernel (2, 2), peer 1 has kernel (2, 3)'
    >>> difference(one, one, names=("peer 0", "peer 1"))
    ''
    """
    differences = []
    for section in dict.fromkeys(part.section for part in (*reference.parts, *other.parts)):
        here, there = ([part for part in one.parts if part.section == section] for one in (reference, other))
        if [part.content for part in here] != [part.content for part in there]:
            differences.append(f"{section}: {_first(here, there, names)}")
    left = len(differences) - _MOST_SECTIONS
    return "; ".join(differences[:_MOST_SECTIONS]) + (f"; and {left} more" if left > 0 else "")


def _first(here: Sequence[ProgramPart], there: Sequence[ProgramPart], names: tuple[str, str]) -> str:
    """Describes the first part that only one program has: since parts follow their dependencies, it is the cause."""
    here, there = ([part for part in parts if part.shown] for parts in (here, there))
    if [part.content for part in here] == [part.content for part in there]:
        # All displayed parts are equal; only parts derived from them differ.
        return f"{names[0]} and {names[1]} compute the same in another order"
    (mine, _), (yours, _) = only = _only(here, there), _only(there, here)
    if mine is not None and yours is not None:
        # Each program has a part that the other lacks: likely two versions of the same part.
        detail = " (in a detail that is not shown)" if mine.shown == yours.shown else ""
        return f"{names[0]} has {mine.shown}, {names[1]} has {yours.shown}{detail}"
    for (part, count), who, others in zip(only, names, reversed(names), strict=True):
        if part is not None:
            # Only one program has the part.
            more = f" and {count - 1} more" if count > 1 else ""
            return f"{who} has {part.shown}{more}, {others} does not"
    # Both programs have the same parts, in a different order or a different number of times.
    pairs = zip(here, there, strict=False)
    pair = next(((mine, yours) for mine, yours in pairs if mine.content != yours.content), None)
    if pair is None:
        return f"{names[0]} has {len(here)} parts, {names[1]} has {len(there)}"
    return f"in their order {names[0]} has {pair[0].shown} where {names[1]} has {pair[1].shown}"


def _only(these: Sequence[ProgramPart], others: Sequence[ProgramPart]) -> tuple[ProgramPart | None, int]:
    """The first of ``these`` parts that ``others`` lack (``None`` if they lack none), and the number of such parts."""
    known = {part.content for part in others}
    lacking = [part for part in these if part.content not in known]
    return (lacking[0] if lacking else None), len(lacking)
