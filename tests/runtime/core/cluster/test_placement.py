"""What the coordinator decides when hosts come, are told to leave, or are lost: by hand, then any order of events."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.runtime.core.cluster.cluster import Cluster, Hosts
from kungfu.runtime.core.cluster.events import (
    AdmitFirstView,
    AdmitSurvivors,
    AnnounceFailure,
    Done,
    Event,
    Fail,
    HostJoined,
    HostLost,
    HostNoticed,
    Kill,
    LeaderTookOver,
    LossReport,
    PeerNoticed,
    PeersLost,
    ProcessEnded,
    ReleaseHost,
    Spawn,
    Tick,
    TrainingFinished,
    ViewStarted,
)
from kungfu.runtime.core.cluster.placement import AVOIDED_S, free_slots, has_majority
from kungfu.runtime.core.cluster.transitions import react, start_job
from kungfu.runtime.core.next_membership import BarrierInput, Decision, JoinerOffer, next_membership
from kungfu.runtime.core.request import AGENT, Asked, Leave, Resize, Retry
from kungfu.runtime.core.terms import Terms
from kungfu.runtime.settings import Limits
from tests.runtime.core.cluster import cluster_steps
from tests.runtime.core.cluster.cluster_steps import (
    JOB_LIMITS,
    after,
    all_of,
    formed,
    peer,
    ready,
    sole,
    view_of,
    wants,
)

NO_SLOT = "no host has a free slot"


def training(size: int, *slots: int) -> Cluster:
    """A cluster of this many peers in its first view, on hosts with so many slots."""
    return cluster_steps.training(*range(size), hosts=Hosts(dict(enumerate(slots))))


def report(version: int = 1, step_: int = 40) -> LossReport:
    return LossReport(version, step_, True, "peer rank=0 died during gradients")


def let_go(peer: int, *others: int) -> list[Event]:
    """A view of the others begins, and the process of this peer ends."""
    return [TrainingFinished(peer, leaving=True), ViewStarted(view_of(*others, version=2)), ProcessEnded(peer, 0)]


def test_peers_are_spread_over_the_hosts_if_the_job_says_so() -> None:
    spread = replace(JOB_LIMITS, place="spread")
    _, spawns = start_job(5, limits=spread, now=0.0, hosts=Hosts({0: 4, 1: 1, 2: 2}))
    assert [spawn.host for spawn in all_of(Spawn, spawns)] == [0, 1, 2, 0, 2]
    _, spawns = start_job(5, limits=JOB_LIMITS, now=0.0, hosts=Hosts({0: 4, 1: 1, 2: 2}))
    assert [spawn.host for spawn in all_of(Spawn, spawns)] == [0, 0, 0, 0, 1]


def test_a_size_on_a_named_host_starts_peers_there_although_others_have_room() -> None:
    terms, request = Terms(12, 4.0), Asked(Resize(4, host=1), "kungfu scale-out b", id="r")
    decision = next_membership(BarrierInput(view_of(0, 1, 2), terms, Limits(1, 9), requests=(request,)))
    assert (decision.prepare, decision.host) == (4, 1)
    cluster = cluster_steps.training(0, 1, 2, hosts=Hosts({0: 9, 1: 2}))
    assert [spawn.host for spawn in all_of(Spawn, after(cluster, decision)[1])] == [1]


def test_the_slot_of_a_straggler_that_was_let_go_is_avoided_for_a_while() -> None:
    cluster, _ = after(training(3, 2, 2), *let_go(1, 0, 2), now=10.0)
    assert after(cluster, wants(3), now=20.0)[1] == [Spawn(3, 1)]
    assert after(cluster, wants(4), now=20.0)[1] == [Spawn(3, 1), Spawn(4, 0)], "there is no other"
    assert after(cluster, wants(3), now=10.0 + AVOIDED_S)[1] == [Spawn(3, 0)], "a while is over"


def test_a_slot_is_avoided_as_soon_as_the_view_has_begun() -> None:
    left = ViewStarted(view_of(0, 2, version=2))
    cluster, _ = after(training(3, 2, 2), left, now=10.0)
    assert after(cluster, wants(3), now=20.0)[1] == [Spawn(3, 1)]
    said, _ = after(cluster, TrainingFinished(1, leaving=True), ProcessEnded(1, 0), now=11.0)
    assert said.hosts.departures == {1: (0, 10.0)}, "one departure, told twice"


def test_the_slot_of_a_peer_that_was_lost_or_taken_away_is_not_avoided() -> None:
    reports = [PeersLost(id, report()) for id in (0, 2)]
    cluster, _ = after(training(3, 2, 2), ProcessEnded(1, -9), *reports, now=10.0)
    assert formed(cluster).ids == (0, 2)
    cluster, commands = after(cluster, ViewStarted(formed(cluster)), now=11.0)
    assert cluster.hosts.departures == {}
    assert Spawn(3, 0) in commands
    cluster, _ = after(training(3, 2, 2), PeerNoticed(1), *let_go(1, 0, 2), now=10.0)
    assert Spawn(3, 0) in after(cluster, wants(3), now=20.0)[1]


def test_who_comes_in_place_of_another_starts_on_another_host_while_there_is_one() -> None:
    # Peers 0 and 1 run on host 0, where a third one has room, peer 2 on host 1.
    growing = training(3, 2, 2)
    growing = replace(growing, hosts=replace(growing.hosts, slots={0: 4, 1: 2}))
    assert after(growing, wants(4))[1] == [Spawn(3, 0)]
    one = after(growing, wants(4, leaving=(0,)))[1]
    assert one == [Spawn(3, 1)], "the straggler still runs, so its slot is not free; and its host may have made it slow"
    three = after(growing, wants(6, leaving=(0,)))[1]
    assert [command.host for command in all_of(Spawn, three)] == [1, 0, 0], "there is no other"
    both = after(growing, wants(4, leaving=(0, 2)))[1]
    assert [command.host for command in all_of(Spawn, both)] == [0]


def test_another_slot_of_its_host_comes_before_one_that_a_straggler_was_let_go_from() -> None:
    cluster, _ = after(training(3, 2, 1), *let_go(2, 0, 1), now=10.0)
    cluster = replace(cluster, hosts=replace(cluster.hosts, slots={0: 3, 1: 1}))
    assert after(cluster, wants(3, leaving=(0,)), now=20.0)[1] == [Spawn(3, 0, leaving=(0,))]


def test_who_starts_hears_whose_seat_it_may_take() -> None:
    _, commands = after(training(2, 3), wants(3, leaving=(1,)))
    assert commands == [Spawn(2, 0, leaving=(1,))]
    leaving = after(training(2, 3), TrainingFinished(1, leaving=True), ViewStarted(view_of(0, version=2)))[0]
    assert after(leaving, wants(2))[1] == [Spawn(2, 0, leaving=(1,))], "its process has yet to end"


def test_peers_fill_the_hosts_in_their_order() -> None:
    _, commands = start_job(4, limits=JOB_LIMITS, now=0.0, hosts=Hosts({0: 2, 1: 1, 2: 2}))
    assert commands == [Spawn(peer, host, joins=False) for peer, host in enumerate([0, 0, 1, 2])]


def test_who_finds_no_slot_is_missing_and_the_coordinator_hears_of_it_at_once() -> None:
    cluster, commands = after(training(3, 2, 1), wants(5))
    offer = JoinerOffer((), (3, 4), f"peer 3: {NO_SLOT}; peer 4: {NO_SLOT}")
    assert (commands, cluster.starting) == ([offer], {})
    _, commands = after(training(2, 2, 1), wants(4), ready(2))
    assert commands == [Spawn(2, 1), JoinerOffer((peer(2),), (3,), f"peer 3: {NO_SLOT}")], "it is reached in part"


def test_a_slot_is_free_as_soon_as_its_peer_was_let_go() -> None:
    cluster = training(2, 1, 1)
    assert free_slots(cluster) == {}
    said, _ = after(cluster, TrainingFinished(1, leaving=True))
    assert free_slots(said) == {1: 1}
    seen, _ = after(cluster, ViewStarted(view_of(0, version=2)))
    assert free_slots(seen) == {1: 1}, "it may say so later than the others train without it"


def noticed_on_full_hosts(*noticed: int) -> Cluster:
    """Three peers on three slots, of which some are given notice: the coordinator is about to let the first one go."""
    cluster, commands = after(training(3, 2, 1), *map(PeerNoticed, noticed))
    assert [type(one) for one in commands] == [Asked] * len(noticed)
    cluster, commands = after(cluster, wants(4))  # one that leaves at this barrier, and those who come for it
    assert commands == [], "its slot is free in a moment, so nobody is refused"
    return cluster


def test_a_peer_taken_from_a_full_host_is_replaced_when_the_view_has_let_it_go() -> None:
    left, ended = [ViewStarted(view_of(0, 2, version=2))], [TrainingFinished(1, leaving=True), ProcessEnded(1, 0)]
    for first, then in ((left, ended), (ended, left)):  # its process may end before its view does
        cluster, commands = after(noticed_on_full_hosts(1), *first)
        assert commands == [Spawn(3, 0, leaving=(1,))]
        cluster, commands = after(cluster, *then)
        assert commands == [], "and only once"
        assert after(cluster, ready(3))[1] == [JoinerOffer((peer(3),))]


def test_of_two_that_are_taken_away_each_is_replaced_when_it_has_left() -> None:
    cluster, commands = after(noticed_on_full_hosts(1, 2), ViewStarted(view_of(0, 2, version=2)))
    again = Asked(Leave((2,), "noticed", 3), "preemption notice", id=AGENT)
    assert commands == [Spawn(3, 0, leaving=(1,)), again], "with the one under way the job has three"
    cluster, commands = after(cluster, wants(4), ready(3))
    assert commands == [], "the coordinator hears of both together"
    assert after(cluster, ViewStarted(view_of(0, version=3)))[1] == [Spawn(4, 1, leaving=(2,))]


def test_where_a_host_is_lost_meanwhile_the_coordinator_hears_that_there_is_no_slot() -> None:
    noticed = noticed_on_full_hosts(2)
    cluster, _ = after(noticed, HostLost(1, "gone"), *(PeersLost(id, report()) for id in (0, 1)))
    cluster, commands = after(cluster, ViewStarted(formed(cluster)))
    offer = JoinerOffer((), (3,), f"peer 3: {NO_SLOT}")
    assert commands == [offer], "lost with notice, and replaced as lost: once"


def test_the_wait_for_a_slot_has_an_end() -> None:
    cluster, commands = after(noticed_on_full_hosts(1), Tick(), now=102.0)
    assert (commands, cluster.hosts.queue) == ([JoinerOffer((), (3,), f"peer 3: {NO_SLOT}")], ())
    cluster, commands = after(noticed_on_full_hosts(1), wants(3), ViewStarted(view_of(0, 2, version=2)))
    assert (commands, cluster.hosts.queue) == ([], ()), "a smaller size is newer"


def test_the_replacement_of_the_only_peer_cannot_wait_for_its_slot() -> None:
    cluster, _ = after(training(1, 1), PeerNoticed(0))
    offer = JoinerOffer((), (1,), f"peer 1: {NO_SLOT}")
    assert after(cluster, wants(2, leaving=(0,)))[1] == [offer]


def test_a_host_can_be_named_for_new_peers_and_another_one_is_no_substitute() -> None:
    assert after(training(2, 2, 1, 1), wants(3, host=2))[1] == [Spawn(2, 2)]
    offer = sole(JoinerOffer, after(training(2, 2, 0, 1), wants(3, host=1))[1])
    assert offer.missing == (2,)


def test_a_noticed_host_takes_nobody_more_and_is_let_go_when_it_is_empty() -> None:
    cluster, commands = after(training(3, 2, 2), HostNoticed(0), HostNoticed(0))
    assert commands == [Asked(Leave((0, 1), "noticed", 3), "preemption notice", id=AGENT)], "a notice twice is one"
    assert free_slots(cluster) == {1: 1}
    left = view_of(2, version=2)
    cluster, commands = after(
        cluster, TrainingFinished(0, leaving=True), TrainingFinished(1, leaving=True), ViewStarted(left), wants(3)
    )
    assert commands == [Spawn(3, 1)], "there is room for one of the two"
    _, commands = after(cluster, ProcessEnded(0, 0), ProcessEnded(1, 0))
    assert commands == [ReleaseHost(0)]


def test_who_starts_on_a_noticed_host_starts_elsewhere() -> None:
    cluster, _ = after(training(1, 1, 1, 1), wants(2))
    _, commands = after(cluster, HostNoticed(1))
    assert commands[:2] == [Kill(1, "its host will be taken away"), Spawn(2, 2)]


def test_the_peers_of_a_lost_host_are_lost_together_and_replaced_where_there_is_room() -> None:
    cluster, commands = after(training(3, 2, 2), HostLost(0, "host a is lost"))
    assert commands == [AnnounceFailure(0, 1, "host a is lost"), AnnounceFailure(1, 1, "host a is lost")]
    assert after(cluster, ProcessEnded(0, -9)) == (cluster, []), "its end is told in vain"
    cluster, (broken, lead) = after(cluster, PeersLost(2, report()))
    assert isinstance(broken, AnnounceFailure)
    assert isinstance(lead, AdmitSurvivors)
    assert (lead.view.ids, lead.target, set(lead.lost)) == ((2,), 3, {0, 1})
    _, commands = after(cluster, ViewStarted(lead.view), ready(3))
    assert commands[0] == Spawn(3, 1)
    assert commands[1] == JoinerOffer((peer(3),), (4,), f"peer 4: {NO_SLOT}")


def test_before_the_first_view_a_lost_host_ends_the_job() -> None:
    cluster, _ = start_job(2, limits=JOB_LIMITS, now=0.0, hosts=Hosts({0: 1, 1: 1}))
    assert after(cluster, HostLost(1, "gone"))[1] == [Fail(-1, "gone", is_loss=True)]
    without, commands = after(cluster, HostJoined(2, 1), HostLost(2, "gone"))
    assert (without.hosts.slots, commands) == ({0: 1, 1: 1}, []), "no peer of the first view was to come from it"


def test_before_the_first_view_a_host_without_peers_may_go() -> None:
    cluster, _ = start_job(1, limits=JOB_LIMITS, now=0.0, hosts=Hosts({0: 1, 1: 1}))
    assert after(cluster, HostNoticed(1))[1] == [ReleaseHost(1)]
    assert after(cluster, HostLost(1, "gone"))[1] == []
    assert sole(AdmitFirstView, after(cluster, HostLost(1, "gone"), ready(0))[1]).view.ids == (0,)


def test_a_host_that_comes_back_makes_losses_good() -> None:
    cluster, _ = after(training(2, 1, 1), HostLost(1, "gone"), PeersLost(0, report()))
    cluster, _ = after(cluster, ViewStarted(formed(cluster)))
    cluster, commands = after(cluster, HostJoined(1, 1))
    assert commands == [Asked(Resize(2), "a host with free slots has come", id=AGENT)]
    assert after(cluster, wants(2))[1] == [Spawn(3, 1)]


def test_a_host_that_comes_before_the_first_view_brings_the_job_to_its_size() -> None:
    """The job is started again, or begins with ``--min-hosts``, and has fewer slots than peers are wanted."""
    cluster, _ = start_job(1, limits=JOB_LIMITS, now=0.0, hosts=Hosts({0: 1}, goal=2))
    cluster, commands = after(cluster, HostJoined(1, 1))
    assert commands == []
    cluster, commands = after(cluster, ready(0), ViewStarted(view_of(0)))
    assert commands[-1] == Asked(Resize(2), "a host with free slots has come", id=AGENT)
    assert after(cluster, ViewStarted(view_of(0, version=2)))[1] == [], "it asks once"


def test_a_host_that_comes_to_a_job_of_its_intended_size_changes_nothing() -> None:
    shrunk, _ = after(training(2, 1, 1), *let_go(1, 0))
    assert after(shrunk, HostJoined(2, 4))[1] == []


@pytest.mark.parametrize(("requested", "restored"), [(2, []), (3, [3]), (5, [4])])
def test_a_host_that_comes_restores_no_more_than_was_requested_since_the_loss(
    requested: int, restored: list[int]
) -> None:
    reports = [PeersLost(survivor, report()) for survivor in (0, 1)]
    cluster, _ = after(training(4, 2, 2), HostLost(1, "gone"), *reports)
    cluster, _ = after(cluster, ViewStarted(view := formed(cluster)))
    terms = Terms(target_size=requested if requested > 2 else 0)
    person = Asked(Resize(requested), "a person", id="first")
    cluster, _ = after(cluster, Decision(view, terms, requested, requests=(person,)))
    _, commands = after(cluster, HostJoined(2, 2))
    assert [one.what.size for one in commands if isinstance(one, Asked) and isinstance(one.what, Resize)] == restored


def test_a_host_that_comes_where_a_peer_found_no_slot_lets_rank_0_ask_again_once() -> None:
    full, commands = after(training(2, 1, 1), wants(3))
    assert commands == [JoinerOffer((), (2,), f"peer 2: {NO_SLOT}")]
    told, commands = after(full, HostJoined(2, 1))
    request = Asked(Retry(), "a host with free slots has come", id=AGENT)
    assert commands == [request]
    assert after(told, HostJoined(3, 1))[1] == []
    assert after(told, wants(3))[1] == [Spawn(3, 2)]


def test_who_takes_over_says_again_what_may_not_have_been_heard() -> None:
    broken = [HostLost(2, "gone"), PeersLost(0, report()), PeersLost(1, report())]
    cluster, commands = after(training(3, 1, 1, 1), *broken)
    assert after(cluster, LeaderTookOver())[1] == commands[-1:], "the same view: who was admitted already knows it"
    waiting, _ = after(training(3, 1, 1, 1), HostLost(2, "gone"), PeersLost(0, report()))
    assert after(waiting, LeaderTookOver())[1] == [AnnounceFailure(2, 1, "gone")]
    offered, _ = after(training(2, 2, 1), wants(3), ready(2))
    assert after(offered, LeaderTookOver())[1] == [JoinerOffer((peer(2),))]
    noticed, commands = after(training(2, 1, 1), HostNoticed(1))
    assert after(noticed, LeaderTookOver())[1] == commands


# ---- whatever happens ------------------------------------------------------------------------------------------------


@given(st.integers(1, 7), st.data())
def test_two_groups_that_do_not_hear_each_other_never_both_carry_on(size: int, data: st.DataObject) -> None:
    of = {id_: data.draw(st.integers(0, 3)) for id_ in range(size)}
    groups = [set[int](), set[int](), set[int]()]
    for host in range(4):
        groups[data.draw(st.integers(0, 2))].add(host)
    assert sum(has_majority(view_of(*range(size)), of, group) for group in groups) <= 1
    assert has_majority(view_of(*range(size)), of, {0, 1, 2, 3})


def test_an_end_that_the_head_did_not_live_to_tell_of_is_decided_again() -> None:
    cluster, commands = after(training(1, 1), TrainingFinished(0, leaving=False), ProcessEnded(0, 0))
    assert commands[-1] == Done()
    assert after(cluster, LeaderTookOver())[1] == [Done()]
    cluster, commands = after(training(2, 1, 1), ProcessEnded(0, -9), ProcessEnded(1, -9))
    assert commands[-1] == Fail(0, "killed by SIGKILL", others={1: "killed by SIGKILL"})
    assert after(cluster, LeaderTookOver())[1] == commands[-1:]


def test_a_new_leader_kills_the_peers_that_the_former_one_did_not_live_to_kill() -> None:
    cluster, _ = after(
        training(2, 2, 2), TrainingFinished(1, leaving=True), ViewStarted(view_of(0, version=2)), wants(3)
    )
    cluster, commands = after(cluster, wants(2))
    assert commands == [Kill(3, "the job wants 2 peers now")]
    assert after(cluster, LeaderTookOver())[1] == [Kill(3, "the leader before was lost when it had decided so")]
    cluster, _ = after(cluster, ProcessEnded(3, -9))
    assert after(cluster, LeaderTookOver())[1] == []
    cluster, _ = after(training(3, 3), PeersLost(0, report()), PeersLost(1, report()))
    cluster, commands = after(cluster, Tick(), now=20.0)
    assert [kill.peer for kill in all_of(Kill, commands)] == [2]
    assert [kill.peer for kill in after(cluster, LeaderTookOver())[1] if isinstance(kill, Kill)] == [2]


_IDS, _HOSTS = st.integers(0, 8), st.integers(0, 3)
_EVENTS = st.lists(
    st.one_of(
        st.builds(wants, st.integers(1, 7), st.none() | _HOSTS),
        st.builds(ready, _IDS),
        st.builds(lambda id_, leaving: TrainingFinished(id_, leaving=leaving), _IDS, st.booleans()),
        st.builds(ProcessEnded, _IDS, st.sampled_from([0, 1, -9, -15])),
        st.builds(lambda id_, version: PeersLost(id_, report(version)), _IDS, st.integers(1, 8)),
        st.builds(
            lambda ids, version: ViewStarted(view_of(*sorted(ids), version=version)),
            st.sets(_IDS, min_size=1),
            st.integers(2, 8),
        ),
        st.builds(HostJoined, _HOSTS, st.integers(0, 3)),
        st.builds(HostNoticed, _HOSTS),
        st.builds(lambda host: HostLost(host, "gone"), _HOSTS),
        st.just(LeaderTookOver()),
        st.just(Tick()),
    ),
    max_size=25,
)


@given(_EVENTS)
def test_no_peer_is_started_without_a_free_slot_and_none_twice(events: list[Event]) -> None:
    cluster, known = training(3, 2, 1, 2), {0, 1, 2}
    for event in events:
        room = free_slots(cluster)
        cluster, commands = react(cluster, event, 1.0)
        opened = {event.host: event.slots} if isinstance(event, HostJoined) else {}
        spawns = all_of(Spawn, commands)
        assert known.isdisjoint(spawn.peer for spawn in spawns)
        known |= {spawn.peer for spawn in spawns}
        gone = Counter(command.peer for command in commands if isinstance(command, Kill))
        for host, count in Counter(spawn.host for spawn in spawns).items():
            assert host in cluster.hosts.slots, "on a host that takes peers"
            assert count <= max(room.get(host, 0), opened.get(host, 0)) + gone.total() + isinstance(
                event, ProcessEnded | TrainingFinished
            )
        if any(isinstance(command, Fail) for command in commands):
            return
