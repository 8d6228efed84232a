"""The questions of a job to the world outside of one agent: may this agent found the job, lead it, act on a state?

Two implementations answer them. With `MajorityAgreement`, the default, the agents answer among themselves, without a
server: the hosts that run most of the peers decide (`election`, and the package for the invariants). With
`store_agreement.StoreAgreement` an etcd answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from kungfu.runtime.agent.consensus.election_round import Action, ElectionRound, Stand
from kungfu.runtime.core.cluster.cluster import Cluster
from kungfu.runtime.hosts import Host

if TYPE_CHECKING:
    from kungfu.runtime.agent.consensus.election import Elected

Claim = Literal["granted", "refused", "unknown"]


class Agreement(Protocol):
    """Decides for one agent of a job on several hosts; its main thread calls the methods."""

    def open(self) -> None:
        """Begins the part of this agent; raises ``StoreError`` if a store does not carry out what it is asked."""

    def found(self, job: str, job_exists: bool, is_silent: bool) -> int:
        """Founds the job, unless there is one.

        Args:
            job: The name of the new job, the same in every call.
            job_exists: True if another agent has replied that it is in a job.
            is_silent: True if a host cannot be reached.

        Returns:
            The term of this agent, which leads the job from now on; 0 if it must ask the other agents again.
        """

    def leader(self) -> tuple[str, str] | None:
        """The job that a store named at the last call of ``found``, and the address of its leader; ``None`` if it named
        none."""

    def next_action(self, at: ElectionRound, others: Mapping[int, Host]) -> Action:
        """The next action of this agent, which has lost its leader, after a pre-vote of the ``others``."""

    def stand(self, action: Stand, others: Mapping[int, Host]) -> Elected | None:
        """Stands for election; returns the result if this agent leads from now on, else ``None``."""

    def is_quorum(self, clusters: Sequence[Cluster], hosts: frozenset[int]) -> bool:
        """True if ``hosts`` may continue without the others; ``clusters`` are those that may be in force."""

    def claim(self, hosts: frozenset[int]) -> Claim:
        """Makes sure that only ``hosts``, which hold the newest state of this leader, can lead the job after this one.

        Returns:
            "granted" if the leader may act on its newest state, "refused" if another host leads by now, "unknown" if
            neither is certain at present: the leader asks again.
        """

    def close(self, *, is_over: bool) -> None:
        """Ends the part of this agent; ``is_over`` is True if it leads and the whole job is over."""
