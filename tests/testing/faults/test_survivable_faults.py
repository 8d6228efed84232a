import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.errors import UsageError
from kungfu.runtime.core.request import Resize
from kungfu.testing.faults import parse, survivable_faults


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
