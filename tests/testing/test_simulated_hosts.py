"""The places of a modelled job: host by host at the start, and where a joiner is put."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kungfu.errors import UsageError
from kungfu.runtime.core.cluster.placement import AVOIDED_S
from kungfu.testing.simulated_hosts import HostSlots, SimulatedHosts


def test_the_first_peers_fill_host_after_host() -> None:
    hosts = SimulatedHosts.filled(HostSlots((2, 1, 2)), range(4))
    assert hosts.places == {0: (0, 0), 1: (0, 1), 2: (1, 0), 3: (2, 0)}


def test_a_joiner_starts_on_another_host_than_the_one_where_a_peer_was_let_go() -> None:
    hosts = SimulatedHosts.filled(HostSlots((2, 2)), range(2))
    hosts.stop([1], 10.0)
    assert hosts.start(2, 11.0)
    assert hosts.places[2] == (1, 0)


def test_a_joiner_starts_on_another_host_than_the_peer_that_leaves_for_it() -> None:
    hosts = SimulatedHosts.filled(HostSlots((3, 2)), range(2))
    assert [hosts.start(peer, 1.0, leaving=[1]) and hosts.places[peer] for peer in (2, 3)] == [(1, 0), (1, 1)]
    # There is no other host: it is another slot at least.
    assert hosts.start(4, 1.0, leaving=[1])
    assert hosts.places[4] == (0, 2)


def test_and_in_another_slot_while_there_is_one() -> None:
    hosts = SimulatedHosts.filled(HostSlots((4,)), range(2))
    hosts.stop([1], 10.0)
    assert [hosts.start(peer, 11.0) and hosts.places[peer] for peer in (2, 3, 4)] == [(0, 2), (0, 3), (0, 1)]


def test_a_slot_is_given_out_as_any_other_after_a_time() -> None:
    hosts = SimulatedHosts.filled(HostSlots((4,)), range(2))
    hosts.stop([1], 10.0)
    hosts.start(2, 10.0 + AVOIDED_S)
    assert hosts.places[2] == (0, 1)


def test_where_no_host_has_a_free_slot_nobody_starts_until_somebody_is_dismissed() -> None:
    hosts = SimulatedHosts.filled(HostSlots((1, 1)), range(2))
    assert not hosts.start(2, 0.0)
    hosts.dismiss([1, 2])
    assert hosts.start(2, 0.0)
    assert hosts.places[2] == (1, 0)
    assert hosts.joiners_beside([0, 2], joiners=[2, 7]) == [0, 1]


def test_one_host_has_room_for_all_where_none_are_declared() -> None:
    hosts = SimulatedHosts.filled(HostSlots(), range(3))
    assert {host for host, _ in hosts.places.values()} == {0}
    assert hosts.start(99, 0.0)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: HostSlots((2, 0)), "takes a whole number of at least 1 for each host"),
        (lambda: HostSlots((2.5,)), "takes a whole number of at least 1 for each host"),  # type: ignore[arg-type] # refused
        (lambda: HostSlots(joining_speed=0), "joining_speed=0"),
        (lambda: HostSlots(joining_speed=1.5), "joining_speed=1.5"),
        (lambda: HostSlots(joining_speed=math.nan), "joining_speed=nan"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(made: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        made()
