"""A job that TensorBoard, Prometheus and MLflow watch: while it grows, loses rank 0 or a host, and ends."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kungfu.cli.main import main
from tests.cli.export.test_prometheus import ALARMS, DASHBOARD
from tests.cli.export.test_tensorboard import scalars_of, texts_of
from tests.jobs.harness import Job, asked, awaited, endless, lines_of, started, started_on_hosts
from tests.soak import SOAK

WATCHED = ("-np", 2, "--max", 3, "--tensorboard", "board", "--metrics-port")


def served(job: Job) -> dict[tuple[str, str], float]:
    """What the agent serves now, by name and labels."""
    address = re.search(r"http://\S+/metrics", job.console.read_text())
    assert address, job.console.read_text()
    with urllib.request.urlopen(address[0], timeout=30) as answer:
        text = answer.read().decode()
    families = text_string_to_metric_families(text)
    return {(one.name, ",".join(one.labels.values())): one.value for family in families for one in family.samples}


@SOAK
def test_a_job_that_grows_and_loses_rank_0_is_seen_by_prometheus_and_tensorboard(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with started(tmp_path, *WATCHED, 0, program="network.py", arguments=endless(tmp_path)) as job:
        job.event("view", version=1)
        plan = asked(job.folder, capsys, "resize", 3, "--plan")
        assert (plan["before"], plan["after"], plan["batch_after"] in (12, None)) == (2, 3, True)
        assert [(one["id"], one["host"]) for one in plan["joins"]] == [(2, "127.0.0.1")]
        [traced] = asked(job.folder, capsys, "profile", "--trace", "--seconds", 0.2, "--peers", 1)["peers"]
        assert list(Path(traced["folder"]).rglob("*.xplane.pb")), "a trace of TensorFlow's profiler"
        assert main(["resize", "3", "--logdir", str(job.folder)]) == 0
        job.event("rescale", to=3)
        job.signal(signal.SIGKILL, peer=0)
        recovered = job.event("recovered")
        job.event("rescale", view=recovered["view"] + 1)
        steps = served(job)["kungfu_steps_total", ""]

        def settled() -> dict[tuple[str, str], float] | None:
            """The metrics once they hold steps of the last view; the peer that came for the lost one is no rescale."""
            now = served(job)
            grown = (now["kungfu_peers", ""], now["kungfu_rescales_total", ""]) == (3, 1)
            return now if grown and now["kungfu_steps_total", ""] > steps else None

        now = job.seen(settled, what="three peers and more steps in the metrics", deadline_s=60.0)
        assert (now["kungfu_lost_peers_total", ""], now["kungfu_recoveries_total", ""]) == (1, 1)
        assert now["kungfu_decisions_total", "kungfu resize"] == 1
        assert now["kungfu_learning_rate", ""] > 0
        assert now["kungfu_stop_duration_seconds_count", "recovery"] == 1
        assert main(["stop", "--logdir", str(job.folder)]) == 0
        ended = job.end()
    assert "TensorBoard" not in ended.output, "there was nothing to remark"
    shown = scalars_of(tmp_path / "board" / "log")
    assert [step for step, _ in shown["job/loss"]] == [row["step"] for row in ended.metrics], "to the last step"
    assert [value for _, value in shown["markers/rescale"]] == [3.0, 3.0]
    assert [value for _, value in shown["markers/recovery"]] == [2.0]
    assert {value for _, value in shown["job/size"]} == {2.0, 3.0}
    texts = texts_of(tmp_path / "board" / "log")
    assert "killed by SIGKILL" in texts["events/recoveries"][0][1]
    assert "kungfu resize 3" in texts["events/decisions"][0][1]


# ---- with a real Prometheus ------------------------------------------------------------------------------------------


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[str]:
    """Debian's Prometheus, scraping one target every second; gives its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    scraped = {"job_name": "kungfu", "scrape_interval": "1s", "static_configs": [{"targets": [target]}]}
    settings = {"scrape_configs": [scraped], "rule_files": [str(ALARMS)], "global": {"evaluation_interval": "1s"}}
    (folder / "prometheus.yml").write_text(json.dumps(settings))  # JSON is YAML
    with (folder / "prometheus.txt").open("wb") as output:
        process = subprocess.Popen(
            [_program(folder), f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
             f"--web.listen-address={address}"], stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        yield address
    finally:
        process.terminate()
        process.wait(timeout=60)


def _program(folder: Path) -> str:
    """The program of Debian's package; unpacked beside the test where it is not installed, which needs no root."""
    if (installed := shutil.which("prometheus")) is not None:
        return installed
    if shutil.which("apt-get") is None:
        pytest.skip("no prometheus here, and no apt-get to get Debian's package: install prometheus")
    got = subprocess.run(["apt-get", "download", "prometheus"], cwd=folder, capture_output=True, text=True, check=False)
    packages = list(folder.glob("prometheus_*.deb"))
    if not packages:
        pytest.skip(f"no prometheus here, and Debian's package cannot be had: {got.stderr.strip()}")
    subprocess.run(["dpkg-deb", "--extract", packages[0], folder / "debian"], check=True)
    return str(folder / "debian" / "usr" / "bin" / "prometheus")


def values(address: str, expression: str) -> list[dict[str, Any]]:
    """What Prometheus answers to an expression; nothing while it is getting ready."""
    query = urllib.parse.urlencode({"query": expression})
    try:
        with urllib.request.urlopen(f"http://{address}/api/v1/query?{query}", timeout=30) as answer:
            document = json.loads(answer.read())
    except OSError:
        return []
    assert document["status"] == "success", document
    return document["data"]["result"]


def expressions() -> Iterator[str]:
    """Those of the dashboard's panels and marks, for this job."""
    dashboard = json.loads(DASHBOARD.read_text())
    targets = [one for panel in dashboard["panels"] for one in panel["targets"]]
    for one in (*targets, *dashboard["annotations"]["list"]):
        yield one["expr"].replace("$job", ".*").replace("$instance", ".*").replace("$__rate_interval", "30s")


@SOAK
def test_a_real_prometheus_sees_a_job_grow_and_answers_every_panel_of_the_dashboard(tmp_path: Path) -> None:
    with started(tmp_path, *WATCHED, 0, program="network.py", arguments=endless(tmp_path)) as job:
        job.event("view", version=1)
        found = job.seen(lambda: re.search(r"http://(\S+)/metrics", job.console.read_text()), what="the address",
                         deadline_s=30.0)  # fmt: skip
        with prometheus(tmp_path, found[1]) as address:

            def peers() -> list[float]:
                return [float(one["value"][1]) for one in values(address, "kungfu_peers")]

            awaited(lambda: peers() == [2.0], what="two peers in Prometheus", deadline_s=120.0)
            assert main(["resize", "3", "--logdir", str(job.folder)]) == 0
            awaited(lambda: peers() == [3.0], what="three peers in Prometheus", deadline_s=60.0)
            rate = "rate(kungfu_steps_total[30s]) > 0"
            awaited(lambda: values(address, rate), what="steps", deadline_s=60.0)
            awaited(
                lambda: values(address, "increase(kungfu_rescales_total[1m]) > 0"), what="a change", deadline_s=60.0
            )
            unanswered = [one for one in expressions() if not values(address, one)]
            assert [one for one in unanswered if "signal" not in one and "speed" not in one and "recoveries" not in one
                    and "checkpoint" not in one and "changes(" not in one] == []  # fmt: skip
            assert values(address, "kungfu_peers_wanted")[0]["value"][1] == "3"
            with urllib.request.urlopen(f"http://{address}/api/v1/rules", timeout=30) as answer:
                (group,) = json.loads(answer.read())["data"]["groups"]
            assert {one["health"] for one in group["rules"]} == {"ok"}
            assert "firing" not in {one["state"] for one in group["rules"]}
            assert main(["stop", "--logdir", str(job.folder)]) == 0
            job.end()
            ended = values(address, "last_over_time(kungfu_job_ended[5m])")
            assert [one["value"][1] for one in ended] == ["1"], "the server has waited for a last scrape"
            vanished = "max by (job_id) (last_over_time(kungfu_job_ended[1h])) == 0 unless on (job_id) kungfu_job_ended"
            assert values(address, vanished) == []


@SOAK
def test_a_real_prometheus_sees_that_a_job_has_vanished(tmp_path: Path) -> None:
    """A real Prometheus sees that a job has vanished, whose command for events hangs and is ended nevertheless."""
    line = ("--on-event", "sleep 600", *WATCHED, 0)
    with started(tmp_path, *line, program="network.py", arguments=endless(tmp_path)) as job:
        found = job.seen(lambda: re.search(r"http://(\S+)/metrics", job.console.read_text()), what="the address",
                         deadline_s=30.0)  # fmt: skip
        with prometheus(tmp_path, found[1]) as address:
            awaited(lambda: values(address, "kungfu_job_ended == 0"), what="a sample", deadline_s=120.0)
            job.signal(signal.SIGKILL)

            def pending() -> bool:
                with urllib.request.urlopen(f"http://{address}/api/v1/rules", timeout=30) as answer:
                    (group,) = json.loads(answer.read())["data"]["groups"]
                return ("JobVanished", "pending") in {(one["name"], one["state"]) for one in group["rules"]}

            awaited(pending, what="the alarm", deadline_s=60.0)


# ---- with a real MLflow ----------------------------------------------------------------------------------------------


@SOAK
@pytest.mark.filterwarnings("ignore")  # of MLflow and its database
def test_a_job_that_loses_its_leading_host_is_one_run_of_a_real_mlflow(tmp_path: Path) -> None:
    """A job of three hosts, the leading one of which is killed, is one run in a database of MLflow."""
    mlflow = pytest.importorskip("mlflow")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    line = ("-np", 3, "--max", 4, "--mlflow", uri, "--on-event", f"cat >> {tmp_path}/told.jsonl")
    with started_on_hosts(tmp_path, *line, slots=(1, 2, 2), program="network.py", arguments=endless(tmp_path)) as hosts:
        written = r"MLflow: the job is run \S+ \((\w+)\) at sqlite"
        found = hosts[0].seen(
            lambda: re.search(written, hosts[0].console.read_text()), what="the run", deadline_s=120.0
        )
        hosts[1].event("view", version=1)
        hosts[1].steps(20)
        hosts[0].signal(signal.SIGKILL)
        hosts[1].event("recovered")
        leader = hosts[1].event("head")["host"]
        hosts[leader].seen(
            lambda: re.search(written, hosts[leader].console.read_text()), what="its run", deadline_s=120.0
        )
        assert main(["stop", "--logdir", str(hosts[1].folder)]) == 0
        ends = [job.end() for job in hosts.jobs[1:]]
    client = mlflow.MlflowClient(tracking_uri=uri)
    [run] = client.search_runs(["0"])
    assert (run.info.run_id, run.info.status, run.data.params["peers"]) == (found[1], "FINISHED", "3")
    steps = {one.step for one in client.get_metric_history(run.info.run_id, "job/loss")}
    assert steps == {row["step"] for row in ends[leader - 1].metrics}
    assert run.data.metrics["markers/recovery"] == 2
    assert {one.path for one in client.list_artifacts(run.info.run_id)} == {"events.jsonl", "why.txt"}
    told = [one["event"] for one in lines_of(tmp_path / "told.jsonl")]
    assert (told.count("head"), told.count("ended")) == (1, 1)
    assert {"started", "host lost", "recovered"} <= {*told}, "the last ones before the loss may be there twice"
