"""Doctors on several hosts, which ask each other; all of them are this machine."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kungfu.cli.doctor.finding import Finding
from kungfu.cli.doctor.hosts import HostAnswer, HostFacts, _answer, check_job, compared, exchange
from kungfu.errors import UsageError
from kungfu.runtime.hosts import Host
from kungfu.runtime.ipc import rpc
from kungfu.runtime.job_api.job_file import read_job_file
from tests.runtime.agent.consensus.agents import free_port
from tests.runtime.job_api.served_job import serve_job

SECRET = "5e" * 32
HERE = {"Python": "3.11.4", "kungfu": "0.1", "tensorflow": "2.18.1", "numpy": "1.26"}


def hosts_of(count: int) -> tuple[Host, ...]:
    names = [f"127.0.0.{number + 1}" for number in range(count)]
    return tuple(Host(name, 1, free_port(name)) for name in names)


def findings(answer: HostAnswer) -> dict[str, Finding]:
    return {one.check: one for one in compared(hosts_of(2), HostFacts(HERE), {1: answer})}


def test_each_host_hears_all_others_and_knows_that_it_was_reached() -> None:
    hosts = hosts_of(3)

    def run(place: int) -> dict[int, HostAnswer]:
        # Started one after the other: who is early asks again.
        time.sleep(0.3 * place)
        facts = HostFacts({**HERE, "kungfu": f"0.{place}"})
        return exchange(hosts, place, facts, secret=SECRET, wait_s=60.0, clock=lambda: time.time() + 100 * place)

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(run, range(3)))
    for place, answers in enumerate(found):
        assert {number: one.facts and one.facts.versions["kungfu"] for number, one in answers.items()} == {
            number: f"0.{number}" for number in range(3) if number != place
        }
        assert all(one.has_asked for one in answers.values())
        assert {number: round(one.ahead_s, -1) for number, one in answers.items()} == {
            number: 100.0 * (number - place) for number in answers
        }


def test_a_host_that_does_not_come_is_told_after_the_wait() -> None:
    answers = exchange(hosts_of(2), 0, HostFacts(HERE), secret=SECRET, wait_s=0.5)
    found = findings(answers[1])
    assert found.keys() == {"reach"}
    assert (found["reach"].severity, found["reach"].host) == ("problem", "127.0.0.2")
    assert "run this command on it at the same time" in found["reach"].advice


def test_another_program_at_the_port_is_refused() -> None:
    hosts = hosts_of(2)
    server = rpc.serve(host=hosts[0].name, port=hosts[0].port, secret=SECRET, threads=1)
    try:
        with pytest.raises(UsageError, match="another program does"):
            exchange(hosts, 0, HostFacts(HERE), secret=SECRET, wait_s=0.5)
    finally:
        server.stop()


@pytest.mark.parametrize(("has_asked", "severity"), [(True, "fine"), (False, "problem")])
def test_a_host_like_this_one_is_fine_unless_it_does_not_reach_this_one(has_asked: bool, severity: str) -> None:
    found = findings(HostAnswer(HostFacts(HERE), has_asked=has_asked))
    assert {name: one.severity for name, one in found.items()} == {
        "reach": severity,
        "versions": "fine",
        "clock": "fine",
    }


@pytest.mark.parametrize(("name", "severity"), [("tensorflow", "problem"), ("Python", "problem"), ("numpy", "remark")])
def test_other_versions_are_told_of_both(name: str, severity: str) -> None:
    found = findings(HostAnswer(HostFacts({**HERE, name: "9.9"})))["versions"]
    assert (found.severity, found.found) == (severity, f"{name} 9.9 (here {HERE[name]})")


@pytest.mark.parametrize(
    ("clock_s", "ahead_s", "severity"),
    [(10.0, 0.0, "fine"), (12.0, 1.5, "remark"), (8.5, -1.0, "fine"), (5.0, -4.5, "remark")],
)
def test_of_a_clock_only_what_the_message_cannot_explain_counts(clock_s: float, ahead_s: float, severity: str) -> None:
    answer = _answer(HostFacts(HERE, clock_s), asked=9.5, answered=10.5)
    assert answer.ahead_s == pytest.approx(ahead_s)
    assert findings(answer)["clock"].severity == severity


def test_the_job_that_this_host_may_join_is_asked_for_with_the_secret(tmp_path: Path) -> None:
    with serve_job(tmp_path):
        file = read_job_file(tmp_path)
        nobody = f"127.0.0.1:{free_port('127.0.0.1')}"
        there, refused, missing = [
            *check_job([file.agent], secret=file.secret),
            *check_job([file.agent], secret="ab" * 32),
            *check_job([nobody], secret=file.secret),
        ]
    assert (there.found, there.severity) == ("job, of 2 peers", "fine")
    assert (refused.severity, missing.severity) == ("problem", "problem")
    assert "secret is missing or wrong" in refused.found
    assert missing.host == nobody
