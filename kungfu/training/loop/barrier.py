"""The host's side of a barrier: turns rules that fired into requests, and writes the result to the graph."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import tensorflow as tf

from kungfu.compiler.fired import FiredRule, fired_on_rescale, fired_rules
from kungfu.control import Call, Checkpoint, Restore, Synchronise
from kungfu.control.hook import HookRequest
from kungfu.errors import UsageError
from kungfu.rule_requests import (
    HookAnswer,
    asked_by,
    call_hook,
    call_last_hook,
    refuse_interval,
    requests_of,
    rescale_sources,
)
from kungfu.runtime.api import (
    Asked,
    BarrierResult,
    Decision,
    RestoreCheckpoint,
    RunPosition,
    SaveCheckpoint,
    SetValue,
    StopTraining,
    Terms,
    View,
    merge,
    with_settings,
)
from kungfu.training.graph.training_state import differing_variables
from kungfu.training.graph.variable_io import read_variable, write_variable
from kungfu.training.loop import between_steps
from kungfu.training.loop.restoring import may_restore, request_restore
from kungfu.training.run import Run
from kungfu.training.state.checkpoint_manager import CheckpointRequest
from kungfu.training.state.program_description import machine_in_words
from kungfu.training.state.registered_sync import PendingSync


def join(run: Run, *, meanwhile: Callable[[], None]) -> None:
    """Joins the job, and enters its current view; ``meanwhile`` is called regularly until this peer is admitted."""
    started = time.monotonic()
    # No rule has fired yet: this call only loads code, for which all other peers would otherwise wait at a barrier.
    _posted(run)

    def opening_terms(view: View, target: int) -> Terms:
        return _continued(_first_terms(run, view.size), run.settings.terms_before, target=target)

    result = run.membership.join(
        run.state, description=between_steps.described(run), machine=machine_in_words(), opening_terms=opening_terms,
        meanwhile=meanwhile,
    )  # fmt: skip
    after = result.after
    # The batch size of the first view depends on the view's size; the terms of a later view include the batch size.
    terms = after.terms if after.terms.global_batch_size else _first_terms(run, after.view.size)
    enter(run, result, terms)
    step = run.steps()
    run.journal.joined(result, step=step)
    run.journal.spanned("join", result, step=step, total_s=time.monotonic() - started)
    between_steps.left_pending(run, result, step=step)
    _restore_registered(run, step)
    ask_for_departures(run)
    if run.checkpoints.is_wanted or run.pending.stop_reason is not None:
        ask(run)  # requested before the step was traced, when no step could carry the request


def hold(run: Run) -> None:
    """Runs the barrier of a running job: averages statistics, calls hooks, decides, and enters the resulting view.

    Raises:
        KungfuError: A peer is lost or late, or the replicated state differs.
        OpError: A message failed; `kungfu.training.loop.recovery` finds the cause.

    Cost:
        A checksum of the state, a round of calls between the peers, and the mean of the layers' statistics.
    """
    started = time.monotonic()
    run.timer.arrived()
    graph_state = run.graph_state
    # Requests made from here on ride on the message of the next step, and a later barrier answers them; this barrier
    # answers the rules that fired in this step.
    graph_state.posts.serve()
    requests = _requests(run)
    # Kept until the barrier has answered: if it fails, the next barrier receives the same requests. Values are set
    # before the next step in any case, and the program may change them in that step.
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
    # If there is a new view, this peer enters it, or leaves the job. Otherwise only settings may have changed.
    changed = result.before is not None and result.after.view.version != result.before.view.version
    if changed:
        enter(run, result, result.after.terms)
        ask_for_departures(run)
    else:
        _put_in_force(run, result.after.terms)
    step = run.steps()
    between_steps.left_pending(run, result, step=step)
    _request_checkpoints(run, requests)
    request_restore(run, requests)
    between_steps.forget_message_time(run)
    stop_s = time.monotonic() - started
    if changed:
        write_variable(graph_state.times.rescale_seconds, stop_s)
    run.timer.held(stop_s, changed=changed)
    run.journal.superseded(result.after.superseded)
    run.journal.held(result)
    run.journal.passed(result, step=step, stop_s=stop_s)
    write_variable(graph_state.posts.halted, run.left or run.stopped)
    if changed:
        what = "leave" if result.rank is None else "rescale"
        run.journal.spanned(what, result, step=step, total_s=stop_s)


def finish(run: Run) -> None:
    """Ends training on all peers: averages the layers' statistics, in a run that averages models the models too, and
    compares the states."""
    # After this call, a joiner of the last barrier has done its pending work too.
    between_steps.complete_pending(run)
    requests = _last_requests(run)
    _request_checkpoints(run, requests)
    request_restore(run, requests)
    run.pending.restoring.is_last = True
    if run.models is not None and run.rank is not None and not run.models.is_in_force(run.steps()):
        average_models(run, rank=run.rank, size=run.size, is_source=True)
    average_statistics(run)
    run.pending.sync = PendingSync()
    between_steps.complete_pending(run)
    run.membership.final_barrier(run.state, run.terms, shadows=(*run.pending.shadows,))


def restore_last(run: Run) -> bool:
    """Leaves a restore that was requested in the last step to the next exchange, before `finish`, as ``fit`` needs.

    Checkpoints that were requested in the last step wait for `finish`. Returns False if no rule can restore the model.
    """
    if not may_restore(run):
        return False
    requests = _last_requests(run)
    request_restore(run, requests)
    run.pending.restoring.is_last = True
    run.pending.unanswered = tuple(one for one in requests if isinstance(one.what, SaveCheckpoint))
    run.pending.sync = run.pending.sync or PendingSync()
    return True


def ask(run: Run) -> None:
    """Requests a barrier after the next step, on rank 0; if this peer is in no view yet, `join` does so later."""
    if run.standing.is_in_job and run.rank == 0:
        run.graph_state.posts.others.ask()


def _restore_registered(run: Run, step: int) -> None:
    """Sets a joiner's registered values to those received with the state; they are synchronised again before a step."""
    registry, state = run.registry, run.state
    # The values are valid only if the senders read them before the step whose barrier admitted this peer.
    if not registry.has_agreed_values or state.registered_before() != step or step == 0:
        return
    registry.restore()
    # Further values of a loop, such as those of the callbacks of `fit`, arrive before the next step. Until then this
    # peer counts as a peer without state: if all others are lost, the job ends with an error, and its checkpoints have
    # the complete state; the job never continues with callbacks that have lost their values.
    if not run.declared.has_loop_state:
        run.membership.mark_state_complete()


def average_statistics(run: Run) -> None:
    """Averages the layers' statistics over the peers, or assigns rank 0's values.

    Cost:
        One pass over the variables' memory, and a message with 64 bytes for each variable. Variables that are equal on
        all peers are not sent, such as tables that no step updates, which may be large.
    """
    classes = run.state.classes
    if run.size == 1:
        return
    between_steps.peer_group(run, tag="values of rank 0").assign_from_rank(list(classes.of_rank_0.values()))
    variables = list(classes.averaged.values())
    if not variables:
        return
    places = differing_variables(variables, size=run.size, total=partial(between_steps.total, run, tag="statistics"))
    if not places:
        return
    named = zlib.crc32(repr(places).encode())  # a message with other tensors has another name
    read = [variables[place].read_value() for place in places]
    means = between_steps.total(run, read, scale=1.0 / run.size, tag=f"means {named:08x}")
    for place, mean in zip(places, means, strict=True):
        variables[place].assign(mean)


def average_models(run: Run, *, rank: int, size: int, is_source: bool) -> None:
    """Averages the models that the peers of a view hold outside of a step: at the end, or after a loss of peers.

    A peer's model is weighted by its samples since the last average. A source that has the average of these steps
    already, because only other peers missed the end of the message, gives its model to all.

    Args:
        is_source: True if this peer's model counts; False if the peer has just fetched a model.

    Cost:
        Two messages: a few numbers, then weights and slots; only the first if all sources have the average.
    """
    models, step = run.models, run.steps()
    assert models is not None
    own, counted = models.held()
    rows = np.zeros((4, size))
    rows[:, rank] = is_source, models.is_in_force(step), own, models.lost
    sources, averaged, windows, lost = between_steps.total(run, [tf.constant(rows)], tag="windows")[0].numpy()
    models.lost = 0
    if not is_source:  # the state that this peer has fetched includes other sums
        models.sums.clear()
    # Some sources have the average already: if not all, the others receive the model of the first of them.
    if len(found := np.flatnonzero(sources * averaged)):
        models.lost = int(lost[found[0]])
        weights = np.arange(size) == found[0]
    else:
        weights = windows * sources if np.any(windows * sources) else sources
        weights = weights / weights.sum()
        models.lost = max(0, counted - int((windows * sources).sum()))
    if np.any(sources > averaged):
        models.average_held(partial(between_steps.total, run, scale=float(weights[rank]), tag="models held"))
    models.restart(at=step)


def conclude_window(run: Run) -> list[tf.Tensor]:
    """Ends the window of a run that averages models in an exchange between steps: after a loss, or if no step follows.

    Returns:
        The sums over the peers of what each has held since the last average, see `HeldSums`.

    Cost:
        A message with the sums; if the models are not averaged yet, also `average_models`.
    """
    assert run.models is not None
    assert run.rank is not None
    sums = between_steps.total(run, run.models.sums.variables, tag="held sums")
    if not run.models.is_in_force(run.steps()):
        average_models(run, rank=run.rank, size=run.size, is_source=True)
    run.models.sums.clear()
    run.models.summed_at = run.steps()
    # A peer that lacks the sums, because others are lost now, fetches the state of this peer.
    run.standing.stage += 1
    return sums


def enter(run: Run, result: BarrierResult, terms: Terms) -> None:
    """Enters a new view with this peer's rank in it, under ``terms``; without a rank, this peer has left the job."""
    view, rank = result.after.view, result.rank
    standing, variables = run.standing, run.graph_state.view
    standing.rank, standing.size, standing.source = rank, view.size, next(iter(result.sources), 0)
    variables.assign(version=view.version, size=view.size, rank=-1 if rank is None else rank)
    # Other peers did the last step: its time is not valid in this view.
    write_variable(run.graph_state.times.step_seconds, math.nan)
    _put_in_force(run, terms)
    run.timer.entered()
    if not run.registry.has_agreed_values:  # otherwise complete only after those values have arrived
        run.membership.mark_state_complete()


def ask_for_departures(run: Run) -> None:
    """Requests a barrier after the next step if peers wait to leave: by then, other peers hold the state."""
    if run.rank == 0 and run.terms.departing:
        run.graph_state.posts.changes.ask()


def _put_in_force(run: Run, terms: Terms) -> None:
    """Applies the settings ``terms`` on this peer: batch size, learning rate's ramp, and variables of the graph."""
    rate, progress = run.rate, run.graph_state.progress
    # A rule has set the learning rate: begins a new ramp, counted in its unit.
    if rate is not None and terms.ramp != run.terms.ramp:
        done = progress.step if terms.ramp is not None and terms.ramp.unit == "steps" else progress.trained
        rate.put_in_force(terms.ramp, done=int(read_variable(done)))
    for one in terms.variables:
        # A joiner has received the values of the others, which their programs may have changed since.
        if one not in run.terms.variables:
            run.pending.set_values[one.name] = run.registry.number(one.name, one.value)
    run.standing.terms = terms
    if run.models is not None:
        run.models.put_in_force(terms.average_every)
    view = run.graph_state.view
    view.assign_terms(terms)
    view.assign_limits(terms.sizes.within(run.settings.limits))
    run.graph_state.rules.put_in_force(run.plan, held=terms.held_rules)
    progress.skip_remainder(terms.global_batch_size)


# ---- requests --------------------------------------------------------------------------------------------------------


def _requests(run: Run) -> tuple[Asked, ...]:
    """Collects this peer's requests for the barrier: from its rules and, on rank 0, also from outside."""
    membership, call = run.membership, partial(_called, run, call_hook)
    requests = [*requests_of(_posted(run), membership.view, call=call, speeds=partial(_speeds, run))]
    unanswered = run.pending.unanswered or ()
    if run.pending.stop_reason is not None and run.rank == 0:
        requests.append(Asked(StopTraining(), run.pending.stop_reason, run.steps()))
    # Only rank 0 receives external requests: from `kungfu-run`, the job's API or a scheduler.
    external = membership.pop_external_request()
    if external is not None:
        # The request was sent again, after the previous barrier had already received it.
        unanswered = tuple(one for one in unanswered if (one.id, one.what) != (external.id, external.what))
        requests.append(replace(external, step=run.steps()))
    # The previous barrier failed: of two requests for the same change the newer one wins.
    requests += unanswered
    _set_values(run, requests)
    return tuple(requests)


def _last_requests(run: Run) -> list[Asked]:
    """Collects the requests of the last step, before training ends: checkpoints, restores, and values set by hooks."""
    fired = [one for one in _posted(run) if isinstance(one.action, (Call, Checkpoint, Restore))]
    requests, run.pending.unanswered = [*(run.pending.unanswered or ())], None
    requests += requests_of(fired, run.membership.view, call=partial(_called, run, call_last_hook))
    _set_values(run, requests)
    merged = merge(one for one in requests if isinstance(one.what, SetValue | RestoreCheckpoint))
    run.journal.superseded([one for one in merged if one.superseded_by])
    return requests


def _set_values(run: Run, requests: Sequence[Asked]) -> None:
    """Keeps the registered values that hooks set, until the next step or the end."""
    for one in merge(one for one in requests if isinstance(one.what, SetValue)):
        if isinstance(one.what, SetValue) and not one.superseded_by:
            name, value = one.what.name, one.what.value
            run.pending.set_values[name] = run.registry.accepted_value(name, value, by=one.by)


def _request_checkpoints(run: Run, requests: Sequence[Asked]) -> None:
    for one in requests:
        if isinstance(one.what, SaveCheckpoint):
            run.checkpoints.request(CheckpointRequest(one.by, names=(one.what.name,) if one.what.name else ()))


def _posted(run: Run) -> list[FiredRule]:
    """Collects and clears the rules that fired since the last barrier: in the last step, and in the step before."""
    plan, rules, last = run.plan, run.graph_state.rules, run.steps()
    fired = list[FiredRule]()
    for step in (last - 1, last):
        posted = rules.of_step(step)
        fired += fired_rules(plan, posted.fetched(), step=step)
        write_variable(posted.fired, [False] * posted.fired.shape[0])
    return fired


def _speeds(run: Run) -> dict[int, float]:
    """The speeds of the peers by id, as fractions of the median speed; empty if no policy measures the speeds."""
    if run.plan.straggler_fractions is None:
        return {}
    step_record, ids = run.graph_state.metrics.step_record, run.membership.view.ids
    fractions = step_record.straggler_fractions(read_variable(step_record.packed).tolist())
    # The fractions of the step that ends in this barrier.
    return dict(zip(ids, fractions, strict=True)) if len(fractions) == len(ids) else {}


def _called(run: Run, call: Callable[..., HookAnswer], fired: FiredRule, action: Call) -> Sequence[HookRequest]:
    """Calls a hook through ``call``; returns its requests."""
    answer = call(fired, action, size=run.size)
    rates = [one for one in answer.requests if one.kind == "set_learning_rate" or not math.isnan(one.rate)]
    if rates and run.rate is None:
        raise UsageError(
            f"hook {fired.rule!r} called control.{rates[0]}, but several optimizers are attached: it must be clear "
            "whose rate that is; attach one optimizer"
        )
    refuse_interval(answer, rule=fired.rule, averages_models=run.models is not None)
    run.journal.called(fired, answer)
    return answer.requests


def adjusted_terms(run: Run, before: View, decision: Decision) -> Terms:
    """The settings after a decision, for the coordinator; includes settings requested by rules or on-rescale rules."""
    graph_state, rate = run.graph_state, run.rate
    position = RunPosition(
        steps=run.steps(),
        samples=int(read_variable(graph_state.progress.trained)),
        epoch_samples=int(read_variable(graph_state.progress.samples)),
        learning_rate=math.nan if rate is None else rate.ramp_start(),
        schedule=1.0 if rate is None else rate.schedule(),
    )

    def on_rescale(previous_size: int, size: int, decided: Terms) -> list[Asked]:
        changes = _settings_on_rescale(run, previous_size, size, decided)
        run.journal.set(changes, step=position.steps)
        return changes

    terms = with_settings(decision, before=(before, run.terms), position=position, on_rescale=on_rescale)
    run.journal.set(decision.settings, step=position.steps)
    return terms


def _settings_on_rescale(run: Run, previous_size: int, size: int, decided: Terms) -> list[Asked]:
    """The settings that on-rescale rules compute from the new size."""
    step, rate, sizes, terms = run.steps(), run.rate, (previous_size, size), (run.terms, decided)
    epoch_samples = int(read_variable(run.graph_state.progress.samples))
    limits = decided.sizes.within(run.settings.limits)
    sources = rescale_sources(sizes, terms, limits=limits, step=step, epoch_samples=epoch_samples)
    sources["learning_rate"] = math.nan if rate is None else rate.destined()
    run.journal.shadowed(fired_on_rescale(run.plan, sources, step=step, mode="shadow"))
    return [asked_by(one) for one in fired_on_rescale(run.plan, sources, step=step)]


def _first_terms(run: Run, size: int) -> Terms:
    """The settings with which the first view starts; all peers take the batch size from rank 0's state."""
    # Without a loader each peer has as many samples as rank 0; a resumed checkpoint contains a batch size in force.
    batch, checkpoints, rate = int(read_variable(run.graph_state.progress.batch)), run.checkpoints, run.rate
    whole = batch * size if run.declared.batch is None else checkpoints.batch_in_force(batch)
    if whole < size:
        raise UsageError(f"batch_size={whole} is smaller than the cluster of {size} peers: each needs a sample")
    ramp = None if rate is None else rate.first_ramp(steps=run.steps())
    every = 0 if run.models is None else run.models.every
    terms = Terms(whole, whole / size, ramp=ramp, max_global_batch=run.plan.max_global_batch, average_every=every)
    continued = checkpoints.continued(terms)
    # Without a policy that may change the number, the program's number is in force, not that of the checkpoint.
    return continued if _may_set_interval(run) else replace(continued, average_every=every)


def _may_set_interval(run: Run) -> bool:
    acting = (one.action for one in run.plan.rules if one.mode == "acting")
    return run.models is not None and any(isinstance(one, (Synchronise, Call)) for one in acting)


def _continued(first: Terms, before: Terms | None, *, target: int) -> Terms:
    """The first settings of a phase: new batch size, ramp and target size; other lasting settings from ``before``."""
    if before is None:
        return replace(first, target_size=target)
    return replace(
        before, global_batch_size=first.global_batch_size, batch_per_peer=first.batch_per_peer, ramp=first.ramp,
        stopped=False, target_size=target, leaving=(), policy_share=0.0, base_batch=0, base_size=0, refused_size=0,
        replacement_refused=False, max_global_batch=first.max_global_batch or before.max_global_batch,
        awaiting_size=None, variables=(), average_every=first.average_every,
    )  # fmt: skip
