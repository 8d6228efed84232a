"""The check of an etcd by ``kungfu doctor``: a real one, which runs, is full, stands still or is missing."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest

from kungfu.cli.doctor.finding import Finding
from kungfu.cli.doctor.store import check_store
from kungfu.runtime.hosts import parse_store
from kungfu.runtime.ipc.etcd import Etcd, StoreError
from tests.cli.conftest import Printed
from tests.runtime.agent.consensus.agents import free_port
from tests.runtime.agent.etcd_server import EtcdServer, etcd_server, needs_etcd


def findings(address: str, *, names_job: bool = True) -> list[Finding]:
    return list(check_store(parse_store(f"etcd://{address}", "digits"), names_job=names_job))


def puts(server: EtcdServer, **values: object) -> None:
    """Keys of the job; ``hosts_N`` is the job of host N."""
    put = {
        name.replace("_", "/"): value.encode() if isinstance(value, str) else json.dumps(value).encode()
        for name, value in values.items()
    }
    Etcd(server.address, "kungfu/digits/", deadline_s=5.0).swap({}, put)


@needs_etcd
def test_an_etcd_that_runs_tells_its_version_its_delay_and_who_is_in_the_job(tmp_path: Path) -> None:
    with etcd_server(tmp_path) as server:
        store, job = findings(server.address)
        assert (store.check, store.severity, job.found) == ("store", "fine", "is not in it")
        assert store.found.startswith("etcd 3.")
        assert "answers and takes writes, the slowest of 5 in " in store.found
        puts(server, holders={"job": "a", "term": 2, "hosts": [0, 3]}, hosts_0="a", hosts_1="a", hosts_2="")
        told = "; hosts in it: 0, 1; hosts that hold its newest state: 0, 3"
        assert findings(server.address)[1].found == "no host leads at present" + told
        puts(server, leader={"job": "a", "host": 0, "address": "10.0.0.1:28100", "term": 2})
        assert findings(server.address)[1].found == "host 0 at 10.0.0.1:28100 leads" + told
        puts(server, holders={"job": "a", "term": 2, "hosts": []})
        assert findings(server.address)[1].found == "has ended"
        puts(server, leader="not ours")
        assert "another program's keys" in findings(server.address)[1].found
        assert len(findings(server.address, names_job=False)) == 1
        assert server.keys("kungfu-doctor/") == {}, "nothing of the check is left"


@needs_etcd
def test_an_etcd_that_does_not_take_writes_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with etcd_server(tmp_path, "--quota-backend-bytes", "30000") as server:
        with suppress(StoreError):
            for _ in range(100):
                Etcd(server.address, "other/", deadline_s=5.0).swap({}, {"a": b"x" * 8000})
        [full] = findings(server.address)
        assert (full.severity, "database space exceeded; free room" in full.found) == ("problem", True)
        monkeypatch.setattr("kungfu.cli.doctor.store._ANSWERS_S", 0.2)
        with server.frozen():
            [frozen] = findings(server.address)
        assert (frozen.severity, "has not answered for 0.2 s" in frozen.found) == ("problem", True)


def test_an_address_without_an_etcd_is_a_problem() -> None:
    [missing] = findings(f"127.0.0.1:{free_port('127.0.0.1')}")
    assert (missing.severity, "its port refuses connections" in missing.found) == ("problem", True)
    assert "(3.4 or later)" in missing.advice


def test_a_store_is_checked_without_hosts_and_its_address_must_be_one(printed: Printed) -> None:
    told = printed("doctor", "--store", "https://10.0.0.9:2379", code=2)
    assert "is no etcd://HOST:PORT" in told
    assert "TLS (https) are not supported yet" in told
    assert "--job" in printed("doctor", "--job", "digits", code=2)


@needs_etcd
def test_slow_answers_are_a_remark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kungfu.cli.doctor.store._LATE_S", 0.0)
    with etcd_server(tmp_path) as server:
        [slow] = findings(server.address, names_job=False)
    assert (slow.severity, "changes of the job wait" in slow.advice) == ("remark", True)
