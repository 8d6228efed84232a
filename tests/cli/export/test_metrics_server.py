"""The metrics of a job over HTTP, and what becomes of an address that cannot be had."""

from __future__ import annotations

import socket
import urllib.request

import pytest

from kungfu.cli.export.listen_address import ListenAddress, parse_address
from kungfu.cli.export.metrics_server import MetricsServer
from kungfu.cli.export.prometheus import PrometheusMetrics
from kungfu.cli.run import main
from kungfu.errors import UsageError
from tests.cli.recorded import measured


def test_the_newest_metrics_are_served_until_the_block_ends() -> None:
    metrics, told = PrometheusMetrics(), list[str]()
    with MetricsServer(metrics.registry, ListenAddress("127.0.0.1", 0), tell=told.append) as server:
        address = f"http://127.0.0.1:{server.port}/metrics"
        assert told == [f"metrics are served at {address}"]
        metrics.status(measured(7))
        with urllib.request.urlopen(address, timeout=60) as answer:
            assert b"\nkungfu_step 7.0\n" in answer.read()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(address, timeout=60)


def test_a_port_in_use_is_told_and_everything_else_goes_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken, told = ListenAddress("127.0.0.1", other.getsockname()[1]), list[str]()
        with MetricsServer(PrometheusMetrics().registry, taken, tell=told.append) as server:
            assert server.port == 0
        assert told == [f"no metrics are served at {taken} (Address already in use); training goes on without them"]


def test_an_address_of_another_machine_is_told(tmp_path: object) -> None:
    told = list[str]()
    with MetricsServer(PrometheusMetrics().registry, ListenAddress("192.0.2.1", 0), tell=told.append):
        assert "no metrics are served at 192.0.2.1:0 (" in told[0]


@pytest.mark.parametrize("text", ["", "port", "70000", "-1", ":9400", "1.2.3.4:", "9400:"])
def test_what_is_no_port_is_refused_before_anything_is_started(
    text: str, capsys: pytest.CaptureFixture[str], tmp_path: object
) -> None:
    with pytest.raises(UsageError, match="must be PORT or ADDRESS:PORT"):
        parse_address(text, option="--metrics-port", example=9400)
    assert main(["-np", "1", f"--metrics-port={text}", "python", "-c", ""]) == 2
    assert "from 0 to 65535" in capsys.readouterr().err
