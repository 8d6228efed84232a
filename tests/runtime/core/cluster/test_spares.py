"""Spares: peers that get ready before the job wants them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kungfu.runtime.core.cluster.cluster import Cluster, Hosts, SpareLevel, SpareLimits
from kungfu.runtime.core.cluster.events import (
    AdmitPhase,
    Command,
    ComparePrograms,
    Done,
    Fail,
    HostLost,
    HostNoticed,
    Kill,
    LeaderTookOver,
    LossReport,
    PeerNoticed,
    PeerProgressed,
    PeersLost,
    ProcessEnded,
    ProgramDiffers,
    ProgramExiting,
    ReleaseHost,
    ReportSpare,
    SpareLoaded,
    Spawn,
    Tick,
    TrainingFinished,
    ViewStarted,
)
from kungfu.runtime.core.cluster.spares import LONGEST_RETRY_S
from kungfu.runtime.core.failure import Exit
from kungfu.runtime.core.next_membership import JoinerOffer
from kungfu.runtime.core.request import AGENT, Asked, Leave
from kungfu.runtime.job_api.status import membership_status, peer_states
from kungfu.runtime.settings import Limits
from tests.runtime.core.cluster.cluster_steps import (
    JOB_LIMITS,
    after,
    all_of,
    formed,
    one_of,
    peer,
    ready,
    training,
    view_of,
    wants,
)

TWO_HOSTS = Hosts({0: 2, 1: 2})


def attached(id_: int) -> PeerProgressed:
    return PeerProgressed(peer(id_), ready=False)


def with_spares(
    *ids: int, number: int = 1, level: SpareLevel = "warm", hosts: Hosts | None = None, ready_ones: int | None = None
) -> Cluster:
    """A cluster of these peers that trains, and whose first spares are ready: all of them by default."""
    limits = replace(JOB_LIMITS, spares=SpareLimits(number, level))
    cluster = training(*ids, limits=limits, hosts=hosts)
    for spare in range(len(ids), len(ids) + (number if ready_ones is None else ready_ones)):
        news = [SpareLoaded(spare)] if level == "loaded" else [attached(spare), ready(spare)]
        cluster, _ = after(cluster, *news, now=5.0)
    return cluster


def waiting(cluster: Cluster) -> dict[int, bool]:
    """The spares, each with True if it is ready."""
    return {one: entry.ready is not None for one, entry in cluster.spares.waiting.items()}


def lost(cluster: Cluster, gone: int, *survivors: int, now: float = 20.0) -> tuple[Cluster, list[Command]]:
    """The cluster after the loss of a member, once the survivors train, and the commands since then."""
    report = LossReport(1, 10, True, "connection lost", (gone,))
    cluster, _ = after(cluster, ProcessEnded(gone, -9), *(PeersLost(one, report) for one in survivors), now=now)
    return after(cluster, ViewStarted(formed(cluster)), now=now + 0.5)


# ---- starts ---------------------------------------------------------------------------------------------------------


def test_spares_start_one_after_the_other_once_the_first_view_trains() -> None:
    limits = replace(JOB_LIMITS, spares=SpareLimits(2))
    cluster = training(0, 1, limits=limits)
    assert waiting(cluster) == {2: False}
    cluster, commands = after(cluster, attached(2), Tick())
    assert commands == [], "the first one still starts"
    cluster, commands = after(cluster, replace(ready(2), memory_bytes=7))
    assert commands == [ReportSpare(2, "ready", memory_bytes=7), Spawn(3)]
    cluster, commands = after(cluster, attached(3), ready(3), ready(3), Tick())
    assert commands == [ReportSpare(3, "ready")], "reported once"
    assert waiting(cluster) == {2: True, 3: True}


def test_a_job_without_the_option_has_no_spares() -> None:
    assert training(0, 1).alive == {0, 1}


def test_spares_are_neither_members_nor_joiners() -> None:
    cluster = with_spares(0, 1)
    assert (cluster.members, dict(cluster.starting), cluster.wanted) == ((0, 1), {}, {0, 1})
    status = membership_status(cluster, Limits(1, 4), external=None)
    assert (status.size, status.target) == (2, 2)
    assert peer_states(cluster) == {0: "training", 1: "training", 2: "spare"}
    assert peer_states(with_spares(0, 1, ready_ones=0))[2] == "starting spare"
    # A decision for one more peer counts the two members only.
    assert one_of(JoinerOffer, after(cluster, wants(3))[1]).ready == (peer(2),)


def test_no_spare_starts_while_a_joiner_is_on_its_way() -> None:
    cluster, commands = after(with_spares(0, 1), wants(4), now=10.0)
    assert commands == [ReportSpare(2, "wanted"), Spawn(3)], "the spare, and one process"
    cluster, commands = after(cluster, Tick(), attached(3), ready(3), now=15.0)
    assert one_of(JoinerOffer, commands).ready == (peer(2), peer(3))
    assert all_of(Spawn, commands) == []
    assert all_of(Spawn, after(cluster, ViewStarted(view_of(0, 1, 2, 3, version=2)), now=16.0)[1]) == [Spawn(4)]


# ---- joins ----------------------------------------------------------------------------------------------------------


def test_a_ready_spare_is_offered_with_the_decision_for_a_peer() -> None:
    cluster, commands = after(with_spares(0, 1), wants(3), now=10.0)
    assert commands == [ReportSpare(2, "wanted"), JoinerOffer((peer(2),), parts={"spawn": 0.0, "ready": 0.0})]
    assert cluster.starting.keys() == {2}
    cluster, commands = after(cluster, ViewStarted(view_of(0, 1, 2, version=2)), now=10.1)
    assert commands == [Spawn(3)], "the next spare"
    assert (cluster.members, waiting(cluster)) == ((0, 1, 2), {3: False})


def test_a_lost_peer_is_replaced_by_a_spare_once_the_survivors_train() -> None:
    cluster, commands = lost(with_spares(0, 1, 2), 1, 0, 2)
    assert [type(one) for one in commands] == [ReportSpare, JoinerOffer]
    assert (cluster.starting[3].replaces, waiting(cluster)) == (1, {})


def test_the_oldest_ready_spare_joins_before_one_that_starts() -> None:
    cluster = with_spares(0, number=3, ready_ones=2)
    assert waiting(cluster) == {1: True, 2: True, 3: False}
    cluster, commands = after(cluster, wants(3), now=10.0)
    assert one_of(JoinerOffer, commands).ready == (peer(1), peer(2))
    cluster, commands = after(cluster, wants(4), now=10.0)
    assert commands == [ReportSpare(3, "wanted")], "the one that starts is on its way already"
    assert cluster.starting[3].since == 10.0


def test_a_smaller_size_dismisses_a_former_spare_like_any_joiner() -> None:
    cluster, _ = after(with_spares(0, 1), wants(3), now=10.0)
    cluster, commands = after(cluster, wants(2), now=11.0)
    assert commands[0] == Kill(2, "the job wants 2 peers now")
    assert waiting(cluster) == {3: False}, "another spare starts"


def test_a_notice_to_a_member_brings_the_spare() -> None:
    cluster, commands = after(with_spares(0, 1), PeerNoticed(1), now=10.0)
    assert commands == [Asked(Leave((1,), "noticed", 2), "preemption notice", id=AGENT)]
    cluster, commands = after(cluster, ViewStarted(view_of(0, version=2)), wants(2), now=11.0)
    assert one_of(JoinerOffer, commands).ready == (peer(2),)


# ---- ends -----------------------------------------------------------------------------------------------------------


def test_a_spare_that_ends_is_started_anew_after_a_wait_that_doubles() -> None:
    cluster, now, waits = with_spares(0, 1, ready_ones=0), 10.0, list[float]()
    for spare in range(2, 13):
        cluster, commands = after(cluster, ProcessEnded(spare, -9), now=now)
        (report,) = commands
        assert isinstance(report, ReportSpare)
        assert (report.peer, report.state, report.how) == (spare, "lost", "killed by SIGKILL")
        waits.append(report.retry_s)
        assert after(cluster, Tick(), now=now + report.retry_s - 0.1)[1] == []
        now += report.retry_s
        cluster, commands = after(cluster, Tick(), now=now)
        assert commands == [Spawn(spare + 1)]
    assert waits == [2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]
    assert cluster.losses.failures == 0, "the budget of failures is that of members"


def test_a_spare_that_has_waited_long_was_no_failure_and_a_used_one_ends_the_wait() -> None:
    cluster, _ = after(with_spares(0, 1, ready_ones=0), ProcessEnded(2, 1), now=10.0)
    cluster, _ = after(cluster, Tick(), now=12.0)
    cluster, _ = after(cluster, attached(3), ready(3), now=20.0)
    failing, commands = after(cluster, ProcessEnded(3, 1), now=30.0)
    assert one_of(ReportSpare, commands).retry_s == 4.0
    cluster, commands = after(cluster, ProcessEnded(3, -15), now=21.0 + LONGEST_RETRY_S)
    assert one_of(ReportSpare, commands).retry_s == 2.0
    assert failing.spares.failures == 2


def test_a_spare_that_is_never_ready_is_killed_at_the_deadline() -> None:
    cluster = with_spares(0, 1, ready_ones=0)
    cluster, commands = after(cluster, attached(2), Tick(), now=100.0)
    assert commands == []
    cluster, commands = after(cluster, Tick(), now=101.1)
    why = "waited 100 s for spare peer 2 to get ready"
    assert commands == [Kill(2, why), ReportSpare(2, "lost", why, 2.0)]
    assert after(cluster, ProcessEnded(2, -9), now=101.2)[1] == []


def test_a_ready_spare_is_never_late() -> None:
    assert after(with_spares(0, 1), Tick(), now=1e6)[1] == []


def test_a_spare_whose_program_exits_or_differs_joins_no_view() -> None:
    cluster, commands = after(with_spares(0, 1), ProgramExiting(2, Exit("exception", 0, "ValueError", "E")), now=9.0)
    assert [type(one) for one in commands] == [Kill, ReportSpare]
    assert all_of(Spawn, after(cluster, wants(3), now=9.0)[1]) == [Spawn(3, leaving=(2,))]
    cluster = with_spares(0, 1, ready_ones=0)
    cluster, commands = after(cluster, ready(2, program="another"), now=9.0)
    assert commands == [ComparePrograms((peer(0), peer(1)), peer(2))]
    assert waiting(cluster) == {2: False}
    cluster, commands = after(cluster, ProgramDiffers(2, "one layer more"), now=9.0)
    assert [type(one) for one in commands] == [Kill, ReportSpare]
    assert waiting(cluster) == {}


def test_the_job_is_done_although_a_spare_still_runs() -> None:
    cluster, commands = after(
        with_spares(0, 1), TrainingFinished(0, False), TrainingFinished(1, False), ProcessEnded(0, 0), now=9.0
    )
    assert commands == []
    assert after(cluster, ProcessEnded(1, 0), now=9.0)[1] == [Done()]


def test_a_script_that_fails_after_its_training_fails_the_job_beside_a_spare() -> None:
    finished = (TrainingFinished(0, False), TrainingFinished(1, False))
    _, commands = after(with_spares(0, 1), *finished, ProcessEnded(0, 0), ProcessEnded(1, 3), now=9.0)
    assert isinstance(commands[-1], Fail)


def test_a_job_whose_last_member_is_lost_fails_and_starts_no_spare() -> None:
    _, commands = after(with_spares(0, ready_ones=0), ProcessEnded(0, -9), now=9.0)
    assert commands == [Fail(0, "killed by SIGKILL")], "a spare holds no state"


# ---- phases ---------------------------------------------------------------------------------------------------------


def test_spares_get_ready_anew_for_the_next_phase_and_none_starts_between_phases() -> None:
    cluster = with_spares(0, 1, number=2, ready_ones=1)
    finished = (TrainingFinished(0, False, 1), TrainingFinished(1, False, 1))
    cluster, commands = after(cluster, *finished, ready(3), now=50.0)
    assert commands == []
    assert waiting(cluster) == {2: False, 3: False}, "ready for a phase that is over"
    cluster, commands = after(cluster, Tick(), now=1e4)
    assert commands == [], "and nobody is late: they wait for the others"
    cluster, commands = after(cluster, ready(0, 2), ready(1, 2), now=1e4)
    assert one_of(AdmitPhase, commands).view.ids == (0, 1)
    cluster, commands = after(cluster, ViewStarted(one_of(AdmitPhase, commands).view), Tick(), now=1e4 + 1)
    assert commands == []
    cluster, commands = after(cluster, ready(2, 1), ready(2, 2), ready(3, 2), now=1e4 + 50)
    assert commands == [ReportSpare(2, "ready"), ReportSpare(3, "ready")]
    assert one_of(JoinerOffer, after(cluster, wants(3), now=1e4 + 60)[1]).ready == (peer(2),)


def test_a_program_that_ends_after_a_phase_ends_the_job_without_its_spares() -> None:
    finished = (TrainingFinished(0, False, 1), TrainingFinished(1, False, 1))
    _, commands = after(with_spares(0, 1), *finished, ProcessEnded(0, 0), ProcessEnded(1, 0), now=9.0)
    assert commands == [Done()]


# ---- hosts ----------------------------------------------------------------------------------------------------------


def spare_hosts(cluster: Cluster) -> list[int]:
    return [cluster.hosts.of[one] for one in cluster.spares.waiting]


@pytest.mark.parametrize(
    ("hosts", "peers", "number", "expected"),
    [
        (Hosts({0: 2, 1: 2}), 3, 1, [1]),  # the host with a free slot
        (Hosts({0: 2, 1: 2}), 3, 3, [1, 0, 1]),  # then the host with fewer spares, then the one with fewer peers
        (Hosts({0: 2, 1: 2}), 4, 2, [0, 1]),  # full hosts: a spare each
        (Hosts({0: 2, 1: 4}), 2, 2, [1, 1]),  # as many as there are free slots
        (Hosts({0: 2}, devices={0: 2}), 2, 1, []),  # every device has a peer
        (Hosts({0: 2}, devices={0: 4}), 2, 3, [0, 0]),  # one device for each peer and each spare
        (Hosts({0: 2, 1: 2}, devices={0: 2, 1: 3}), 4, 2, [1]),
    ],
)  # fmt: skip
def test_where_spares_wait(hosts: Hosts, peers: int, number: int, expected: list[int]) -> None:
    cluster = training(*range(peers), limits=replace(JOB_LIMITS, spares=SpareLimits(number)), hosts=hosts)
    for spare in range(peers, peers + number):
        cluster, _ = after(cluster, ready(spare), now=2.0)
    assert spare_hosts(cluster) == expected


def test_a_loaded_spare_needs_no_device() -> None:
    hosts = Hosts({0: 2}, devices={0: 2})
    assert spare_hosts(with_spares(0, 1, number=2, level="loaded", hosts=hosts)) == [0, 0]


def test_a_spare_occupies_no_slot_and_serves_its_own_host() -> None:
    cluster = with_spares(0, 1, 2, number=1, hosts=TWO_HOSTS)
    assert spare_hosts(cluster) == [1]
    _, commands = after(cluster, wants(4), now=9.0)
    assert one_of(JoinerOffer, commands).ready == (peer(3),)
    # The slot is free for a process on that host as well, and the spare fits into no other host.
    assert all_of(Spawn, after(cluster, wants(4, host=1), now=9.0)[1]) == []
    cluster = with_spares(0, 1, 2, 3, number=1, hosts=TWO_HOSTS)
    assert spare_hosts(cluster) == [0]
    cluster, commands = lost(cluster, 3, 0, 1, 2)
    assert all_of(Spawn, commands) == [Spawn(5, host=1)], "the slot of the lost peer is on the other host"
    assert waiting(cluster) == {4: True}


def test_a_straggler_is_replaced_on_another_host_even_if_its_own_has_a_spare() -> None:
    cluster = with_spares(0, number=1, hosts=Hosts({0: 3, 1: 1}))
    cluster = replace(cluster, hosts=replace(cluster.hosts, of={**cluster.hosts.of, 1: 0}))
    _, commands = after(cluster, wants(2, leaving=(0,)), now=9.0)
    assert commands == [Spawn(2, host=1)]


def test_the_spares_of_a_host_with_a_notice_end_and_wait_elsewhere() -> None:
    cluster = with_spares(0, 1, 2, hosts=TWO_HOSTS)
    cluster, commands = after(cluster, HostNoticed(1), now=9.0)
    assert commands[0] == Kill(3, "its host will be taken away")
    assert all_of(Spawn, commands) == [Spawn(4, host=0)]
    assert all_of(ReportSpare, commands) == []
    cluster, commands = after(cluster, ProcessEnded(3, -9), ViewStarted(view_of(0, 1, version=2)), now=10.0)
    assert all_of(ReleaseHost, after(cluster, ProcessEnded(2, 0), now=11.0)[1]) == [ReleaseHost(1)]


def test_the_spares_of_a_lost_host_are_lost_and_start_elsewhere() -> None:
    cluster = with_spares(0, 1, 2, hosts=TWO_HOSTS)
    cluster, commands = after(cluster, HostLost(1, "no heartbeat"), now=9.0)
    assert all_of(ReportSpare, commands) == [ReportSpare(3, "lost", "no heartbeat", 2.0)]
    report = LossReport(1, 10, True, "connection lost", (2,))
    cluster, _ = after(cluster, PeersLost(0, report), PeersLost(1, report), now=9.5)
    cluster, commands = after(cluster, ViewStarted(formed(cluster)), Tick(), now=12.0)
    assert spare_hosts(cluster) == [0]


def test_a_new_leader_knows_the_spares_and_offers_one_that_is_wanted() -> None:
    cluster, commands = after(with_spares(0, 1, number=2), LeaderTookOver(), now=9.0)
    assert commands == []
    cluster, _ = after(cluster, wants(3), now=9.0)
    assert one_of(JoinerOffer, after(cluster, LeaderTookOver(), now=9.1)[1]).ready == (peer(2),)


# ---- spares that have only loaded TensorFlow ------------------------------------------------------------------------


def test_a_loaded_spare_runs_its_program_once_it_is_wanted() -> None:
    cluster = with_spares(0, 1, level="loaded", ready_ones=0)
    (spare,) = cluster.spares.waiting
    cluster, commands = after(cluster, SpareLoaded(spare, 3), SpareLoaded(spare, 3), now=3.0)
    assert commands == [ReportSpare(2, "ready", memory_bytes=3)]
    cluster, commands = after(cluster, wants(3), now=10.0)
    assert commands == [ReportSpare(2, "wanted"), Spawn(2)]
    assert (cluster.starting[2].since, cluster.starting[2].ready) == (10.0, None)
    assert after(cluster, LeaderTookOver(), now=10.1)[1] == [Spawn(2)], "the command may be lost with its leader"
    cluster, commands = after(cluster, attached(2), ready(2), now=12.0)
    assert one_of(JoinerOffer, commands).parts == {"spawn": 2.0, "ready": 0.0}
    assert all_of(Spawn, after(cluster, LeaderTookOver(), now=12.1)[1]) == []


def test_the_process_of_a_loaded_spare_is_started_so() -> None:
    limits = replace(JOB_LIMITS, spares=SpareLimits(1, "loaded"))
    first = training(0, limits=replace(limits, spares=SpareLimits()))
    _, commands = after(replace(first, limits=limits), Tick())
    assert commands == [Spawn(1, loads_only=True)]


def test_a_loaded_spare_stays_ready_over_the_end_of_a_phase() -> None:
    cluster, _ = after(with_spares(0, level="loaded"), TrainingFinished(0, False, 1), now=9.0)
    assert waiting(cluster) == {1: True}
