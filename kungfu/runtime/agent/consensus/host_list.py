"""The list of a job's hosts: a part of the replicated state, which the leader changes by one host at a time.

A *listed* host may be asked for its vote, and comes back under its number after a loss. It is *present* while its agent
is a member of the job (`Hosts.known`). Numbers are given by the leader, and a number is never given again.

| event                                                          | change of the list                              |
| -------------------------------------------------------------- | ----------------------------------------------- |
| the job is founded                                             | the hosts of the founder's command line         |
| a host whose name is not listed asks to join                   | it is listed under a new number                 |
| an absent host asks to join with other slots or another port   | it leaves the list, and is listed anew          |
| a host has left, after a notice                                | it leaves the list                              |
| a host is absent for longer than ``--forget-host``             | it leaves the list                              |

A change of one host is a state of its own. The leader makes no other change, and tells no host its number, before this
state is committed: a quorum under every state that may be in force holds it, so the majority before the change and the
majority after it. A new leader commits a state of its own term before it changes the list. A host leaves only if it
runs no peer of a view that may be in force, so it belongs to no majority that could be needed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from kungfu.runtime.core.cluster.cluster import Cluster
from kungfu.runtime.hosts import Host


@dataclass(frozen=True)
class HostList:
    """The listed hosts of a job.

    Args:
        listed: The hosts, by number.
        next_number: The number of the next host that is listed.
        absent_since: The time since which each absent host is absent, in seconds of the leader's clock.

    >>> hosts = founded([Host("a", 2, 28100)]).with_host(Host("b", 1, 28100))
    >>> hosts.number_of("b"), hosts.without([1]).with_host(Host("b", 1, 28100)).number_of("b")
    (1, 2)
    """

    listed: Mapping[int, Host] = field(default_factory=dict)
    next_number: int = 0
    absent_since: Mapping[int, float] = field(default_factory=dict)

    def number_of(self, name: str) -> int | None:
        """The number of the listed host with this name; ``None`` if there is none."""
        return next((number for number, host in self.listed.items() if host.name == name), None)

    def with_host(self, host: Host) -> HostList:
        """The list with another host, whose number is ``next_number``."""
        return replace(self, listed={**self.listed, self.next_number: host}, next_number=self.next_number + 1)

    def without(self, gone: Collection[int]) -> HostList:
        """The list without the hosts with these numbers."""
        if not self.listed.keys() & {*gone}:
            return self
        listed = {number: host for number, host in self.listed.items() if number not in gone}
        return replace(self, listed=listed, absent_since={n: at for n, at in self.absent_since.items() if n in listed})

    def with_present(self, present: Collection[int], now: float) -> HostList:
        """The list with the hosts ``present`` now; any other host keeps the time since which it is absent."""
        absent = {number: self.absent_since.get(number, now) for number in self.listed if number not in present}
        return self if absent == self.absent_since else replace(self, absent_since=absent)

    def covers(self, cluster: Cluster) -> bool:
        """True if all hosts with a peer of the cluster's view are listed.

        A host leaves the list only after a quorum holds a view without its peers: an earlier view, which needs the
        host, is not in force any more."""
        hosts = set[int]() if cluster.view is None else {cluster.hosts.of.get(peer, 0) for peer in cluster.view.ids}
        return hosts <= self.listed.keys()

    def may_leave(self, number: int, clusters: Iterable[Cluster]) -> bool:
        """True if an absent host runs no peer of a view in ``clusters``, the states that may be in force."""
        return number in self.absent_since and not any(
            number in one.hosts.known or any(one.hosts.of.get(peer, 0) == number for peer in one.view.ids)
            for one in clusters
            if one.view is not None
        )

    def to_forget(self, clusters: Collection[Cluster], *, now: float, forget_s: float) -> int | None:
        """The host that is absent for the longest time, if it is absent for more than ``forget_s`` seconds and may
        leave the list; else ``None``."""
        late = [number for number, since in self.absent_since.items() if now - since > forget_s]
        going = [number for number in late if self.may_leave(number, clusters)]
        return min(going, key=lambda number: self.absent_since[number], default=None)


def founded(hosts: Iterable[Host]) -> HostList:
    """The list of a new job, whose hosts have the numbers 0, 1, ... in their order."""
    listed = dict(enumerate(hosts))
    return HostList(listed, len(listed))
