"""The host's side of a barrier: the rules that fired become requests, and the result becomes variables of the graph."""

from __future__ import annotations

import math
import time
import zlib
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import tensorflow as tf
from msgspec import structs

from kungfu.compiler import Plan
from kungfu.compiler.fired import FiredRule, fired_on_rescale, fired_rules
from kungfu.control import Call, Checkpoint
from kungfu.control.hook import HookRequest
from kungfu.errors import UsageError
from kungfu.rule_requests import HookAnswer, asked_by, call_hook, call_last_hook, requests_of
from kungfu.runtime.api import (
    REMEMBERED,
    Asked,
    Attachment,
    BarrierResult,
    Decision,
    Limits,
    Manifest,
    Membership,
    RunPosition,
    SaveCheckpoint,
    SetRate,
    SetValue,
    ShadowAsk,
    StopTraining,
    Terms,
    View,
    merge,
    with_settings,
)
from kungfu.training.between_steps import BetweenSteps
from kungfu.training.checkpoint.manager import CheckpointRequest
from kungfu.training.graph.graph_state import GraphState
from kungfu.training.graph.learning_rate import LearningRateControl
from kungfu.training.graph.state_checksum import checksum_of
from kungfu.training.graph.training_state import TrainingState, differing_variables
from kungfu.training.graph.variable_io import read_variable, write_variable
from kungfu.training.program_description import machine_in_words
from kungfu.training.registered.registered_sync import PeerGroup, PendingSync
from kungfu.training.telemetry.event_log_writer import EventLogWriter
from kungfu.training.telemetry.step_timer import StepTimer

# Names the messages that the peers exchange there, in what is told of a late or a lost peer.
BETWEEN_STEPS = "the exchange of values"


@dataclass
class Barrier:
    """Held by all peers of a view together, from inside the graph; also how a peer comes in and goes out.

    Args:
        graph_state: kungfu's own variables.
        plan: The compiled policies.
        state: The replicated state.
        attachment: Sums over the peers of the view.
        membership: Stands for the job; of one peer where nobody launched it.
        rate: Moves the learning rate, where a policy sets it.
        limits: The least and the most peers.
    """

    graph_state: GraphState
    plan: Plan
    state: TrainingState
    attachment: Attachment
    membership: Membership
    rate: LearningRateControl | None
    limits: Limits
    event_log: EventLogWriter
    between_steps: BetweenSteps
    step_timer: StepTimer = field(default_factory=StepTimer)
    terms: Terms = field(default_factory=Terms)
    place: tuple[int | None, int] = (0, 1)
    source: int = 0  # the rank from whose state all in this view have gone on
    unanswered: tuple[Asked, ...] | None = None  # of a barrier that has not come to its end, if one has not
    shadows: deque[ShadowAsk] = field(default_factory=partial(deque, maxlen=REMEMBERED))  # since the last barrier
    phase: int = 0  # of the job; 0 where it has one training
    terms_before: Terms | None = None  # at the end of the phase before
    stop_reason: str | None = None  # the program asks for the end of training

    @property
    def rank(self) -> int | None:
        """This peer's rank in its view; ``None`` once a decision let it go."""
        return self.place[0]

    @property
    def size(self) -> int:
        """The peers of the view."""
        return self.place[1]

    def join(self, first_terms: Callable[[int], Terms]) -> None:
        """Enters the job.

        Args:
            first_terms: Gives the batch of the very first view, from its size; that of a later view comes with it.
        """
        started = time.monotonic()
        # No rule has fired; but the first use of anything is slow, and at a barrier all others would wait for it.
        self._posted()
        description = self.between_steps.described(self.plan)

        def opening_terms(view: View, target: int) -> Terms:
            return _continued(first_terms(view.size), self.terms_before, target=target)

        result = self.membership.join(
            self.state, description=description, machine=machine_in_words(), opening_terms=opening_terms
        )
        after = result.after
        terms = after.terms if after.terms.global_batch_size else first_terms(after.view.size)
        self.enter(result, terms)
        step = self.steps()
        self.event_log.joined(result, step=step)
        self.event_log.spanned("join", result, step=step, total_s=time.monotonic() - started)
        self.between_steps.entered(result, step=step)
        self._take_registered(step)
        self.ask_for_departures()
        if self.between_steps.checkpoints.is_wanted or self.stop_reason is not None:
            self._ask()  # the program did before its step was traced, when no step could carry the request

    def hold(self) -> None:
        """The barrier of a running job: averages, calls hooks, decides, and enters the view that comes after.

        Raises:
            KungfuError: A peer is gone or late, or the replicated state differs.
            OpError: A message failed; its meaning is found by `kungfu.training.recovery`.

        Cost:
            A checksum of the state, a round of calls between the peers, and the mean of what layers keep of the data.
        """
        started = time.monotonic()
        self.step_timer.arrived()
        graph_state = self.graph_state
        # Requests that come from here on ride on the message of the next step, and have a barrier of their own; the
        # rules that fired in this step are answered here.
        graph_state.posts.serve()
        requests = self._requests()
        # Kept until the barrier has answered: should it break, the next one is asked for the same. Values are set
        # before the next step anyway, and the program may change them in it.
        self.unanswered = tuple(one for one in requests if not isinstance(one.what, SetValue))
        asked = time.monotonic()
        self.average_statistics()
        prepared = {"requests": asked - started, "statistics": time.monotonic() - asked}
        result = self.membership.hold_barrier(
            self.state,
            self.terms,
            requests=requests,
            shadows=(*self.shadows,),
            adjust=self.adjusted_terms,
            speeds=self._speeds() if self.rank == 0 else {},
            compared="all" if graph_state.posts.checksum.is_unlike() else "part",
        )
        self.shadows.clear()
        self.unanswered, result = None, replace(result, parts={**prepared, **result.parts})
        # A new view: this peer takes its place in it, or leaves. Else only settings may have changed.
        changed = result.before is not None and result.after.view.version != result.before.view.version
        if changed:
            self.enter(result, result.after.terms)
            self.ask_for_departures()
        else:
            self._put_in_force(result.after.terms)
        step = self.steps()
        self.between_steps.entered(result, step=step)
        self._take_checkpoints(requests)
        # The seconds of the barrier are no step's: the next busy time and step time have no beginning.
        write_variable(graph_state.times.synchronised, math.nan)
        stop_s = time.monotonic() - started
        if changed:
            write_variable(graph_state.times.rescale_seconds, stop_s)
        self.step_timer.held(stop_s, changed=changed)
        self.event_log.superseded(result.after.superseded)
        self.event_log.passed(result, step=step, stop_s=stop_s)
        if changed:
            what = "leave" if result.rank is None else "rescale"
            self.event_log.spanned(what, result, step=step, total_s=stop_s)

    def finish(self) -> None:
        """Training is over on all peers: the averaged state becomes the job's, and the states are compared."""
        # A joiner that came in at the last barrier has done by now what that barrier left.
        self.complete_pending()
        self._take_checkpoints(self._last_requests())
        self.average_statistics()
        self.between_steps.pending = PendingSync()
        self.complete_pending()
        self.membership.final_barrier(self.state, self.terms, shadows=(*self.shadows,))

    def complete_pending(self) -> None:
        """Before a step: does what the barrier after the last one left to do, if there was one; see `BetweenSteps`."""
        if self.between_steps.pending is None or self.rank is None:
            return
        self.between_steps.complete_pending(
            self.peer_group(), self._manifest(), on_synced=self.membership.mark_state_complete
        )

    def complete_state(self) -> None:
        """In a new view: what a loop gives beside the registered values is here too; see `BetweenSteps.has_more`."""
        self.membership.mark_state_complete()
        if self.rank is not None:
            self.between_steps.take_checkpoints(self._manifest(), rank=self.rank)

    def _manifest(self) -> Manifest:
        batch = int(read_variable(self.graph_state.progress.batch))
        return Manifest(self.steps(), self.size, batch, self.terms, phase=max(1, self.phase))

    def peer_group(self, *, tag: str = BETWEEN_STEPS) -> PeerGroup:
        """The peers of the view, of which this one is one; ``tag`` names their messages."""
        assert self.rank is not None, "this peer was let go"
        return PeerGroup(self.rank, self.size, partial(self._total, tag=tag), self.source)

    def _total(self, tensors: Sequence[Any], *, scale: float = 1.0, tag: str = BETWEEN_STEPS) -> list[Any]:
        prescale, last, order = (
            tf.constant(scale, tf.float64),
            tf.zeros([0], tf.float32),
            self.graph_state.order,
        )
        return self.attachment.all_reduce([*tensors, last], prescale=prescale, order=order, tag=tag)[:-1]

    def checkpoint(self, request: CheckpointRequest) -> None:
        """Asks for a checkpoint at the barrier after the next step; rank 0's call counts, the others remember it."""
        self.between_steps.checkpoints.request(request)
        self._ask()

    def stop(self, reason: str) -> None:
        """Asks for the end of training at the barrier after the next step; rank 0's call counts, as of a checkpoint."""
        self.stop_reason = reason
        self._ask()

    def take_over_stop(self) -> None:
        """Rank 0 was lost, which may not have carried out the end of training: the one after it asks for it again."""
        if self.stop_reason is not None:
            self._ask()

    def _ask(self) -> None:
        """Rank 0 asks for a barrier. Before the first step no step can carry the request: `join` does it."""
        if self.between_steps.is_in_job and self.rank == 0:
            self.graph_state.posts.others.ask()

    def read_registered(self, *, compared: bool) -> None:
        """Reads the registered values once, where joiners that the next barrier may admit take them, or for a checksum.

        Only between two steps from Python: a loop in the graph may be writing them.

        Args:
            compared: Whether a checksum is to be put on the message of the next step.
        """
        registry = self.between_steps.registry
        joins = registry.has_agreed_values and bool(self.terms.target_size or self.terms.leaving)
        if joins or compared:
            registry.collect()
        if joins:
            self.state.registered_read(step=self.steps() + 1)

    def _take_registered(self, step: int) -> None:
        """A joiner has the registered values that came with the state, until those of the next step come."""
        registry, state = self.between_steps.registry, self.state
        # Those who gave them had read them before the step in whose barrier this peer came in.
        if not registry.has_agreed_values or state.registered_before() != step or step == 0:
            return
        registry.restore()
        # What a loop gives beside them, as what the callbacks of `fit` keep, comes before the next step. Until then
        # this peer counts as one without state: where every other one is lost, the job ends and says so, and its
        # checkpoints have all of it; it never continues with callbacks that have lost what they kept.
        if not self.between_steps.has_more:
            self.membership.mark_state_complete()

    def offer_checksum(self) -> None:
        """Between two steps: a checksum of all that is equal on all peers rides on the message of the next one."""
        self.graph_state.posts.checksum.offer(checksum_of(self.between_steps.shared()))

    def average_statistics(self) -> None:
        """Statistics that layers keep of the data become their mean over peers, or those of rank 0.

        Cost:
            A pass over their memory and a message of 64 bytes for each. Those that are the same on all are not sent:
            tables that nobody updates are among them, and may be large.
        """
        classes = self.state.classes
        if self.size == 1:
            return
        self.peer_group(tag="values of rank 0").take(list(classes.of_rank_0.values()))
        variables = list(classes.averaged.values())
        if not variables:
            return
        places = differing_variables(variables, size=self.size, total=partial(self._total, tag="statistics"))
        if not places:
            return
        named = zlib.crc32(repr(places).encode())  # other tensors travel under another name
        read = [variables[place].read_value() for place in places]
        for place, mean in zip(places, self._total(read, scale=1.0 / self.size, tag=f"means {named:08x}"), strict=True):
            variables[place].assign(mean)

    def enter(self, result: BarrierResult, terms: Terms) -> None:
        """Takes this peer's place in another view, under its terms; without a rank it has left the job."""
        view, rank = result.after.view, result.rank
        self.place, self.source = (rank, view.size), next(iter(result.sources), 0)
        variables = self.graph_state.view
        variables.assign(version=view.version, size=view.size, rank=-1 if rank is None else rank)
        # The last step was done by other peers: its time tells nothing of this view.
        write_variable(self.graph_state.times.step_seconds, math.nan)
        self._put_in_force(terms)
        self.step_timer.entered()
        if not self.between_steps.registry.has_agreed_values:  # else it is complete when those values have come
            self.membership.mark_state_complete()

    def ask_for_departures(self) -> None:
        """Asks for a barrier after the next step where peers stay only until others hold the state: by then they do."""
        if self.rank == 0 and self.terms.departing:
            self.graph_state.posts.changes.ask()

    def _put_in_force(self, terms: Terms) -> None:
        """Puts terms in force at this peer."""
        rate, progress = self.rate, self.graph_state.progress
        # A rule has set the learning rate: a new ramp, counted in its own unit.
        if rate is not None and terms.ramp != self.terms.ramp:
            done = progress.step if terms.ramp is not None and terms.ramp.unit == "steps" else progress.trained
            rate.place(terms.ramp, done=int(read_variable(done)))
        self.terms = terms
        self.graph_state.view.assign_terms(terms)
        progress.skip_remainder(terms.global_batch_size)

    # ---- what is asked for -----------------------------------------------------------------------------------------

    def _requests(self) -> tuple[Asked, ...]:
        """The requests that this peer brings to the barrier: its rules', and rank 0's also those from outside."""
        membership, call = self.membership, partial(self._called, call_hook)
        requests = [*requests_of(self._posted(), membership.view, call=call, speeds=self._speeds)]
        unanswered = self.unanswered or ()
        if self.stop_reason is not None and self.rank == 0:
            requests.append(Asked(StopTraining(), self.stop_reason, self.steps()))
        # Only rank 0 has one: from `kungfu-run`, the job's API or a scheduler.
        external = membership.take_external_request()
        if external is not None:
            # One that the barrier before this one was asked for already was sent again.
            unanswered = tuple(one for one in unanswered if not one.is_outside or one.what != external.what)
            requests.append(replace(external, step=self.steps()))
        # The barrier before this one broke: of two requests for one thing the newer wins.
        requests += unanswered
        self._set_values(requests)
        return tuple(requests)

    def _last_requests(self) -> list[Asked]:
        """The requests of the last step, which no barrier follows: checkpoints, and what its hooks set."""
        fired = [one for one in self._posted() if isinstance(one.action, (Call, Checkpoint))]
        requests, self.unanswered = [*(self.unanswered or ())], None
        requests += requests_of(fired, self.membership.view, call=partial(self._called, call_last_hook))
        self.event_log.superseded(self._set_values(requests))
        return requests

    def _set_values(self, requests: Sequence[Asked]) -> Sequence[Asked]:
        """Registered values are set before the next step, or the end; gives the requests that others came before."""
        merged = merge(one for one in requests if isinstance(one.what, SetValue))
        for one in merged:
            if isinstance(one.what, SetValue) and not one.superseded_by:
                self.between_steps.set_value(one.what.name, one.what.value, by=one.by)
        return [one for one in merged if one.superseded_by]

    def _take_checkpoints(self, requests: Sequence[Asked]) -> None:
        for one in requests:
            if isinstance(one.what, SaveCheckpoint):
                self.between_steps.checkpoints.request(CheckpointRequest(one.by))

    def _posted(self) -> list[FiredRule]:
        """The rules that fired since the last barrier, once: in the step that carried a post, and in the one before."""
        plan, rules, last = self.plan, self.graph_state.rules, self.steps()
        fired = list[FiredRule]()
        for step in (last - 1, last):
            posted = rules.of_step(step)
            fired += fired_rules(plan, posted.fetched(), step=step)
            write_variable(posted.fired, [False] * posted.fired.shape[0])
        return fired

    def _speeds(self) -> dict[int, float]:
        """The speed of each peer by id, as a fraction of the median's, where a policy measures it; agreed."""
        if self.plan.straggler_fractions is None:
            return {}
        step_record, ids = self.graph_state.metrics.step_record, self.membership.view.ids
        fractions = step_record.straggler_fractions(read_variable(step_record.packed).tolist())
        # Those of the step that ends in this barrier.
        return dict(zip(ids, fractions, strict=True)) if len(fractions) == len(ids) else {}

    def steps(self) -> int:
        """The steps done so far."""
        return self.graph_state.progress.steps()

    def _called(self, call: Callable[..., HookAnswer], fired: FiredRule, action: Call) -> Sequence[HookRequest]:
        """The requests of a hook, which ``call`` calls."""
        answer = call(fired, action, size=self.size)
        rates = [one for one in answer.requests if one.kind == "set_learning_rate"]
        if rates and self.rate is None:
            raise UsageError(
                f"hook {fired.rule!r} called control.{rates[0]}, but several optimizers are attached: it must be clear "
                "whose rate that is; attach one optimizer"
            )
        self.event_log.called(fired, answer)
        return answer.requests

    def adjusted_terms(self, before: View, decision: Decision) -> Terms:
        """The terms of a decision, on the coordinator: with the settings that a rescale brings and rules ask for."""
        graph_state, rate = self.graph_state, self.rate
        position = RunPosition(
            steps=self.steps(),
            samples=int(read_variable(graph_state.progress.trained)),
            epoch_samples=int(read_variable(graph_state.progress.samples)),
            learning_rate=math.nan if rate is None else rate.position(),
        )

        def on_rescale(previous_size: int, size: int) -> list[Asked]:
            changes = self._settings_on_rescale(previous_size, size, decision)
            self.event_log.set(changes)
            return [self._on_scale(setting) for setting in changes]

        scaled = replace(decision, settings=tuple(map(self._on_scale, decision.settings)))
        terms = with_settings(scaled, before=(before, self.terms), position=position, on_rescale=on_rescale)
        self.event_log.set(decision.settings)
        return terms

    def _settings_on_rescale(self, previous_size: int, size: int, decision: Decision) -> list[Asked]:
        """What the rules on a rescale choose from the new size."""
        graph_state, rate = self.graph_state, self.rate
        step, (base_batch, base_size) = self.steps(), self.terms.base(previous_size)
        sources = {
            "size": size,
            "previous_size": previous_size,
            "step": step,
            "global_batch_size": decision.terms.global_batch_size,
            "epoch_samples": int(read_variable(graph_state.progress.samples)),
            "previous_global_batch_size": self.terms.global_batch_size,
            "base_size": base_size,
            "base_global_batch_size": base_batch,
            "learning_rate": math.nan if rate is None else rate.destined(),
            "min_size": self.limits.minimum,
            "max_size": self.limits.maximum,
        }
        plan = self.plan
        self.event_log.shadowed(fired_on_rescale(plan, sources, step=step, mode="shadow"))
        return [asked_by(one) for one in fired_on_rescale(plan, sources, step=step)]

    def _on_scale(self, asked: Asked) -> Asked:
        """A learning rate on the scale of the user's schedule, where there is one; other settings as they are."""
        rate = self.rate
        if not isinstance(asked.what, SetRate) or rate is None:
            return asked
        return replace(asked, what=structs.replace(asked.what, rate=rate.on_scale(asked.what.rate)))


def _continued(first: Terms, before: Terms | None, *, target: int) -> Terms:
    """The first terms of a phase, with what lasts of those of the phase before.

    Args:
        first: With the batch of the phase.
        before: At the end of the phase before; ``None`` where this peer was not in it.
        target: The size of the job with those on their way, 0 if none are.
    """
    if before is None:
        return replace(first, target_size=target)
    lasting = replace(before, global_batch_size=first.global_batch_size, batch_per_peer=first.batch_per_peer)
    lasting = replace(lasting, ramp=first.ramp, stopped=False, target_size=target, leaving=())
    lasting = replace(lasting, policy_share=0.0, base_batch=0, base_size=0)
    return replace(lasting, refused_size=0, replacement_refused=False)
