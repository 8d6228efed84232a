"""The words that stand for kinds in Python, and the protobuf enums that carry them: one table per enum.

Within a process a kind is a word of a ``Literal``; on the wire it is a number, and a process of a newer version may
send one that this version does not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Literal, TypeVar, get_args

from kungfu.errors import UsageError
from kungfu.runtime.core.program_identity import installed_version
from kungfu.runtime.ipc import messages_pb2 as pb

Word = TypeVar("Word", bound=str)
Value = TypeVar("Value", bound=int)


class EnumTable(Generic[Word, Value]):
    """Converts the words of a ``Literal`` to the values of a protobuf enum, and back.

    The name of a value follows from its word: ``"carried out"`` of ``RequestState`` is ``REQUEST_STATE_CARRIED_OUT``.

    Args:
        enum: The generated enum; its zero value ends in ``_UNSPECIFIED``.
        words: All words, one for each other value.

    >>> HOST_EVENT_KINDS.to_value("ended") == pb.HOST_EVENT_KIND_ENDED
    True
    >>> HOST_EVENT_KINDS.to_word(pb.HOST_EVENT_KIND_ENDED)
    'ended'
    """

    def __init__(self, enum: type[Value], words: Sequence[Word]) -> None:
        generated: Any = enum  # what protobuf gives is a wrapper with the names and numbers of the values
        self._name: str = generated.DESCRIPTOR.name
        prefix = generated.Name(0).removesuffix("UNSPECIFIED")
        names = {word: prefix + word.upper().replace(" ", "_").replace("-", "_") for word in words}
        self._values: dict[Word, Value] = {word: generated.Value(name) for word, name in names.items()}
        self._words = {int(value): word for word, value in self._values.items()}
        # A value of the enum without a word would be refused as if it were of a newer version.
        assert {0, *self._words} == set(generated.values()), f"{self._name} has other values than {names}"

    @property
    def words(self) -> tuple[Word, ...]:
        """All words, in the order of the ``Literal``."""
        return tuple(self._values)

    def to_value(self, word: Word) -> Value:
        """The value that carries ``word``.

        Raises:
            UsageError: There is no such word.
        """
        if word not in self._values:
            raise UsageError(f"{self._name} {word!r} is not known; there are {', '.join(self._values)}")
        return self._values[word]

    def to_word(self, value: int, *, unspecified: Word | None = None) -> Word:
        """The word that ``value`` carries.

        Args:
            value: From a message.
            unspecified: The word for which the zero value stands; ``None``: it is refused.

        Raises:
            UsageError: The message does not say the value, or a newer version has sent it.
        """
        if value == 0 and unspecified is not None:
            return unspecified
        if value == 0:
            raise UsageError(f"a message came without its {self._name}; it is one of {', '.join(self._values)}")
        if value not in self._words:
            raise UsageError(
                f"{self._name} {value} is not known to kungfu {installed_version()}; it knows "
                f"{', '.join(self._values)}: run the same version on all hosts"
            )
        return self._words[value]


# The events of hosts stay messages in the queue of an agent; the words are for its errors.
HostEventKind = Literal["spawned", "ended", "signalled"]

HOST_EVENT_KINDS: EnumTable[HostEventKind, pb.HostEventKind] = EnumTable(pb.HostEventKind, get_args(HostEventKind))
