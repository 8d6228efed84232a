"""The plan of a job as a drawing: every node has a place of its own, and edges go to the right."""

from __future__ import annotations

import pytest

from kungfu import at_most
from kungfu.cli.page.plan_drawing import draw_plan
from kungfu.compiler import compile_policies
from kungfu.policies import autoscale, gns_batch, linear_scaling, replace_stragglers, schedule, stop_on_nan

POLICIES = {
    "gns_batch": lambda: [gns_batch(max_peers=8)],
    "merged": lambda: [at_most(gns_batch(max_peers=8), schedule({10: 4}))],
    "several": lambda: [autoscale(max_peers=4), replace_stragglers(), stop_on_nan()],
    "on rescale": lambda: [linear_scaling()],
    "none": list,
}


@pytest.mark.parametrize("name", POLICIES)
def test_every_node_has_a_place_of_its_own_and_edges_lead_to_the_right(name: str) -> None:
    drawing = draw_plan(compile_policies(POLICIES[name]()))
    nodes, edges = drawing["nodes"], drawing["edges"]
    places = [(node["column"], node["row"]) for node in nodes]
    assert len({*places}) == len(places)
    assert all(nodes[one]["column"] < nodes[other]["column"] for one, other in edges)
    assert not any(node["label"].startswith("%") for node in nodes), "what has no name is not drawn"
    last = max((node["column"] for node in nodes), default=0)
    assert all((node["kind"] == "rule") == (node["column"] == last) for node in nodes)
    assert drawing["text"].endswith("\n")


def test_a_policy_is_drawn_from_what_it_reads_through_its_monitor_to_its_rule() -> None:
    drawing = draw_plan(compile_policies(POLICIES["gns_batch"]()))
    nodes = drawing["nodes"]
    noise, rule = ([node["label"] for node in nodes].index(name) for name in ("noise_scale", "gns_batch"))
    shown = {key: nodes[noise][key] for key in ("kind", "unit", "placement", "how")}
    monitor = {"kind": "monitor", "unit": "samples", "placement": "agreed", "how": "monitor.noise_scale_estimate"}
    assert shown == monitor
    reads = {nodes[one]["label"] for one, other in drawing["edges"] if other == noise}
    assert {"grads", "mean_grads", "samples"} <= reads
    assert [noise, rule] in drawing["edges"]
    assert "rescale to" in nodes[rule]["how"]
