"""What an agent's knowledge says of its peers and of where the job is going."""

from __future__ import annotations

from kungfu.runtime.core.cluster.cluster import Cluster, JobLimits, Processes, Starting
from kungfu.runtime.core.request import Asked, Leave, Resize, SaveCheckpoint
from kungfu.runtime.core.view import Peer, View
from kungfu.runtime.job_api.status import membership_status, peer_states
from kungfu.runtime.settings import Deadlines, Limits

VIEW = View(4, (Peer(2, "a:2"), Peer(5, "a:5")))
STARTING = {6: Starting(0.0), 7: Starting(0.0, 1.0, 2.0)}
CLUSTER = Cluster(JobLimits(Deadlines()), VIEW, STARTING, processes=Processes(alive=frozenset([1, 2, 5, 6, 7])))
LIMITS = Limits(1, 6)


def target(external: Asked) -> int:
    return membership_status(CLUSTER, LIMITS, external=external).target


def test_a_peer_is_starting_ready_training_or_leaving() -> None:
    assert peer_states(CLUSTER) == {1: "leaving", 2: "training", 5: "training", 6: "starting", 7: "ready"}


def test_without_a_request_the_job_goes_where_those_who_start_lead_it() -> None:
    where = membership_status(CLUSTER, LIMITS, external=None)
    assert (where.version, where.size, where.target, where.minimum, where.maximum) == (4, 2, 4, 1, 6)


def test_a_request_under_way_says_where_the_job_is_going() -> None:
    assert target(Asked(Resize(3), "", id="r")) == 3
    assert target(Asked(Leave((5, 9), "now", 0), "", id="r")) == 1
    assert target(Asked(Leave((5,), "replaced", 0), "", id="r")) == 2
    assert target(Asked(SaveCheckpoint(), "", id="r")) == 4


def test_before_the_first_view_there_is_no_size_yet() -> None:
    cluster = Cluster(JobLimits(Deadlines()), starting={0: Starting(0.0)}, processes=Processes(alive=frozenset([0])))
    assert (membership_status(cluster, LIMITS, external=None).version, peer_states(cluster)) == (0, {0: "starting"})
