import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.errors import UsageError
from kungfu.runtime.core.request import Resize
from kungfu.testing.faults import Fault, SignalHosts, SignalPeers, SlowPeers, When, parse, survivable_faults


def test_every_form_of_a_fault_is_read():
    written = """
    at step 40 kill rank 1   # the first one
    at barrier 3 freeze rank 0; at barrier 4 thaw rank 0
    at next peer ended after 0.25 s notice ranks 0,2
    once settled resize 5
    at next spawned kill joiner
    once settled freeze host 1; at next host lost thaw hosts 0,2
    """
    assert parse(written) == (
        Fault(When("step", 40), SignalPeers("kill", (1,))),
        Fault(When("barrier", 3), SignalPeers("freeze", (0,))),
        Fault(When("barrier", 4), SignalPeers("thaw", (0,))),
        Fault(When("next", event="peer ended", after_s=0.25), SignalPeers("notice", (0, 2))),
        Fault(When("settled"), Resize(5)),
        Fault(When("next", event="spawned"), SignalPeers("kill")),
        Fault(When("settled"), SignalHosts("freeze", (1,))),
        Fault(When("next", event="host lost"), SignalHosts("thaw", (0, 2))),
    )


def test_a_fault_says_itself_in_words_that_are_read_again():
    faults = parse(
        "at step 4 kill ranks 0,1; at next lost after 0.5 s freeze joiner; once settled resize 2; "
        "at step 9 notice host 1; at step +9 once settled slow ranks 0,1 to 30 % for 2.5 s; now checkpoint; "
        "now freeze host 1 for 3 s"
    )
    assert parse("; ".join(str(fault) for fault in faults)) == faults


@pytest.mark.parametrize(
    "words",
    [
        "at step x kill rank 1",
        "kill rank 1",
        "at step 4 kill",
        "at step 4 resize two",
        "at step 4 kill host a",
        "now kill",
    ],
)
def test_words_that_are_no_fault_are_named(words):
    with pytest.raises(UsageError, match="is no fault; write a moment") as caught:
        parse(f"at step 3 resize 2; {words}")
    assert repr(words) in str(caught.value)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("now kill rank 1 for 3 s", "kill is done at once"),
        ("now slow rank 1 for 3 s", "slow takes peers, a share"),
        ("now slow rank 1 to 100 % for 3 s", "slow takes peers, a share"),
        ("now slow host 1 to 50 % for 3 s", "slow takes peers, a share"),
        ("now freeze rank 1 to 50 % for 3 s", "only slow takes a share"),
    ],
)
def test_parts_of_a_fault_that_do_not_go_together_are_named(words, why):
    with pytest.raises(UsageError, match=why):
        parse(words)


def test_the_coordinator_is_rank_0_and_seconds_are_those_of_the_fault():
    (coordinator, slow) = parse("now kill coordinator; at step +5 slow rank 1 to 30% for 4 s")
    assert coordinator.what == SignalPeers("kill", (0,))
    assert (slow.what, slow.when) == (SlowPeers((1,), 30, 4.0), When("step", 5, relative=True))


@given(seed=st.integers(0, 10_000), faults=st.integers(1, 12), size=st.integers(1, 5), elastic=st.booleans())
def test_a_schedule_that_a_job_survives_never_hits_all_peers_and_keeps_its_limits(seed, faults, size, elastic):
    drawn = survivable_faults(seed, faults=faults, every=50, size=size, least=1, most=6 if elastic else None)
    assert [one.when.number for one in drawn] == [50 * (place + 1) for place in range(faults)]
    assert all(one.when.relative and one.when.calm for one in drawn)
    for one in drawn:
        if isinstance(one.what, Resize):
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
