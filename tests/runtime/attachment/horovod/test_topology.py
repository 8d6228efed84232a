"""Ranks among hosts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kungfu.errors import UsageError
from kungfu.runtime.attachment.horovod.topology import Topology, topology_of


def test_hosts_of_different_sizes_are_counted_only_where_they_have_the_local_rank() -> None:
    addresses = ["a:1", "b:1", "a:2", "c:1", "c:2"]
    across = [(p.local_rank, p.local_size, p.cross_rank, p.cross_size) for p in _all(addresses)]
    assert across == [(0, 2, 0, 3), (0, 1, 1, 3), (1, 2, 0, 2), (0, 2, 2, 3), (1, 2, 1, 2)]


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=12))
def test_local_and_cross_ranks_number_their_groups_without_gaps(hosts: list[str]) -> None:
    places = _all([f"{host}:1" for host in hosts])
    for mine in places:
        local = [p.local_rank for p in places if p.host == mine.host]
        cross = [p.cross_rank for p in places if p.local_rank == mine.local_rank]
        assert sorted(local) == list(range(mine.local_size))
        assert sorted(cross) == list(range(mine.cross_size))


@pytest.mark.parametrize("address", ["somewhere", ":80", "a:", "a:b"])
def test_an_address_that_is_not_host_and_port_is_refused_with_its_text(address: str) -> None:
    with pytest.raises(UsageError, match=f"{address!r}; expected is HOST:PORT"):
        topology_of(0, addresses=[address])


def test_a_rank_outside_the_view_is_refused() -> None:
    with pytest.raises(UsageError, match=r"rank 2 is not in a view of 2 peers; allowed is 0\.\.1"):
        topology_of(2, addresses=["a:1", "b:1"])


def _all(addresses: list[str]) -> list[Topology]:
    return [topology_of(rank, addresses=addresses) for rank in range(len(addresses))]
