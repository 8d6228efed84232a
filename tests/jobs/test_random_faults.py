"""Schedules drawn at random have the changes that were asked for, and a job can survive each of them."""

from hypothesis import given
from hypothesis import strategies as st

from kungfu.testing.faults import ResizeJob, SignalHosts, SignalPeers, parse
from tests.jobs.random_faults import random_faults, random_host_faults


@given(seed=st.integers(0, 10_000), changes=st.integers(0, 30), share=st.floats(0, 1))
def test_a_random_schedule_has_as_many_changes_and_kills_as_asked_for(seed, changes, share):
    kills, size = round(changes * share), 3
    faults = random_faults(seed, changes=changes, kills=kills, size=size)
    settled = [fault for fault in faults if fault.when.moment == "settled"]
    assert len(settled) == changes, "each change begins when the job has settled"
    deadly = [one for one in settled if isinstance(one.what, SignalPeers) and one.what.verb in ("kill", "freeze")]
    assert len(deadly) == kills
    for fault in faults:
        if isinstance(fault.what, ResizeJob):
            assert 2 <= fault.what.size <= 4
            assert fault.what.size != size, "a resize changes something"
            size = fault.what.size
        else:
            assert all(rank < size for rank in fault.what.ranks)
    assert random_faults(seed, changes=changes, kills=kills, size=3) == faults, "the same seed draws the same"


@given(seed=st.integers(0, 10_000), faults=st.integers(1, 8))
def test_a_random_schedule_for_hosts_hits_one_host_and_never_leaves_most_peers_on_it(seed, faults):
    drawn = random_host_faults(seed, faults=faults)
    hosts = [place for place, one in enumerate(drawn) if isinstance(one.what, SignalHosts)]
    hit = [place for place in hosts if drawn[place].what.verb != "thaw"]
    assert len(hit) == 1
    assert drawn[hit[0]].what.hosts[0] < 2, "the last one has the room for those of another"
    at_peers = [one for one in drawn if isinstance(one.what, SignalPeers)]
    assert all(one.what.verb in ("kill", "freeze") for one in at_peers), "a replacement takes the slot of who was lost"
    assert len([one for one in drawn if not (isinstance(one.what, SignalHosts) and one.what.verb == "thaw")]) == faults
    assert parse("; ".join(map(str, drawn))) == tuple(drawn), "it can be written down and read again"
