"""The metrics of a job over HTTP, and what becomes of an address that cannot be had."""

from __future__ import annotations

import socket
import threading
import time
import urllib.request
from contextlib import ExitStack

import pytest

from kungfu.cli.export import metrics_server
from kungfu.cli.export.listen_address import ListenAddress, parse_address
from kungfu.cli.export.metrics_server import ConnectionLimits, MetricsServer
from kungfu.cli.export.prometheus import PrometheusMetrics
from kungfu.cli.run import main
from kungfu.errors import UsageError
from tests.cli.recorded import measured

FREE = ListenAddress("127.0.0.1", 0)


def test_the_newest_metrics_are_served_until_the_block_ends() -> None:
    metrics, told = PrometheusMetrics(), list[str]()
    with MetricsServer(metrics.registry, FREE, report=told.append) as server:
        address = f"http://127.0.0.1:{server.port}/metrics"
        assert told == [f"metrics are served at {address}"]
        metrics.status(measured(7))
        with urllib.request.urlopen(address, timeout=60) as answer:
            assert b"\nkungfu_step 7.0\n" in answer.read()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(address, timeout=60)


def answer(port: int, request: str) -> str:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(request.encode())
        return connection.makefile("rb").read().decode()


def test_connections_that_say_nothing_end_and_keep_nobody_out() -> None:
    limits = ConnectionLimits(most=8, per_address=4, lasting_s=0.2)
    server = MetricsServer(PrometheusMetrics().registry, FREE, report=print, limits=limits)
    with ExitStack() as opened, server:
        idle = [opened.enter_context(socket.create_connection(("127.0.0.1", server.port), 60)) for _ in range(40)]
        idle[-1].sendall(b"GET /metrics HTTP/1.1\r\nHost: ")
        assert answer(server.port, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").startswith("HTTP/1.0 200 OK")
        assert [one.recv(1) for one in idle] == [b""] * 40, "all are ended, the last ones by their time"


def test_metrics_are_given_under_the_names_of_the_page_alone_and_by_one_host() -> None:
    with MetricsServer(PrometheusMetrics().registry, FREE, report=print) as server:
        for hosts in (["evil.example"], [], ["localhost", "evil.example"], ["localhost", "localhost"]):
            named = "".join(f"Host: {host}\r\n" for host in hosts)
            assert answer(server.port, f"GET /metrics HTTP/1.1\r\n{named}\r\n").startswith("HTTP/1.0 421 "), hosts
        for host in ("localhost", f"127.0.0.1:{server.port}", "[::1]:9"):
            assert " 200 OK" in answer(server.port, f"GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n")


@pytest.mark.parametrize("text", ["", "port", "70000", "-1", ":9400", "1.2.3.4:", "9400:"])
def test_what_is_no_port_is_refused_before_anything_is_started(
    text: str, capsys: pytest.CaptureFixture[str], tmp_path: object
) -> None:
    with pytest.raises(UsageError, match="must be PORT or ADDRESS:PORT"):
        parse_address(text, option="--metrics-port", example=9400)
    assert main(["-np", "1", f"--metrics-port={text}", "python", "-c", ""]) == 2
    assert "from 0 to 65535" in capsys.readouterr().err


def test_an_address_in_use_or_of_another_machine_is_told_and_everything_else_goes_on() -> None:
    told = list[str]()
    with socket.create_server(("127.0.0.1", 0)) as other:
        used = ListenAddress("127.0.0.1", other.getsockname()[1])
        for address in (used, ListenAddress("192.0.2.1", 0)):
            with MetricsServer(PrometheusMetrics().registry, address, report=told.append) as server:
                assert server.port == 0
    first, second = told
    assert first == f"no metrics are served at {used} (Address already in use); training continues without them"
    assert second.startswith("no metrics are served at 192.0.2.1:0 (")


def test_the_server_ends_after_the_next_scrape_if_one_is_due_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server, "_SHORTEST_S", 0.0)
    monkeypatch.setattr(metrics_server, "_LATE_S", 14.0)
    metrics, seen = PrometheusMetrics(), list[str]()
    request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with MetricsServer(metrics.registry, FREE, report=print) as server:
        scraper = threading.Timer(0.1, lambda: seen.append(answer(server.port, request)))
        assert all("kungfu_step 7.0" not in answer(server.port, request) for _ in range(2))
        metrics.status(measured(7))
        scraper.start()
    scraper.join()
    assert "kungfu_step 7.0" in seen[0], "without the wait nobody would listen any more"


def test_a_preempted_machine_waits_for_no_scrape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MetricsServer, "_await_last_scrape", lambda server: pytest.fail("it waits"))
    with MetricsServer(PrometheusMetrics().registry, FREE, report=print, is_preempted=lambda: True):
        pass


def test_a_scrape_every_15_s_is_waited_for_whenever_the_job_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = list[float | None]()
    server = MetricsServer(PrometheusMetrics().registry, FREE, report=print)
    monkeypatch.setattr(server._scraped, "wait", waits.append)
    for interval_s in (14.9, 40.0):
        now = time.monotonic()
        server._scrapes = now - interval_s, now
        server._await_last_scrape()
    assert waits == [pytest.approx(15.9, abs=0.5)]
