"""The log of updates: each encoded once, the newest ones kept, and the whole for whoever is too far behind."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

import pytest

from kungfu.cli.page import event_stream
from kungfu.cli.page.app import PageApp
from kungfu.cli.page.event_stream import Backlog, EventStream, UpdateLog, WakeUp
from kungfu.cli.page.guard import PageLimits


def missed(log: UpdateLog, since: int | None) -> Backlog:
    found = log.missed(since)
    assert found is not None
    return found


def test_nothing_is_missed_before_the_first_update_and_the_whole_is_made_once() -> None:
    whole, wake = Mock(return_value='"whole"'), Mock()
    log = UpdateLog(whole)
    log.on_update(wake)
    assert log.missed(None) is None
    log.publish('"one"')
    for _ in range(200):
        first = missed(log, None)
    assert (first.number, wake.call_count, whole.call_count) == (1, 1, 1)
    assert first.data.endswith(b'.1\nevent: snapshot\ndata: "whole"\n\n')
    assert log.missed(1) is None


def test_who_is_some_updates_behind_gets_those_and_who_is_further_behind_the_whole() -> None:
    log = UpdateLog(str)
    for number in range(1, 101):
        log.publish(str(number))
    assert [line for line in missed(log, 97).data.decode().splitlines() if line.startswith("data")] == [
        "data: 98", "data: 99", "data: 100"
    ]  # fmt: skip
    assert missed(log, 40).data.startswith(b"id: ")
    assert b"snapshot" not in missed(log, 40).data
    assert b"snapshot" in missed(log, 39).data


def test_an_id_is_known_by_its_own_log_alone() -> None:
    log, other = UpdateLog(str), UpdateLog(str)
    for one in (log, other):
        one.publish("1")
    name = missed(log, 0).data.decode().splitlines()[0].removeprefix("id: ")
    assert (log.number_of(name), other.number_of(name)) == (1, None)
    stem = name.partition(".")[0]
    for unknown in ("", stem, f"{stem}.", f"{stem}.2", f"{stem}.-1", f"{stem}.{'9' * 9000}"):
        assert log.number_of(unknown) is None


class LateLog(UpdateLog):
    """A log whose last update, and end, come right after a look for updates."""

    def missed(self, since: int | None) -> Backlog | None:
        found = super().missed(since)
        if not self.is_over:
            self.publish('"last"')
            self.end()
        return found


def test_an_update_right_before_the_end_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "_HEARTBEAT_S", 0.1)  # nothing wakes the stream
    log = LateLog(str)
    log.publish('"first"')

    async def streamed() -> bytes:
        return b"".join([data async for data in EventStream(log, WakeUp(), last=f"{log._name}.1")._updates()])

    assert b'data: "last"' in asyncio.run(streamed())

    async def whole() -> bytes:
        app = PageApp(LateLog(lambda: '"whole"'), Mock(), peer_log=str, limits=PageLimits())
        return (await app._whole(None)).body

    assert asyncio.run(whole()) == b'"whole"'


def test_an_end_wakes_those_who_wait() -> None:
    wake, log = Mock(), UpdateLog(str)
    log.on_update(wake)
    log.end()
    assert (wake.call_count, log.is_over) == (1, True)
