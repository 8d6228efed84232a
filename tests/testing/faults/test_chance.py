import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.errors import UsageError
from kungfu.testing.faults import Resize, Send, parse, random_faults


@given(seed=st.integers(0, 10_000), changes=st.integers(0, 30), share=st.floats(0, 1))
def test_a_random_schedule_has_as_many_changes_and_kills_as_asked_for(seed, changes, share):
    kills, size = round(changes * share), 3
    faults = random_faults(seed, changes=changes, kills=kills, size=size)
    settled = [fault for fault in faults if fault.when.moment == "settled"]
    assert len(settled) == changes, "each change begins when the job has settled"
    deadly = [one for one in settled if isinstance(one.what, Send) and one.what.verb in ("kill", "stop")]
    assert len(deadly) == kills
    for fault in faults:
        if isinstance(fault.what, Resize):
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
