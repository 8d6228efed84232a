"""What a peer tells of each step that has ended: a line of metrics, a row of the trace, what shadow rules ask for."""

from __future__ import annotations

import time
from functools import partial
from typing import Any, final

from kungfu.compiler import Plan
from kungfu.compiler.fired import fired_rules
from kungfu.runtime.api import Membership, ShadowAsk, View
from kungfu.training.data.planned_epochs import PlannedEpochs
from kungfu.training.graph.graph_state import GraphState
from kungfu.training.graph.step import BARRIER_HELD, DONE
from kungfu.training.graph.step_report import StepReport
from kungfu.training.graph.variable_io import read_variable
from kungfu.training.telemetry.event_log_writer import EventLogWriter, metrics_line
from kungfu.training.telemetry.trace_recorder import SNAPSHOT_EVERY, TraceRecorder


@final
class StepLog:
    """Tells the job's journal of the steps of this peer.

    Args:
        plan: The compiled policies.
        graph_state: The variables of the run.
        membership: Knows who is in the view.
        event_log: Takes the lines of the metrics.
        recorder: Writes the trace, where it is asked for.
    """

    def __init__(
        self,
        plan: Plan,
        graph_state: GraphState,
        membership: Membership,
        event_log: EventLogWriter,
        recorder: TraceRecorder | None,
    ) -> None:
        self._plan, self._graph_state, self._membership = plan, graph_state, membership
        self._step_record = graph_state.metrics.step_record
        self._event_log, self._recorder = event_log, recorder
        # The names of the rules that only say what they would do, or that the budget holds back.
        self._in_shadow = {rule.name for rule in plan.rules if rule.mode != "acting"}
        self.planned: PlannedEpochs | None = None  # as the loader says

    def record_view(self, *, rank: int | None) -> None:
        """The view in force may be another one, which the trace begins anew."""
        if self._recorder is not None:
            version = int(read_variable(self._graph_state.view.version))
            self._recorder.entered(version=version, rank=rank, after=self._graph_state.progress.steps())

    def log(self, report: StepReport, *, rank: int | None) -> list[ShadowAsk]:
        """Tells of the step as it was: its view may have been ended by the barrier after it.

        Args:
            report: Of the step.
            rank: This peer's, after the barrier.

        Returns:
            What rules in the shadow ask for, which the peers compare at the next barrier.
        """
        leads, packed, step_record = rank == 0, report.packed, self._step_record
        step, loss = step_record.step(packed), step_record.loss(packed)
        shadows = self._in_shadow and step_record.fired(packed) & self._in_shadow
        # Nothing but lines, as of nearly every step: those are made in another thread.
        is_plain = report.code == DONE and step % SNAPSHOT_EVERY and not shadows
        if is_plain and self._event_log.is_quiet and loss - loss == 0.0:
            if leads or self._recorder is not None:
                view = self._membership.view if leads else None
                self._membership.record("step", partial(self._lines, report, view, self.planned, time.time()))
            return []
        if self._recorder is not None:
            self._recorder.stepped(packed)
            # A barrier may have changed the view.
            if report.code == BARRIER_HELD:
                self.record_view(rank=rank)
            else:
                self._recorder.step_ended(after=step)
        self._event_log.measured(loss, step=step)
        # The leader writes each step; any other peer waits for the first one after a change, should it lead.
        if leads or self._event_log.has_news:
            view = self._membership.view if leads else None
            self._event_log.stepped(partial(self._metrics, report, view, self.planned))
        return self._log_shadows(leads=leads) if shadows else []

    def _lines(
        self, report: StepReport, view: View | None, planned: PlannedEpochs | None, now: float
    ) -> dict[str, Any]:
        """The line of a step in each stream that has one; made later, in another thread."""
        lines: dict[str, Any] = {}
        if self._recorder is not None:
            lines["trace"] = self._recorder.line(report.packed)
        if view is not None:
            lines["metrics"] = metrics_line(now, partial(self._metrics, report, view, planned))
        return lines

    def _metrics(self, report: StepReport, view: View | None, planned: PlannedEpochs | None) -> dict[str, Any]:
        """The line of a step in the metrics; made later, in another thread."""
        step_record, packed = self._step_record, report.packed
        # Who was in the view of the step is known while it lasts.
        peers = view.ids if view is not None and view.version == step_record.view(packed) else ()
        line = step_record.metrics(packed, peers=peers)
        progress = {} if planned is None else planned.progress(report.position, epoch=line["epoch"])
        # A signal of a policy may have that name.
        line.setdefault("progress", {"samples": step_record.samples_trained(packed), **progress})
        return line

    def _log_shadows(self, *, leads: bool) -> list[ShadowAsk]:
        """Rules that only say what they would do have fired: the coordinator writes it."""
        step = self._graph_state.progress.steps()
        shadows = fired_rules(self._plan, self._graph_state.rules.shadows.fetched(), step=step)
        self._event_log.shadowed(shadows if leads else [])
        return [ShadowAsk(one.rule, one.step, one.value) for one in shadows]
