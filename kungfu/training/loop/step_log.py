"""Reports each finished step of a peer: a line of metrics, a row of the trace, and the requests of shadow rules."""

from __future__ import annotations

import time
from functools import partial
from typing import Any, final

from kungfu.compiler.fired import fired_rules
from kungfu.runtime.api import ShadowAsk, View
from kungfu.training.graph.step import BARRIER_HELD, DONE
from kungfu.training.graph.step_report import PlannedEpochs, StepReport
from kungfu.training.graph.variable_io import read_variable
from kungfu.training.run import Run
from kungfu.training.telemetry.event_log_writer import metrics_line
from kungfu.training.telemetry.trace_recorder import SNAPSHOT_EVERY


@final
class StepLog:
    """Writes the steps of this peer to the job's journal."""

    def __init__(self, run: Run) -> None:
        self._run, self._standing, self._declared = run, run.standing, run.declared
        self._graph_state, self._membership = run.graph_state, run.membership
        self._step_record, self._shadows = run.graph_state.metrics.step_record, run.graph_state.rules.shadows
        self._journal, self._recorder = run.journal, run.recorder
        # The names of the shadow rules: by mode, or because the budget does not let them act.
        self._in_shadow = {rule.name for rule in run.plan.rules if rule.mode != "acting"}

    def record_view(self) -> None:
        """Records the current view, in case it has changed, at the start of a section of the trace."""
        run = self._run
        if self._recorder is not None:
            version = int(read_variable(self._graph_state.view.version))
            self._recorder.entered(version=version, rank=run.rank, after=run.steps())

    def log(self, report: StepReport) -> list[ShadowAsk]:
        """Logs a finished step, even if its view has ended; returns the requests of shadow rules, to be compared."""
        leads, packed, step_record = self._standing.rank == 0, report.packed, self._step_record
        step, loss = step_record.step(packed), step_record.loss(packed)
        shadows = self._in_shadow and step_record.fired(packed) & self._in_shadow
        # The usual case, a step with log lines only: another thread formats them.
        is_plain = report.code == DONE and step % SNAPSHOT_EVERY and not shadows
        if is_plain and self._journal.is_quiet and loss - loss == 0.0:
            if leads or self._recorder is not None:
                view = self._membership.view if leads else None
                self._membership.record("step", partial(self._lines, report, view, self._declared.planned, time.time()))
            return []
        if self._recorder is not None:
            self._recorder.stepped(packed)
            # A barrier may have changed the view.
            if report.code == BARRIER_HELD:
                self.record_view()
            else:
                self._recorder.step_ended(after=step)
        self._journal.measured(loss, step=step)
        # The coordinator logs each step. Other peers log the first step after a change, in case they take over.
        if leads or self._journal.has_news:
            view = self._membership.view if leads else None
            self._journal.stepped(partial(self._metrics, report, view, self._declared.planned))
        if not shadows:
            return []
        # The coordinator logs shadow rules that fired.
        fired = fired_rules(self._run.plan, self._shadows.fetched(), step=self._run.steps())
        self._journal.shadowed(fired if leads else [])
        return [ShadowAsk(one.rule, one.step, one.value) for one in fired]

    def _lines(
        self, report: StepReport, view: View | None, planned: PlannedEpochs | None, now: float
    ) -> dict[str, Any]:
        """The step's line in each stream that is enabled; formatted later, in another thread."""
        lines: dict[str, Any] = {}
        if self._recorder is not None:
            lines["trace"] = self._recorder.line(report.packed)
        if view is not None:
            lines["metrics"] = metrics_line(now, partial(self._metrics, report, view, planned))
        return lines

    def _metrics(self, report: StepReport, view: View | None, planned: PlannedEpochs | None) -> dict[str, Any]:
        """The step's line in the metrics; formatted later, in another thread."""
        step_record, packed = self._step_record, report.packed
        # The ids of the peers are known only while the view of the step lasts.
        peers = view.ids if view is not None and view.version == step_record.view(packed) else ()
        line = step_record.metrics(packed, peers=peers)
        progress = {} if planned is None else planned.progress(report.position, epoch=line["epoch"])
        # A policy's signal may have the same name.
        line.setdefault("progress", {"samples": step_record.samples_trained(packed), **progress})
        return line
