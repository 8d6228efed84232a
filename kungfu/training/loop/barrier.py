"""The host's side of a barrier: the rules that fired become requests, and the result becomes variables of the graph."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from msgspec import structs

from kungfu.compiler.fired import FiredRule, fired_on_rescale, fired_rules
from kungfu.control import Call, Checkpoint
from kungfu.control.hook import HookRequest
from kungfu.errors import UsageError
from kungfu.rule_requests import HookAnswer, asked_by, call_hook, call_last_hook, requests_of, rescale_sources
from kungfu.runtime.api import (
    Asked,
    BarrierResult,
    Decision,
    RunPosition,
    SaveCheckpoint,
    SetRate,
    SetValue,
    StopTraining,
    Terms,
    View,
    merge,
    with_settings,
)
from kungfu.training.graph.state_checksum import checksum_of
from kungfu.training.graph.training_state import differing_variables
from kungfu.training.graph.variable_io import read_variable, write_variable
from kungfu.training.loop.between_steps import (
    complete_pending,
    described,
    forget_message_time,
    left_pending,
    peer_group,
    set_value,
    total,
)
from kungfu.training.run import Run
from kungfu.training.state.checkpoint_manager import CheckpointRequest
from kungfu.training.state.program_description import machine_in_words
from kungfu.training.state.registered_sync import PendingSync


def join(run: Run) -> None:
    """Enters the job."""
    started = time.monotonic()
    # No rule has fired; but the first use of anything is slow, and at a barrier all others would wait for it.
    _posted(run)

    def opening_terms(view: View, target: int) -> Terms:
        return _continued(_first_terms(run, view.size), run.settings.terms_before, target=target)

    result = run.membership.join(
        run.state, description=described(run), machine=machine_in_words(), opening_terms=opening_terms
    )
    after = result.after
    # The batch of the very first view follows from its size; that of a later view comes with it.
    terms = after.terms if after.terms.global_batch_size else _first_terms(run, after.view.size)
    enter(run, result, terms)
    step = run.steps()
    run.journal.joined(result, step=step)
    run.journal.spanned("join", result, step=step, total_s=time.monotonic() - started)
    left_pending(run, result, step=step)
    _restore_registered(run, step)
    ask_for_departures(run)
    if run.checkpoints.is_wanted or run.pending.stop_reason is not None:
        _ask(run)  # the program did before its step was traced, when no step could carry the request


def hold(run: Run) -> None:
    """The barrier of a running job: averages, calls hooks, decides, and enters the view that comes after.

    Raises:
        KungfuError: A peer is gone or late, or the replicated state differs.
        OpError: A message failed; its meaning is found by `kungfu.training.loop.recovery`.

    Cost:
        A checksum of the state, a round of calls between the peers, and the mean of what layers keep of the data.
    """
    started = time.monotonic()
    run.timer.arrived()
    graph_state = run.graph_state
    # Requests that come from here on ride on the message of the next step, and have a barrier of their own; the
    # rules that fired in this step are answered here.
    graph_state.posts.serve()
    requests = _requests(run)
    # Kept until the barrier has answered: should it break, the next one is asked for the same. Values are set
    # before the next step anyway, and the program may change them in it.
    run.pending.unanswered = tuple(one for one in requests if not isinstance(one.what, SetValue))
    asked = time.monotonic()
    average_statistics(run)
    prepared = {"requests": asked - started, "statistics": time.monotonic() - asked}
    result = run.membership.hold_barrier(
        run.state,
        run.terms,
        requests=requests,
        shadows=(*run.pending.shadows,),
        adjust=partial(adjusted_terms, run),
        speeds=_speeds(run) if run.rank == 0 else {},
        compared="all" if graph_state.posts.checksum.is_unlike() else "part",
    )
    run.pending.shadows.clear()
    run.pending.unanswered, result = None, replace(result, parts={**prepared, **result.parts})
    # A new view: this peer takes its place in it, or leaves. Else only settings may have changed.
    changed = result.before is not None and result.after.view.version != result.before.view.version
    if changed:
        enter(run, result, result.after.terms)
        ask_for_departures(run)
    else:
        _put_in_force(run, result.after.terms)
    step = run.steps()
    left_pending(run, result, step=step)
    _request_checkpoints(run, requests)
    forget_message_time(run)
    stop_s = time.monotonic() - started
    if changed:
        write_variable(graph_state.times.rescale_seconds, stop_s)
    run.timer.held(stop_s, changed=changed)
    run.journal.superseded(result.after.superseded)
    run.journal.passed(result, step=step, stop_s=stop_s)
    write_variable(graph_state.posts.halted, run.left or run.stopped)
    if changed:
        what = "leave" if result.rank is None else "rescale"
        run.journal.spanned(what, result, step=step, total_s=stop_s)


def finish(run: Run) -> None:
    """Training is over on all peers: the averaged state becomes the job's, and the states are compared."""
    # A joiner that came in at the last barrier has done by now what that barrier left.
    complete_pending(run)
    _request_checkpoints(run, _last_requests(run))
    average_statistics(run)
    run.pending.sync = PendingSync()
    complete_pending(run)
    run.membership.final_barrier(run.state, run.terms, shadows=(*run.pending.shadows,))


def checkpoint(run: Run, request: CheckpointRequest) -> None:
    """Asks for a checkpoint at the barrier after the next step; rank 0's call counts, the others remember it."""
    run.checkpoints.request(request)
    _ask(run)


def stop(run: Run, reason: str) -> None:
    """Asks for the end of training at the barrier after the next step; rank 0's call counts, as of a checkpoint."""
    run.pending.stop_reason = reason
    _ask(run)


def renew_stop(run: Run) -> None:
    """Rank 0 was lost, which may not have carried out the end of training: the one after it requests it again."""
    if run.pending.stop_reason is not None:
        _ask(run)


def _ask(run: Run) -> None:
    """Rank 0 requests a barrier. Before the first step no step can carry the request: `join` does it."""
    if run.standing.is_in_job and run.rank == 0:
        run.graph_state.posts.others.ask()


def read_registered(run: Run, *, compared: bool) -> None:
    """Reads the registered values once, where joiners that the next barrier may admit take them, or for a checksum.

    Only between two steps from Python: a loop in the graph may be writing them.

    Args:
        compared: True if a checksum should be put on the message of the next step.
    """
    registry = run.registry
    joins = registry.has_agreed_values and bool(run.terms.target_size or run.terms.leaving)
    if joins or compared:
        registry.collect()
    if joins:
        run.state.registered_read(step=run.steps() + 1)


def _restore_registered(run: Run, step: int) -> None:
    """A joiner has the registered values that came with the state, until those of the next step come."""
    registry, state = run.registry, run.state
    # Those who gave them had read them before the step in whose barrier this peer came in.
    if not registry.has_agreed_values or state.registered_before() != step or step == 0:
        return
    registry.restore()
    # What a loop gives beside them, as what the callbacks of `fit` keep, comes before the next step. Until then
    # this peer counts as one without state: where every other one is lost, the job ends and says so, and its
    # checkpoints have all of it; it never continues with callbacks that have lost what they kept.
    if not run.declared.has_loop_state:
        run.membership.mark_state_complete()


def offer_checksum(run: Run) -> None:
    """Between two steps: a checksum of all that is equal on all peers rides on the message of the next one."""
    run.graph_state.posts.checksum.offer(checksum_of(list(run.checkpoints.state().classes.shared.values())))


def average_statistics(run: Run) -> None:
    """Statistics that layers keep of the data become their mean over peers, or those of rank 0.

    Cost:
        A pass over their memory and a message of 64 bytes for each. Those that are the same on all are not sent:
        tables that no step updates are among them, and may be large.
    """
    classes = run.state.classes
    if run.size == 1:
        return
    peer_group(run, tag="values of rank 0").assign_from_rank(list(classes.of_rank_0.values()))
    variables = list(classes.averaged.values())
    if not variables:
        return
    places = differing_variables(variables, size=run.size, total=partial(total, run, tag="statistics"))
    if not places:
        return
    named = zlib.crc32(repr(places).encode())  # other tensors travel under another name
    read = [variables[place].read_value() for place in places]
    for place, mean in zip(places, total(run, read, scale=1.0 / run.size, tag=f"means {named:08x}"), strict=True):
        variables[place].assign(mean)


def enter(run: Run, result: BarrierResult, terms: Terms) -> None:
    """Takes this peer's place in another view, under its terms; without a rank it has left the job."""
    view, rank = result.after.view, result.rank
    standing, variables = run.standing, run.graph_state.view
    standing.rank, standing.size, standing.source = rank, view.size, next(iter(result.sources), 0)
    variables.assign(version=view.version, size=view.size, rank=-1 if rank is None else rank)
    # The last step was done by other peers: its time says nothing of this view.
    write_variable(run.graph_state.times.step_seconds, math.nan)
    _put_in_force(run, terms)
    run.timer.entered()
    if not run.registry.has_agreed_values:  # else it is complete when those values have come
        run.membership.mark_state_complete()


def ask_for_departures(run: Run) -> None:
    """Asks for a barrier after the next step where peers stay only until others hold the state: by then they do."""
    if run.rank == 0 and run.terms.departing:
        run.graph_state.posts.changes.ask()


def _put_in_force(run: Run, terms: Terms) -> None:
    """Puts terms in force at this peer."""
    rate, progress = run.rate, run.graph_state.progress
    # A rule has set the learning rate: a new ramp, counted in its own unit.
    if rate is not None and terms.ramp != run.terms.ramp:
        done = progress.step if terms.ramp is not None and terms.ramp.unit == "steps" else progress.trained
        rate.put_in_force(terms.ramp, done=int(read_variable(done)))
    run.standing.terms = terms
    run.graph_state.view.assign_terms(terms)
    progress.skip_remainder(terms.global_batch_size)


# ---- what is asked for -----------------------------------------------------------------------------------------------


def _requests(run: Run) -> tuple[Asked, ...]:
    """The requests that this peer brings to the barrier: its rules', and rank 0's also those from outside."""
    membership, call = run.membership, partial(_called, run, call_hook)
    requests = [*requests_of(_posted(run), membership.view, call=call, speeds=partial(_speeds, run))]
    unanswered = run.pending.unanswered or ()
    if run.pending.stop_reason is not None and run.rank == 0:
        requests.append(Asked(StopTraining(), run.pending.stop_reason, run.steps()))
    # Only rank 0 has one: from `kungfu-run`, the job's API or a scheduler.
    external = membership.pop_external_request()
    if external is not None:
        # One that the barrier before this one was asked for already was sent again.
        unanswered = tuple(one for one in unanswered if (one.id, one.what) != (external.id, external.what))
        requests.append(replace(external, step=run.steps()))
    # The barrier before this one broke: of two requests for one thing the newer wins.
    requests += unanswered
    _set_values(run, requests)
    return tuple(requests)


def _last_requests(run: Run) -> list[Asked]:
    """The requests of the last step, which no barrier follows: checkpoints, and what its hooks set."""
    fired = [one for one in _posted(run) if isinstance(one.action, (Call, Checkpoint))]
    requests, run.pending.unanswered = [*(run.pending.unanswered or ())], None
    requests += requests_of(fired, run.membership.view, call=partial(_called, run, call_last_hook))
    run.journal.superseded(_set_values(run, requests))
    return requests


def _set_values(run: Run, requests: Sequence[Asked]) -> Sequence[Asked]:
    """Registered values are set before the next step, or the end; gives the requests that others came before."""
    merged = merge(one for one in requests if isinstance(one.what, SetValue))
    for one in merged:
        if isinstance(one.what, SetValue) and not one.superseded_by:
            set_value(run, one.what.name, one.what.value, by=one.by)
    return [one for one in merged if one.superseded_by]


def _request_checkpoints(run: Run, requests: Sequence[Asked]) -> None:
    for one in requests:
        if isinstance(one.what, SaveCheckpoint):
            run.checkpoints.request(CheckpointRequest(one.by))


def _posted(run: Run) -> list[FiredRule]:
    """The rules that fired since the last barrier, once: in the step that carried a post, and in the one before."""
    plan, rules, last = run.plan, run.graph_state.rules, run.steps()
    fired = list[FiredRule]()
    for step in (last - 1, last):
        posted = rules.of_step(step)
        fired += fired_rules(plan, posted.fetched(), step=step)
        write_variable(posted.fired, [False] * posted.fired.shape[0])
    return fired


def _speeds(run: Run) -> dict[int, float]:
    """The speed of each peer by id, as a fraction of the median's, where a policy measures it; agreed."""
    if run.plan.straggler_fractions is None:
        return {}
    step_record, ids = run.graph_state.metrics.step_record, run.membership.view.ids
    fractions = step_record.straggler_fractions(read_variable(step_record.packed).tolist())
    # Those of the step that ends in this barrier.
    return dict(zip(ids, fractions, strict=True)) if len(fractions) == len(ids) else {}


def _called(run: Run, call: Callable[..., HookAnswer], fired: FiredRule, action: Call) -> Sequence[HookRequest]:
    """The requests of a hook, which ``call`` calls."""
    answer = call(fired, action, size=run.size)
    rates = [one for one in answer.requests if one.kind == "set_learning_rate"]
    if rates and run.rate is None:
        raise UsageError(
            f"hook {fired.rule!r} called control.{rates[0]}, but several optimizers are attached: it must be clear "
            "whose rate that is; attach one optimizer"
        )
    run.journal.called(fired, answer)
    return answer.requests


def adjusted_terms(run: Run, before: View, decision: Decision) -> Terms:
    """The terms of a decision, on the coordinator: with the settings that a rescale brings and rules request."""
    graph_state, rate = run.graph_state, run.rate
    position = RunPosition(
        steps=run.steps(),
        samples=int(read_variable(graph_state.progress.trained)),
        epoch_samples=int(read_variable(graph_state.progress.samples)),
        learning_rate=math.nan if rate is None else rate.ramp_start(),
    )

    def on_rescale(previous_size: int, size: int) -> list[Asked]:
        changes = _settings_on_rescale(run, previous_size, size, decision)
        run.journal.set(changes)
        return [_on_scale(run, setting) for setting in changes]

    scaled = replace(decision, settings=tuple(map(partial(_on_scale, run), decision.settings)))
    terms = with_settings(scaled, before=(before, run.terms), position=position, on_rescale=on_rescale)
    run.journal.set(decision.settings)
    return terms


def _settings_on_rescale(run: Run, previous_size: int, size: int, decision: Decision) -> list[Asked]:
    """The settings that rules on a rescale choose from the new size."""
    step, rate, sizes, terms = run.steps(), run.rate, (previous_size, size), (run.terms, decision.terms)
    epoch_samples = int(read_variable(run.graph_state.progress.samples))
    sources = rescale_sources(sizes, terms, limits=run.settings.limits, step=step, epoch_samples=epoch_samples)
    sources["learning_rate"] = math.nan if rate is None else rate.destined()
    run.journal.shadowed(fired_on_rescale(run.plan, sources, step=step, mode="shadow"))
    return [asked_by(one) for one in fired_on_rescale(run.plan, sources, step=step)]


def _on_scale(run: Run, asked: Asked) -> Asked:
    """A learning rate on the scale of the user's schedule, where there is one; other settings as they are."""
    rate = run.rate
    if not isinstance(asked.what, SetRate) or rate is None:
        return asked
    return replace(asked, what=structs.replace(asked.what, rate=rate.on_scale(asked.what.rate)))


def _first_terms(run: Run, size: int) -> Terms:
    """The batch of the first view; it follows from rank 0's, which came with the state: all peers agree on it."""
    # Without a loader each peer brings as many samples as rank 0; a resumed checkpoint has a batch in force.
    batch, checkpoints, rate = int(read_variable(run.graph_state.progress.batch)), run.checkpoints, run.rate
    whole = batch * size if run.declared.batch is None else checkpoints.batch_in_force(batch)
    if whole < size:
        raise UsageError(f"batch_size={whole} is smaller than the cluster of {size} peers: each needs a sample")
    ramp = None if rate is None else rate.first_ramp(steps=run.steps())
    return checkpoints.continued(Terms(global_batch_size=whole, batch_per_peer=whole / size, ramp=ramp))


def _continued(first: Terms, before: Terms | None, *, target: int) -> Terms:
    """The first terms of a phase, with what lasts of those of the phase before.

    Args:
        first: With the batch of the phase.
        before: At the end of the phase before; ``None`` if this peer was not in it.
        target: The size of the job with those on their way, 0 if none are.
    """
    if before is None:
        return replace(first, target_size=target)
    return replace(
        before, global_batch_size=first.global_batch_size, batch_per_peer=first.batch_per_peer, ramp=first.ramp,
        stopped=False, target_size=target, leaving=(), policy_share=0.0, base_batch=0, base_size=0, refused_size=0,
        replacement_refused=False,
    )  # fmt: skip
