"""What a request would come to, told without carrying it out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kungfu.runtime.core.cluster.cluster import Cluster, Hosts, JobLimits, Processes, Starting
from kungfu.runtime.core.request import (
    Asked,
    Leave,
    Migrate,
    Release,
    Request,
    Resize,
    SaveCheckpoint,
    ScaleOut,
    SetLimits,
)
from kungfu.runtime.core.requests.admission import AdmissionContext
from kungfu.runtime.core.requests.request_log import RequestLog, react
from kungfu.runtime.core.terms import Terms
from kungfu.runtime.core.view import Peer, View
from kungfu.runtime.job_api.request_plan import PlannedPeer, RefusedSizes, RequestPlan, plan_request
from kungfu.runtime.settings import Deadlines, Limits

NAMES = {0: "a", 1: "b"}
TWO_HOSTS = Hosts({0: 2, 1: 3}, of={0: 0, 1: 0, 2: 1})


def job(*peers: int, hosts: Hosts = TWO_HOSTS, limits: Limits | None = None, **known: Any) -> dict[str, Any]:
    """The arguments for a job of these peers in view 5, on two hosts."""
    view = View(5, tuple(Peer(peer, f"h:{peer}") for peer in peers))
    alive = Processes(alive=frozenset(peers), next_id=max(peers) + 1)
    cluster = replace(Cluster(JobLimits(Deadlines())), view=view, hosts=hosts, processes=alive)
    free = {host: slots - sum(hosts.of.get(peer) == host for peer in peers) for host, slots in hosts.slots.items()}
    fields = {"batch": 12, "free": {host: count for host, count in free.items() if count}, **known}
    context = AdmissionContext(view, limits or Limits(1, 5), "elastic", {"a": 0, "b": 1}, 60.0, **fields)
    return {"cluster": cluster, "context": context, "hosts": NAMES, "speeds": {}, "now": 1.0, "log": RequestLog()}


def planned(action: Request, **given: Any) -> RequestPlan:
    return plan_request(Asked(action, id="r"), **given)


def test_a_larger_size_tells_who_starts_where_and_keeps_the_batch() -> None:
    plan = planned(Resize(5), **job(0, 1, 2))
    assert (plan.words, plan.refusal, plan.view, plan.before, plan.after) == ("resize 5", "", 5, 3, 5)
    assert plan.joins == (PlannedPeer(3, "b"), PlannedPeer(4, "b"))
    assert (plan.leaves, plan.missing, plan.batch_before, plan.batch_after) == ((), 0, 12, 12)
    assert planned(ScaleOut(2), **job(0, 1, 2)).joins == plan.joins


def test_with_the_local_batch_kept_the_whole_one_grows() -> None:
    plan = planned(Resize(5, "local_batch_size"), **job(0, 1, 2))
    assert (plan.batch_before, plan.batch_after) == (12, 20)
    assert planned(Resize(4, "local_batch_size"), **job(0, 1, 2, batch=None)).batch_after is None


@pytest.mark.parametrize(
    ("terms", "action", "batch_after"),
    [
        # The limit caps the batch of five peers with 4 samples each, and a larger batch does not grow.
        (Terms(12, 4.0, max_global_batch=16), Resize(5, "local_batch_size"), 16),
        (Terms(12, 4.0, max_global_batch=8), Resize(5, "local_batch_size"), 12),
        (Terms(12, 4.0, max_global_batch=16), Resize(5), 12),
        (Terms(12, 4.0, max_global_batch=16), ScaleOut(2, "local_batch_size"), 16),
        # Three peers with 6 samples each, capped at 12: two peers have 6 each again.
        (Terms(12, 6.0, max_global_batch=12), Resize(2, "local_batch_size"), 12),
        (Terms(12, 6.0, max_global_batch=12), Resize(1, "local_batch_size"), 6),
        # A rule has set 12 samples since the view began with 30.
        (Terms(30, 10.0, max_global_batch=16), Resize(5, "local_batch_size"), 16),
        (Terms(30, 10.0, max_global_batch=16), Resize(1, "local_batch_size"), 4),
    ],
)
def test_the_limit_of_the_batch_and_the_intended_shares_count(terms: Terms, action: Request, batch_after: int) -> None:
    given = job(0, 1, 2)
    given["cluster"] = replace(given["cluster"], terms=terms)
    assert planned(action, **given).batch_after == batch_after


def test_a_smaller_size_lets_slow_peers_leave_first() -> None:
    given = {**job(0, 1, 2), "speeds": {0: 0.5, 1: 1.0, 2: 1.0}}
    plan = planned(Resize(1), **given)
    assert plan.leaves == (PlannedPeer(0, "a"), PlannedPeer(2, "b"))
    assert (plan.after, plan.joins) == (1, ())
    assert planned(Leave((1,)), **given).leaves == (PlannedPeer(1, "a"),)


def test_a_migration_exchanges_one_peer_also_the_only_one() -> None:
    plan = planned(Migrate(0, "b"), **job(0, 1, 2))
    assert (plan.joins, plan.leaves, plan.after) == ((PlannedPeer(3, "b"),), (PlannedPeer(0, "a"),), 3)
    alone = planned(Migrate(0, "b"), **job(0))
    assert (alone.joins, alone.leaves, alone.after) == ((PlannedPeer(1, "b"),), (PlannedPeer(0, "a"),), 1)


def test_limits_are_planned_with_the_size_and_the_refusals_that_they_imply() -> None:
    plan = planned(SetLimits(maximum=2), **job(0, 1, 2))
    assert (plan.words, plan.after, [one.id for one in plan.leaves]) == ("resize --max 2", 2, [2])
    assert plan.refused_sizes == (
        RefusedSizes(3, None, "a size of 3: this job takes 1 to 2 (kungfu-run --min, --max)"),
    )
    assert [one.id for one in planned(SetLimits(minimum=4), **job(0, 1, 2)).joins] == [3]
    held = planned(Resize(3, hold_s=600.0), **job(0, 1, 2))
    assert (held.words, held.after, held.joins) == ("resize 3 --hold 600", 3, ())
    assert (held.held_at, held.held_for_s) == (3, 600.0)
    released = planned(Release(), **job(0, 1, 2))
    assert (released.after, released.held_at) == (3, None)


def test_peers_that_are_on_their_way_count_and_those_without_a_slot_are_missing() -> None:
    given = job(0, 1, 2)
    hosts = replace(TWO_HOSTS, of={**TWO_HOSTS.of, 7: 1})
    given["cluster"] = replace(given["cluster"], starting={7: Starting(0.5)}, hosts=hosts)
    assert [one.id for one in planned(Resize(5), **given).joins] == [3, 7]
    small = Hosts({0: 2, 1: 1}, of={0: 0, 1: 0, 2: 1})
    plan = planned(Resize(5), **job(0, 1, 2, hosts=small))
    assert (plan.after, plan.missing, plan.joins) == (3, 2, ())


def test_what_would_be_refused_says_why_and_which_sizes_are() -> None:
    given = job(0, 1, 2, hosts=Hosts({0: 2, 1: 2}, of={0: 0, 1: 0, 2: 1}), limits=Limits(2, 6))
    plan = planned(Resize(9), **given)
    assert plan.refusal == "a size of 9: this job takes 2 to 6 (kungfu-run --min, --max)"
    assert (plan.after, plan.joins) == (3, ())
    assert plan.refused_sizes == (
        RefusedSizes(1, 1, "a size of 1: this job takes 2 to 6 (kungfu-run --min, --max)"),
        RefusedSizes(5, 6, "no host has a free slot"),
        RefusedSizes(7, None, "a size of 7: this job takes 2 to 6 (kungfu-run --min, --max)"),
    )
    shared = planned(Resize(4), **job(0, 1, 2, batch=3))
    assert "a batch of 3 samples cannot be shared by 4 peers" in shared.refusal
    assert shared.refused_sizes[0].first == 4
    view_of_others = plan_request(Asked(Resize(4), id="r", if_view=4), **given)
    assert "not in view 4" in view_of_others.refusal


def test_a_request_under_way_is_a_reason_and_a_plan_changes_nothing() -> None:
    given = job(0, 1, 2)
    log, _ = react(given["log"], Asked(Resize(4), id="first"), given["context"], 0.0)
    before = repr((log, given["cluster"]))
    plan = plan_request(Asked(Resize(5), id="second"), **{**given, "log": log})
    assert "resize 4 is under way" in plan.refusal
    assert repr((log, given["cluster"])) == before


@pytest.mark.parametrize("action", [SaveCheckpoint(), Resize(3)])
def test_what_changes_no_membership_leaves_the_size(action: Request) -> None:
    plan = planned(action, **job(0, 1, 2))
    assert (plan.refusal, plan.before, plan.after, plan.joins, plan.leaves) == ("", 3, 3, (), ())


def test_before_the_first_view_everything_is_refused() -> None:
    given = job(0, 1)
    given["context"] = replace(given["context"], view=None)
    plan = planned(Resize(3), **given)
    assert "does not train yet" in plan.refusal
    assert (plan.before, plan.refused_sizes) == (0, ())
