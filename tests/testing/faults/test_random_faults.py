import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.errors import UsageError
from kungfu.testing.faults import (
    ResizeJob,
    SignalHosts,
    SignalPeers,
    parse,
    random_faults,
    random_host_faults,
    survivable_faults,
)


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


def test_the_same_seed_gives_the_same_schedule_and_another_one_another():
    one = random_faults(7, changes=10, kills=4, size=2)
    assert random_faults(7, changes=10, kills=4, size=2) == one
    assert random_faults(8, changes=10, kills=4, size=2) != one
    assert parse("; ".join(map(str, one))) == tuple(one), "it can be written down and read again"


def test_more_kills_than_changes_are_refused():
    with pytest.raises(UsageError, match=r"changes=2, kills=3.*give fewer"):
        random_faults(0, changes=2, kills=3, size=2)


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


@pytest.mark.parametrize(("faults", "hosts"), [(0, 3), (1, 2)])
def test_a_schedule_for_hosts_without_a_fault_or_a_majority_is_refused(faults, hosts):
    with pytest.raises(UsageError, match="three hosts at least"):
        random_host_faults(0, faults=faults, hosts=hosts)


@given(seed=st.integers(0, 10_000), faults=st.integers(1, 12), size=st.integers(1, 5), elastic=st.booleans())
def test_a_schedule_that_a_job_survives_never_hits_all_peers_and_keeps_its_limits(seed, faults, size, elastic):
    drawn = survivable_faults(seed, faults=faults, every=50, size=size, least=1, most=6 if elastic else None)
    assert [one.when.number for one in drawn] == [50 * (place + 1) for place in range(faults)]
    assert all(one.when.relative and one.when.calm for one in drawn)
    for one in drawn:
        if isinstance(one.what, ResizeJob):
            assert elastic
            assert 1 <= one.what.size <= 6
            size = one.what.size
        else:
            assert all(rank < size for rank in one.what.ranks)
            assert getattr(one.what, "verb", "slow") in ("freeze", "slow") or len(one.what.ranks) < size
    assert parse("; ".join(map(str, drawn))) == tuple(drawn), "it can be written down and read again"


@pytest.mark.parametrize(("faults", "every"), [(0, 10), (3, 0)])
def test_no_fault_and_no_step_between_two_are_refused(faults, every):
    with pytest.raises(UsageError, match="one fault and one step at least"):
        survivable_faults(1, faults=faults, every=every, size=2)
