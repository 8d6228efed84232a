"""The words of the wire's enums: each survives, and what is none of them is refused with those that there are."""

from __future__ import annotations

from typing import Any

import pytest

from kungfu.errors import UsageError
from kungfu.runtime.core.program_identity import installed_version
from kungfu.runtime.ipc import messages_pb2 as pb
from kungfu.runtime.ipc.enums import HOST_EVENT_KINDS, EnumTable


def test_every_word_comes_back_from_its_value() -> None:
    assert HOST_EVENT_KINDS.words
    assert [HOST_EVENT_KINDS.to_word(HOST_EVENT_KINDS.to_value(word)) for word in HOST_EVENT_KINDS.words] == list(
        HOST_EVENT_KINDS.words
    )


def test_the_zero_value_is_no_word_unless_a_message_says_what_it_stands_for() -> None:
    with pytest.raises(UsageError, match=rf"a message came without its .*{HOST_EVENT_KINDS.words[0]}"):
        HOST_EVENT_KINDS.to_word(0)
    assert HOST_EVENT_KINDS.to_word(0, unspecified=HOST_EVENT_KINDS.words[-1]) == HOST_EVENT_KINDS.words[-1]


def test_a_value_of_a_newer_version_is_refused_with_the_known_ones() -> None:
    newer = len(HOST_EVENT_KINDS.words) + 1
    for unspecified in (None, HOST_EVENT_KINDS.words[0]):
        with pytest.raises(UsageError) as refused:
            HOST_EVENT_KINDS.to_word(newer, unspecified=unspecified)
        said = str(refused.value)
        assert f" {newer} is not known to kungfu {installed_version()}" in said
        assert all(word in said for word in HOST_EVENT_KINDS.words)


def test_a_word_that_is_none_is_refused_with_those_that_there_are() -> None:
    loss: Any = "loss"
    with pytest.raises(UsageError, match="HostEventKind 'loss' is not known; there are spawned, ended, signalled"):
        HOST_EVENT_KINDS.to_value(loss)


def test_a_table_has_all_values_of_its_enum() -> None:
    with pytest.raises(AssertionError, match="Keep has other values"):
        EnumTable(pb.Keep, ["local_batch_size"])
    with pytest.raises(ValueError, match="KEEP_SOMETHING"):
        EnumTable(pb.Keep, ["local_batch_size", "global_batch_size", "something"])
