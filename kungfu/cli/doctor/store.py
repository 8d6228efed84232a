"""The check of a store: an etcd that answers in time and takes writes, and the hosts of the job in it."""

from __future__ import annotations

import http.client
import json
import secrets
import time
from collections.abc import Iterable, Iterator

from kungfu.cli.doctor.finding import Finding
from kungfu.runtime.agent.consensus.store_agreement import StoreRecord, read_record
from kungfu.runtime.hosts import StoreAddress
from kungfu.runtime.ipc.etcd import Etcd, StoreError

_ANSWERS_S, _LEASE_S, _WRITES = 3.0, 10, 5
_LATE_S = 0.25  # a quarter of the wait of a job for each answer


def check_store(store: StoreAddress, *, names_job: bool) -> Iterator[Finding]:
    """The findings on an etcd: its version, the time of its slowest write, and the hosts of the job in it.

    A key of its own is written with a lease, and removed again; the keys of the job are only read.

    Args:
        store: The address of the etcd, and the name of the job in it.
        names_job: True if the hosts of the job are looked up.
    """
    try:
        took_s = _write(Etcd(store.address, f"kungfu-doctor/{secrets.token_hex(4)}/", deadline_s=_ANSWERS_S))
        found = f"{_version(store.address)} answers and takes writes, the slowest of {_WRITES} in {1e3 * took_s:.0f} ms"
        late = "changes of the job wait for its answers: give it a faster disk or network, or fewer clients"
        yield Finding("store", found, host=store.address).as_remark_if(took_s > _LATE_S, late)
        if names_job:
            record = read_record(Etcd(store.address, f"kungfu/{store.job}/", deadline_s=_ANSWERS_S))
            yield Finding(f"job {store.job}", _job(record), host=store.address)
    except StoreError as error:
        advice = "a job needs an etcd (3.4 or later) that answers every host and lets everybody write, without TLS"
        yield Finding("store", str(error), "problem", advice, store.address)


def _write(etcd: Etcd) -> float:
    """Writes a key several times, and removes it; returns the time of the slowest write, in seconds."""
    lease, took_s = etcd.grant(_LEASE_S), 0.0
    try:
        for _ in range(_WRITES):
            began = time.monotonic()
            etcd.swap({}, {"key": b""}, leased={"key": lease})
            took_s = max(took_s, time.monotonic() - began)
    finally:
        etcd.revoke(lease)
    return took_s


def _version(address: str) -> str:
    """The name and the version of the etcd, which it tells by HTTP on the same port."""
    connection = http.client.HTTPConnection(address, timeout=_ANSWERS_S)
    try:
        connection.request("GET", "/version")
        return f"etcd {json.loads(connection.getresponse().read())['etcdserver']}"
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return "etcd (of an unknown version)"
    finally:
        connection.close()


def _job(record: StoreRecord) -> str:
    leader, holders = record.leader, record.holders
    if holders is None:
        return "is not in it"
    if not holders.hosts:
        return "has ended"
    leads = f"host {leader.host} at {leader.address} leads" if leader else "no host leads at present"
    present = sorted(host for host, job in record.jobs.items() if job == holders.job)
    return f"{leads}; hosts in it: {_listed(present)}; hosts that hold its newest state: {_listed(holders.hosts)}"


def _listed(hosts: Iterable[int]) -> str:
    return ", ".join(map(str, hosts)) or "none"
