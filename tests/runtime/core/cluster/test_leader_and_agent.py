"""The coordinator's decisions and the agent's, played against each other: whatever happens when, nobody is left behind.

An offer is on its way until the next barrier, and anything may happen between a barrier's start and the moment at which
the agent hears what it decided. That is all the delay there is between them.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from kungfu.runtime.core.barrier import JoinerOffer, decide
from kungfu.runtime.core.cluster import events
from kungfu.runtime.core.cluster.cluster import Cluster, Hosts, SpareLimits
from kungfu.runtime.core.cluster.transitions import react
from kungfu.runtime.core.next_membership import BarrierInput
from kungfu.runtime.core.request import Asked, Leave, Resize, StopTraining
from kungfu.runtime.core.terms import Terms
from kungfu.runtime.core.view import View
from kungfu.runtime.settings import Limits
from tests.runtime.core.cluster.cluster_steps import JOB_LIMITS, ready, training, view_of

LIMITS = Limits(1, 6)


@dataclass
class World:
    """Two deciders, and what is on its way between them."""

    cluster: Cluster
    view: View
    terms: Terms
    offer: JoinerOffer | None = None
    now: float = 1.0
    wanted: int = 0
    killed: set[int] = field(default_factory=set)
    forwarded: Asked | None = None

    def tell(self, event: events.Event) -> None:
        self.cluster, commands = react(self.cluster, event, self.now)
        for command in commands:
            self.perform(command)

    def perform(self, command: events.Command) -> None:
        assert not isinstance(command, events.Fail | events.AdmitFirstView)
        if isinstance(command, JoinerOffer):
            self.offer = command
        elif isinstance(command, Asked):
            self.forwarded = command
        elif isinstance(command, events.Kill):
            assert command.peer not in self.view.ids
            self.killed.add(command.peer)

    def on_the_way(self) -> list[int]:
        """The joiners, then the spares, that are not ready."""
        coming = [*sorted(self.cluster.starting.items()), *sorted(self.cluster.spares.waiting.items())]
        return [peer for peer, entry in coming if entry.ready is None]


def begun(size: int, hosts: Hosts | None = None, *, spares: int = 0) -> World:
    limits = replace(JOB_LIMITS, spares=SpareLimits(spares))
    cluster = training(*range(size), hosts=hosts, limits=limits)
    return World(cluster, view_of(*range(size)), Terms(8 * size, 8.0), wanted=size)


def happen(world: World, what: str, which: int) -> None:
    """Something between two barriers: a joiner gets ready or ends, time goes by, the killed are gone."""
    on_the_way = world.on_the_way()
    if what == "ready" and on_the_way:
        world.tell(ready(on_the_way[which % len(on_the_way)]))
    elif what == "ends" and on_the_way:
        world.tell(events.ProcessEnded(on_the_way[which % len(on_the_way)], 1))
    elif what == "late":
        world.now += 70.0
        world.tell(events.Tick())
    elif what == "gone":
        for peer in sorted(world.killed & world.cluster.alive):
            world.tell(events.ProcessEnded(peer, -9))


Wish = int | Literal["evict", "replace", "stop"] | None


def hold_barrier(world: World, *, asked: Wish, meanwhile: list[tuple[str, int]]) -> None:
    """A barrier as ``Membership`` holds it: take the offer, decide, tell the agent, admit, begin the view."""
    offer, world.offer = world.offer, None
    forwarded, world.forwarded = world.forwarded, None
    world.wanted = asked if isinstance(asked, int) else world.wanted
    requests = [] if forwarded is None else [forwarded]
    if asked == "stop":
        requests.append(Asked(StopTraining(), "rule", 1))
    elif asked in ("evict", "replace"):
        going, when = world.view.ids[world.view.size // 2], "now" if asked == "evict" else "replaced"
        size = world.view.size - (asked == "evict")
        requests.append(Asked(Leave((going,), when, size, "local_batch_size"), "rule", 1))
    elif asked is not None:
        requests.append(Asked(Resize(asked, "local_batch_size"), "rule", 1))
    decision = decide(BarrierInput(world.view, world.terms, LIMITS, requests=requests, offer=offer))
    for what, which in meanwhile:
        happen(world, what, which)
    if decision.prepare is not None:
        world.tell(decision)
    leaving = set(world.view.ids) - set(decision.view.ids)
    joining = set(decision.view.ids) - set(world.view.ids)
    assert joining <= world.cluster.alive - world.killed
    assert {*decision.view.ids} & {*world.view.ids}, "nobody would hold the state"
    assert {*decision.terms.leaving} <= {*decision.view.ids} - joining, "no joiner is exchanged"
    if not requests:
        assert len(leaving - {*world.terms.departing}) <= len(joining), "nobody leaves for a peer that has not come"
    world.terms = decision.terms
    if decision.view != world.view:
        world.view = decision.view
        world.tell(events.ViewStarted(decision.view))
        assert meanwhile or not (joining and world.offer), (
            "who has joined is not offered again: that would be one barrier more"
        )
    for peer in sorted(leaving):
        world.tell(events.TrainingFinished(peer, leaving=True))
        world.tell(events.ProcessEnded(peer, 0))


happenings = st.lists(
    st.tuples(st.sampled_from(["ready", "ready", "ready", "ends", "late", "gone"]), st.integers(0, 5)), max_size=4
)
requests = st.none() | st.integers(0, 8) | st.sampled_from(["evict", "replace"])


@given(
    st.integers(1, 4),
    st.lists(st.tuples(happenings, requests, happenings), max_size=12),
    st.booleans(),
    st.sampled_from([0, 0, 1, 2]),
)
def test_whatever_is_asked_while_others_come_nobody_is_left_waiting(
    size: int, history: list[tuple], ends: bool, spares: int
) -> None:
    world = begun(size, spares=spares)
    for before, asked, meanwhile in history:
        for what, which in before:
            happen(world, what, which)
        if asked is not None or world.offer is not None:
            hold_barrier(world, asked=asked, meanwhile=meanwhile)
    if ends:
        hold_barrier(world, asked="stop", meanwhile=[])
    else:
        settle(world)
    assert world.terms.target_size == 0
    assert world.cluster.wanted - world.killed == set(world.view.ids), "whoever is on the way is dismissed"
    assert len(world.cluster.spares.waiting) <= spares
    assert (world.terms.leaving, world.terms.departing) == ((), ()) or ends
    assert world.terms.global_batch_size == 8 * world.view.size
    if not ends and "evict" not in [asked for _, asked, _ in history]:
        reached = world.view.size == world.wanted
        assert reached or world.terms.refused_size in {world.wanted, LIMITS.clip(world.wanted)}


@given(st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True), happenings, st.sampled_from([0, 0, 2]))
def test_whoever_is_taken_away_from_full_hosts_is_replaced(
    noticed: list[int], meanwhile: list[tuple[str, int]], spares: int
) -> None:
    world = begun(3, Hosts({0: 2, 1: 1}), spares=spares)
    for peer in noticed:
        # The only one that is left of the job would wait for its own slot: nobody could come for it.
        if peer in world.view.ids and world.view.size > 1:
            world.tell(events.PeerNoticed(peer))
            hold_barrier(world, asked=None, meanwhile=[one for one in meanwhile if one[0] == "ready"])
            settle(world)
    assert world.view.size == 3
    assert world.terms.target_size == 0
    assert world.terms.refused_size == 0
    assert not set(noticed) & set(world.view.ids)


def settle(world: World) -> None:
    """No more requests: joiners get ready one after the other, and barriers are held where offers call for them."""
    for _ in range(20):
        if world.offer is not None or world.terms.departing:
            hold_barrier(world, asked=None, meanwhile=[])
        happen(world, "ready", 0)
