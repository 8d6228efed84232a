"""A job as Prometheus sees it: names, units, and what is known at each moment."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

import kungfu
from kungfu.cli.export.prometheus import PrometheusMetrics
from kungfu.runtime.core.request import Leave, Migrate, Profile, Resize, ScaleOut, in_words
from tests.cli.recorded import FAILED, GROWN, measured
from tests.event_log.made import made

DASHBOARD, ALARMS = (Path(__file__).parents[3] / "docs" / name for name in ("grafana.json", "alarms.yaml"))


def collected(events=GROWN, rows=()):
    """The samples by name and labels once these events and lines were recorded, and the metrics."""
    metrics = PrometheusMetrics()
    for event in events:
        metrics.event(event)
    for row in rows:
        metrics.status(row)
    return metrics.registry.get_sample_value, metrics


def test_a_run_that_grew_is_counted_and_its_newest_state_is_collected():
    rows = [measured(step, learning_rate=0.1, straggler_fractions={"0": 1.0, "7": 0.5}) for step in range(1, 11)]
    value, _ = collected(rows=rows)
    assert value("kungfu_job_info", {"job_id": ""}) is None
    assert (value("kungfu_steps_total"), value("kungfu_samples_total")) == (10, 320)
    assert (value("kungfu_step"), value("kungfu_peers"), value("kungfu_global_batch_size_samples")) == (10, 2, 32)
    assert (value("kungfu_loss"), value("kungfu_learning_rate")) == (0.2, 0.1)
    assert value("kungfu_throughput_samples_per_second") == 703
    assert value("kungfu_last_step_timestamp_seconds") == 110
    assert value("kungfu_signal", {"signal": "noise_scale"}) == 30
    assert value("kungfu_peer_speed_ratio", {"peer": "7"}) == 0.5
    assert value("kungfu_decisions_total", {"rule": "gns_batch"}) == 1
    assert (value("kungfu_rescales_total"), value("kungfu_recoveries_total")) == (2, 0)
    assert value("kungfu_stop_duration_seconds_sum", {"cause": "rescale"}) == pytest.approx(0.2)
    assert value("kungfu_stop_duration_seconds_count", {"cause": "recovery"}) == 0
    assert value("kungfu_step_duration_seconds_count") == 9, "the first step was not timed"
    assert value("kungfu_step_duration_seconds_bucket", {"le": "0.05"}) == 9
    assert value("kungfu_peer_processes") == 0, "all have ended"


def test_what_is_not_known_has_no_sample_and_what_is_no_number_is_told_as_such():
    value, metrics = collected(events=())
    assert {value(f"kungfu_{name}") for name in ("loss", "peers", "step", "learning_rate")} == {None}
    metrics.status({"time": 1.0, "step": 1, "batch": 8, "loss": "NaN", "samples_per_s": None})
    assert str(value("kungfu_loss")) == "nan"
    assert (value("kungfu_not_finite_steps_total"), value("kungfu_steps_total")) == (1, 1)
    assert value("kungfu_throughput_samples_per_second") is None
    metrics.status({"time": 2.0, "step": 2, "batch": 8, "samples_per_s": "Infinity"})
    assert value("kungfu_step_duration_seconds_count") == 0


STOP = {"time": 5.0, "step": 9, "path": "/c", "seconds": 0.5, "stop_s": 0.01}
EVENTS = (
    made(event="started", time=1.0, job="ab12", size=2),
    *(made(event="host", host=host, name="h") for host in (0, 1)),
    *(made(event="spawned", peer=peer, pid=1) for peer in (0, 1, 2)),
    made(event="recovered", step=8, to=1, lost={"1": "killed by SIGKILL", "2": "host lost"}, stop_s=2.0),
    made(event="lost", peer=1, how="killed by SIGKILL"),
    made(event="host lost", host=1, name="h", why="silent"),
    made(event="checkpoint", **STOP, bytes=1000),
    made(event="checkpoint", **STOP, error="no space"),
    made(event="request", id="a", request="resize 3", state="accepted"),
)


def test_losses_refusals_checkpoints_requests_and_hosts_are_counted():
    value, _ = collected(events=(*FAILED, *EVENTS))
    assert value("kungfu_job_info", {"job_id": "ab12"}) == 1
    assert (value("kungfu_recoveries_total"), value("kungfu_lost_peers_total")) == (1, 2)
    assert value("kungfu_stop_duration_seconds_sum", {"cause": "recovery"}) == 2.0
    assert value("kungfu_refusals_total") == 1
    assert [value("kungfu_checkpoints_total", {"outcome": one}) for one in ("written", "failed")] == [1, 1]
    assert value("kungfu_checkpoint_size_bytes") == 1000
    assert value("kungfu_requests_total", {"state": "accepted"}) == 1
    assert (value("kungfu_hosts"), value("kungfu_peer_processes")) == (1, 2)


def test_peers_that_have_left_are_not_told_of_and_many_commands_make_few_labels():
    value, metrics = collected(events=())
    metrics.status(measured(1, straggler_fractions={"0": 1.0, "1": 0.5}))
    metrics.status(measured(2))
    assert value("kungfu_peer_speed_ratio", {"peer": "1"}) == 0.5, "the last line of a view tells none"
    metrics.status(measured(3, straggler_fractions={"0": 1.0, "2": "NaN"}))
    assert value("kungfu_peer_speed_ratio", {"peer": "1"}) is None
    for size in range(200):
        for rule in (f"kungfu resize {size}", f"mine_{size}"):
            metrics.event(made(event="decision", rule=rule, step=1, size=1, asked=size))
    assert value("kungfu_decisions_total", {"rule": "kungfu resize"}) == 200
    assert value("kungfu_decisions_total", {"rule": "mine_48"}) == 1
    assert value("kungfu_decisions_total", {"rule": "others"}) == 151


def test_what_has_not_happened_is_0_with_each_of_its_labels():
    value, metrics = collected(events=())
    words = {
        "resize": Resize(3), "scale-out": ScaleOut(1), "scale-in": Leave((1, 3)), "migrate": Migrate(2, "b"),
        "profile": Profile(1, 4, 50),
    }  # fmt: skip
    for name, label, values in (
        ("decisions", "rule", [f"kungfu {one}" for one in words]),
        ("requests", "state", ["accepted", "carried out", "refused", "expired"]),
        ("checkpoints", "outcome", ["written", "failed"]),
    ):
        assert [value(f"kungfu_{name}_total", {label: one}) for one in values] == [0.0] * len(values)
    for word, action in words.items():
        metrics.event(made(event="decision", rule=f"kungfu {in_words(action)}", step=1, size=1, asked=2))
        assert value("kungfu_decisions_total", {"rule": f"kungfu {word}"}) == 1


def test_the_rules_of_the_job_begin_at_0_once_it_says_which_there_are():
    value, metrics = collected(events=[made(event="rules", step=1, rules=["gns_batch", "at_most(a, b)"])])
    assert [value("kungfu_decisions_total", {"rule": one}) for one in ("gns_batch", "at_most(a, b)")] == [0, 0]
    metrics.event(made(event="decision", rule="gns_batch", step=1, size=1, asked=2))
    metrics.event(made(event="rules", step=9, rules=["gns_batch"]))  # the next fit
    assert value("kungfu_decisions_total", {"rule": "gns_batch"}) == 1


def test_hostile_names_stay_labels_and_the_text_can_be_parsed():
    hostile = 'x"} 1\nkungfu_peers 99\n# \\ <b>\ud800'
    _, metrics = collected(
        events=[made(event="decision", rule=hostile, step=1, size=1, asked=2)], rows=[{hostile: 3.0}]
    )
    families = [*text_string_to_metric_families(generate_latest(metrics.registry).decode())]
    samples = [sample for family in families for sample in family.samples]
    assert not any(sample.name == "kungfu_peers" for sample in samples)
    [signal] = [sample for sample in samples if sample.name == "kungfu_signal"]
    assert signal.labels == {"signal": hostile.replace("\ud800", "?")}


def test_names_follow_the_conventions():
    _, metrics = collected(rows=[measured(1)])
    for family in text_string_to_metric_families(generate_latest(metrics.registry).decode()):
        assert family.documentation.endswith("."), family.name
        assert re.fullmatch(r"kungfu_[a-z]+(_[a-z]+)*", family.name), family.name
        assert not re.search(r"_(s|ms|kb|mb|minutes|percent)$", family.name), "base units only"
        if family.type == "counter":
            counted = {one.name for one in family.samples if not one.name.endswith("_created")}
            assert all(name.endswith("_total") for name in counted), counted


def served_names():
    """The names of all samples that a job with everything serves."""
    _, metrics = collected((*GROWN, *EVENTS), [measured(2, learning_rate=1.0, straggler_fractions={"0": 1.0})])
    families = text_string_to_metric_families(generate_latest(metrics.registry).decode())
    return {sample.name for family in families for sample in family.samples}


def test_every_metric_of_the_dashboard_is_one_that_is_served():
    shown = {*re.findall(r"\bkungfu_[a-z_]+", DASHBOARD.read_text())}
    assert len(shown) > 15
    assert shown - served_names() == set()


def test_the_version_the_wanted_peers_and_the_end_of_the_job_are_collected():
    value, metrics = collected(events=[made(event="started", job="ab12", size=2)])
    assert value("kungfu_build_info", {"version": kungfu.__version__}) == 1
    assert (value("kungfu_peers_wanted"), value("kungfu_peers")) == (2, None)
    assert value("kungfu_job_ended", {"job_id": "ab12"}) == 0
    metrics.event(made(event="failed", peer=1, error="killed", code=1))
    assert value("kungfu_job_ended", {"job_id": "ab12"}) == 1
    assert collected(events=())[0]("kungfu_peers_wanted") is None


def test_every_alarm_is_about_metrics_that_are_served_and_says_what_is_wrong():
    (group,) = yaml.safe_load(ALARMS.read_text())["groups"]
    assert [one["alert"] for one in group["rules"]] == re.findall(
        r"^\| `([A-Z]\w+)` \|", (ALARMS.parent / "monitoring.md").read_text(), flags=re.MULTILINE
    )
    for rule in group["rules"]:
        assert {*re.findall(r"\bkungfu_[a-z_]+", rule["expr"])} - served_names() == set(), rule["alert"]
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]


def test_windows_of_the_panels_follow_the_interval_of_the_scrapes():
    dashboard = json.loads(DASHBOARD.read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    windows = {window for one in expressions for window in re.findall(r"\[(.*?)\]", one)}
    assert windows == {"$__rate_interval"}
