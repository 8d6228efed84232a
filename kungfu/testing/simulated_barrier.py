"""The barriers of a modelled job: as in a real job, they decide on a rule's request one step after the rule fired.

With averages of models they decide after the step in which the rule fired. The code of real peers makes the requests
and decides on them (``kungfu.rule_requests``, ``runtime.core.barrier``); only the peers, their preparation and the
clock are modelled.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kungfu import rule_requests
from kungfu.compiler import FiredRule
from kungfu.compiler.fired import fired_on_rescale
from kungfu.compiler.replay import Replay
from kungfu.control import Call, Checkpoint, Restore
from kungfu.control.action import changes_membership
from kungfu.control.hook import HookRequest
from kungfu.runtime.core.barrier import BarrierInput, Decision, JoinerOffer, decide, with_settings
from kungfu.runtime.core.cluster.placement import NO_SLOT
from kungfu.runtime.core.request import Asked, RestoreCheckpoint, SaveCheckpoint, merge
from kungfu.runtime.core.terms import RunPosition, Terms, awaited_size, meant_size, missed_settings
from kungfu.runtime.core.view import Peer, View
from kungfu.testing.simulated_job import SimulatedJob, moved


@dataclass(frozen=True)
class _Joining:
    """The joiners that the agent prepares."""

    due_step: int  # the joiners are ready after this step,
    due_s: float  # but not before this time of the job, in seconds
    ready: tuple[int, ...]  # the ids of the joiners that have a slot
    missing: tuple[int, ...]  # the ids of the joiners for which no host had a free slot
    asked_by: tuple[tuple[str, int], ...]  # the rules that requested them, with their steps


@dataclass
class SimulatedBarrier:
    """The barriers of a job under a plan, with the pending requests and joiners."""

    job: SimulatedJob
    replay: Replay  # of the plan, over all peers of the job
    posted: list[FiredRule] = field(default_factory=list)  # rules that fired in the last step and await a barrier
    joining: _Joining | None = None
    newest_id: int = 0  # the largest peer id so far
    unmet: dict[tuple[str, int], str] = field(default_factory=dict)  # why a decision had no effect, by rule and step
    # The peers that a rule marked and may replace within its budget, by rule and step.
    ranks: dict[tuple[str, int], tuple[int, ...]] = field(default_factory=dict)
    brought: list[FiredRule] = field(default_factory=list)  # the on-rescale rules that fired at this barrier
    names: set[str] = field(default_factory=set)  # of the checkpoints written so far

    def hold(self, fired: Sequence[FiredRule], *, fractions: Sequence[float] = ()) -> list[FiredRule]:
        """Holds a barrier after a step if requests, joiners or departures are pending; else posts the fired rules.

        Args:
            fired: The acting rules that fired in this step. If a barrier follows this step, it handles these rules as
                well; else they are posted for the next barrier.
            fractions: The speed of each peer as a fraction of the median speed, in rank order; empty if not measured.

        Returns:
            The on-rescale rules that fired, in the order of a real barrier.
        """
        self.brought, offer = [], self._offer()
        # The average of models, which follows the rules, carries their requests in the step in which they fired.
        is_told = bool(self.job.terms.average_every and fired)
        if not self.posted and offer is None and not self.job.terms.departing and not is_told:
            # No pending request or offer calls for a barrier.
            self.posted = list(fired)
        else:
            due, self.posted = [*self.posted, *fired], []
            self._decide(due, offer, fractions)
        self.foresee()
        return self.brought

    def foresee(self) -> None:
        """Tells the job if a barrier follows its next step, and if that barrier may change the cluster."""
        job, changes = self.job, any(changes_membership(one.action) for one in self.posted)
        admits = bool(job.terms.departing) or self._offer(ahead=1) is not None
        job.barrier_due = bool(self.posted) or admits
        job.change_due = changes or admits

    def finish(self) -> None:
        """Calls the hooks of the rules that fired in the last step, since no barrier follows that step."""
        last = [one for one in self.posted if isinstance(one.action, (Call, Checkpoint, Restore))]
        self._checkpoint(rule_requests.requests_of(last, self._view(), call=self._call_last))

    def _decide(self, due: Sequence[FiredRule], offer: JoinerOffer | None, fractions: Sequence[float]) -> None:
        """Decides on the requests and on the offer of joiners, and carries out the decision."""
        self.job.clocks.after_barrier = True
        job, view = self.job, self._view()
        speeds = dict(zip(job.peers, map(float, fractions), strict=False))
        due = [rule_requests.within_replacements(one, view, lambda: speeds) for one in due]
        self.ranks |= {(one.rule, one.step): one.ranks for one in due if one.ranks}
        requests = tuple(rule_requests.requests_of(due, view, call=self._call))
        decision = decide(BarrierInput(view, job.terms, job.limits, requests, offer, speeds), adjust=self._adjusted)
        for one in decision.superseded:
            self.unmet[one.by, one.step] = f"{one.superseded_by} came before it"
        self.unmet |= _missed_size(job.terms, decision)
        self._checkpoint(requests)
        self._enter(view, decision)

    def _checkpoint(self, requests: Iterable[Asked]) -> None:
        """Restores a checkpoint, without effect if no rule has written it, and then writes others, as real peers do."""
        merged = merge(one for one in requests if isinstance(one.what, SaveCheckpoint | RestoreCheckpoint))
        for one in merged:
            if isinstance(one.what, RestoreCheckpoint) and one.superseded_by:
                self.unmet[one.by, one.step] = f"{one.superseded_by} came before it"
            elif isinstance(one.what, RestoreCheckpoint) and one.what.name not in self.names:
                self.unmet[one.by, one.step] = f"no rule has written the checkpoint {one.what.name!r}"
        self.names |= {one.what.name for one in merged if isinstance(one.what, SaveCheckpoint)}

    def _view(self) -> View:
        return View(self.job.view, tuple(_peer(number) for number in self.job.peers))

    def _call_last(self, fired: FiredRule, action: Call) -> Sequence[HookRequest]:
        return self._answered(fired, rule_requests.call_last_hook(fired, action, size=self.job.size))

    def _call(self, fired: FiredRule, action: Call) -> Sequence[HookRequest]:
        return self._answered(fired, rule_requests.call_hook(fired, action, size=self.job.size))

    def _answered(self, fired: FiredRule, answer: rule_requests.HookAnswer) -> Sequence[HookRequest]:
        averages_models = self.job.terms.average_every > 0
        rule_requests.refuse_interval(answer, rule=fired.rule, averages_models=averages_models)
        if not answer.requests and answer.ignored:
            self.unmet[fired.rule, fired.step] = answer.ignored
        return answer.requests

    def _offer(self, *, ahead: int = 0) -> JoinerOffer | None:
        """The agent's offer of joiners, if they are ready at this step or ``ahead`` steps later; else ``None``."""
        joining, job = self.joining, self.job
        if joining is None or job.step + ahead < joining.due_step or job.clocks.total_s < joining.due_s:
            return None
        return JoinerOffer(tuple(_peer(number) for number in joining.ready), joining.missing, NO_SLOT)

    def _adjusted(self, before: View, decision: Decision) -> Terms:
        """The settings of the job after a decision, including those that on-rescale rules and other rules request."""
        job = self.job
        return with_settings(
            decision,
            before=(before, job.terms),
            position=RunPosition(job.step - 1, job.samples_done, job.model.start.epoch_samples, job.learning_rate),
            on_rescale=self._on_rescale,
        )

    def _on_rescale(self, previous_size: int, size: int, decided: Terms) -> list[Asked]:
        """The settings that on-rescale rules choose from the state at the barrier."""
        job, ramp, sizes, terms = self.job, decided.ramp, (previous_size, size), (self.job.terms, decided)
        step, epoch_samples = job.step - 1, job.model.start.epoch_samples
        sources = rule_requests.rescale_sources(sizes, terms, limits=job.limits, step=step, epoch_samples=epoch_samples)
        sources["learning_rate"] = job.learning_rate if ramp is None else ramp.target
        self.brought = fired_on_rescale(self.replay.plan, sources, step=step)
        return [rule_requests.asked_by(one) for one in self.brought]

    def _enter(self, before: View, decision: Decision) -> None:
        """Applies the decision: stores its settings, enters the new view if there is one, and starts missing peers."""
        job, view, terms, offered = self.job, decision.view, decision.terms, self.joining
        changed = view.version != before.version
        job.terms = terms
        if changed:
            self.newest_id = max(self._newest(), *view.ids)
            stay = [rank for rank, peer in enumerate(before.peers) if view.rank_of(peer.id) is not None]
            moved(job, view.version, view.ids)
            self.replay.rescale(view.size, stayed=stay)
        elif offered is not None and not offered.ready:
            # No host had a slot for any of the requested peers.
            self.unmet |= dict.fromkeys(offered.asked_by, NO_SLOT)
        if decision.prepare is not None or changed:
            count = terms.target_size - view.size + len(terms.leaving) if terms.target_size else 0
            self._prepare(count, tuple((one.by, one.step) for one in decision.requests))

    def _prepare(self, count: int, asked_by: tuple[tuple[str, int], ...]) -> None:
        """Prepares ``count`` joiners: keeps joiners that are on their way, and starts more where slots are free."""
        job, now, before = self.job, self.job.clocks.total_s, self.joining
        # Once some joiners have joined, the remaining ones are dismissed.
        kept = () if set(job.joiners) & set(job.peers) else job.joiners[:count]
        job.hosts.dismiss(set(job.joiners) - set(job.peers) - set(kept))
        first = max(self._newest(), *kept, 0) + 1
        ids = range(first, first + count - len(kept))
        started = tuple(peer for peer in ids if job.hosts.start(peer, now, leaving=job.terms.leaving))
        missing = tuple(peer for peer in ids if peer not in started)
        due = job.ready_at() if started else (job.step, now)
        if kept and before is not None:
            # All joiners are offered together, when the last one is ready.
            due = max(due[0], before.due_step), max(due[1], before.due_s)
            asked_by = (*before.asked_by, *asked_by)
        job.joiners = (*kept, *started)
        self.joining = _Joining(*due, job.joiners, missing, asked_by) if count else None

    def _newest(self) -> int:
        return max(self.newest_id, *self.job.peers)


def _missed_size(before: Terms, decision: Decision) -> dict[tuple[str, int], str]:
    """The rule whose batch and rate waited for a size that the job will not have, and the reason; else nothing."""
    reached = meant_size(decision.view, decision.terms)
    waited = missed_settings(before, decision.terms, size=reached)
    if waited is None or decision.requests:
        return {}
    why = f"its batch and rate were to come with {awaited_size(before)} peers, and {reached} are there"
    return {(waited.by, waited.step): why}


def _peer(number: int) -> Peer:
    return Peer(number, "")
