"""The calls of the client, carried out by a real etcd."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kungfu.runtime.ipc.etcd import Etcd, StoreError
from tests.runtime.agent.etcd_server import EtcdServer, etcd_server, needs_etcd

pytestmark = needs_etcd


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with etcd_server(tmp_path_factory.mktemp("etcd")) as server:
        yield server


def client(server: EtcdServer, prefix: str, *, deadline_s: float = 10.0) -> Etcd:
    return Etcd(server.address, prefix, deadline_s=deadline_s)


def test_a_swap_changes_all_keys_or_none(server: EtcdServer) -> None:
    etcd, other = client(server, "swap/"), client(server, "swap0")
    assert etcd.read() == {}
    assert etcd.swap({"a": 0, "b": 0}, {"a": b"1", "b": b"2"})
    assert not etcd.swap({"a": 0}, {"a": b"3", "c": b"3"}), "it exists"
    before = etcd.read()
    assert {key: entry.value for key, entry in before.items()} == {"a": b"1", "b": b"2"}
    assert etcd.swap({"a": before["a"].revision}, {"a": b"1"})
    assert not etcd.swap({"a": before["a"].revision}, {}, removed=["b"]), "it was changed, to the same value"
    assert etcd.swap({"b": before["b"].revision}, {}, removed=["a", "b"])
    assert etcd.read() == other.read() == {}, "the keys of a longer name are not those of this one"


def test_the_keys_of_a_lease_end_with_it(server: EtcdServer) -> None:
    etcd = client(server, "lease/")
    lease, short = etcd.grant(100), etcd.grant(2)
    assert etcd.renew(lease)
    assert etcd.swap({}, {"a": b"1", "b": b"2", "c": b"3"}, leased={"a": lease, "b": short})
    assert etcd.read()["a"].lease == lease
    etcd.revoke(lease)
    assert not etcd.renew(lease)
    until = time.monotonic() + 60.0
    while [*etcd.read()] != ["c"]:
        assert time.monotonic() < until
        time.sleep(0.1)
    assert not etcd.renew(short)
    with pytest.raises(StoreError, match=r"^etcd at .*: etcdserver: requested lease not found$"):
        etcd.swap({}, {"d": b"4"}, leased={"d": short})


def test_an_etcd_that_stands_still_or_has_ended_is_an_error_and_answers_again(tmp_path: Path) -> None:
    with etcd_server(tmp_path) as server:
        etcd = client(server, "frozen/", deadline_s=0.5)
        with server.frozen(), pytest.raises(StoreError, match=r"has not answered for 0.5 s$"):
            etcd.grant(10)
        assert client(server, "frozen/").swap({}, {"a": b"1"})
        server.end()
        with pytest.raises(StoreError, match=r"does not run: its port refuses connections$"):
            etcd.read()
        server.start()
        assert [*client(server, "frozen/").read()] == ["a"]


def test_a_full_etcd_says_how_to_free_room(tmp_path: Path) -> None:
    with etcd_server(tmp_path, "--quota-backend-bytes", "30000") as server:
        etcd = client(server, "full/")
        with suppress(StoreError):
            for _ in range(100):
                etcd.swap({}, {"a": b"x" * 8000})
        with pytest.raises(StoreError, match=r"database space exceeded; free room \(etcdctl compact"):
            etcd.grant(10)
        assert "a" in etcd.read(), "it can be read"


def test_an_etcd_with_users_says_what_it_must_let(tmp_path: Path) -> None:
    with etcd_server(tmp_path) as server:

        def ask(path: str, **content: Any) -> None:
            request = urllib.request.Request(f"http://{server.address}/v3/auth/{path}", json.dumps(content).encode())
            urllib.request.urlopen(request, timeout=30.0).close()

        ask("user/add", name="root", password="r")
        ask("user/grant", user="root", role="root")
        ask("enable")
        with pytest.raises(StoreError, match=r"it must let everybody write, without a user name$"):
            client(server, "users/").swap({}, {"a": b"1"})
