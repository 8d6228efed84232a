"""Restores the model of all peers from a named checkpoint, between two steps, as a rule or a hook requests.

Every peer records the request at its barrier, and one peer's request counts: that of rank 0, or in a new view that of
the peer whose state all peers received. Rank 0 reads the checkpoint into a copy of the variables and checks every
value, since only its host may have the file; the others wait, however long it reads. Then all peers learn the outcome,
and the values travel in the exchange between steps, so that all peers have the same bits, or all keep what they have.

If a peer is lost meanwhile, the survivors may hold the model before and after. `Standing.stage` and the digest tell the
two apart, so all survivors continue from one of them. Their request remains, and restoring twice changes nothing.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from typing import Any

from kungfu.control import Call, Restore
from kungfu.errors import UsageError
from kungfu.event_log.events import RestoredEvent
from kungfu.runtime.api import Asked, RestoreCheckpoint, merge
from kungfu.training.run import Run
from kungfu.training.state.checkpoint_manager import CheckpointRequest
from kungfu.training.state.registered_sync import PeerGroup


def may_restore(run: Run) -> bool:
    """True if a rule or a hook of this run may restore the model; the same on all peers, as their plans are."""
    return any(one.mode == "acting" and isinstance(one.action, (Restore, Call)) for one in run.plan.rules)


def request_restore(run: Run, requests: Iterable[Asked]) -> None:
    """Records the first of the requests to restore the model; it is carried out before the next step."""
    wanted = merge(one for one in requests if isinstance(one.what, RestoreCheckpoint))
    if wanted:
        run.pending.restoring.wanted = wanted[0]


def restore_wanted(run: Run, peers: PeerGroup, *, decided_by: int) -> None:
    """Restores the model on all peers of the view, if the peer of rank ``decided_by`` holds a request.

    Raises:
        OpError: Peers were lost in a message; the request remains.

    Cost:
        One message; with a request, those of `PeerGroup.from_rank_0`, and the values, as in
        `PeerGroup.assign_from_rank`.
    """
    restoring = run.pending.restoring
    if not may_restore(run):
        return
    wanted = peers.from_rank(decided_by, _packed(restoring.wanted))
    if not wanted:
        restoring.wanted = None
        return
    started, asked = time.monotonic(), json.loads(wanted)
    run.standing.stage += 1
    variables = [*run.checkpoints.trained_variables().values()]
    values = list[Any]()  # none on the other peers, or without a checkpoint

    def read() -> bytes:
        found, values[:] = _read(run, asked["name"])
        return json.dumps(found).encode()

    found = json.loads(peers.from_rank_0(read))
    for variable, value in zip(variables, values, strict=False):
        variable.assign(value)
    if not found["error"]:
        peers.assign_from_rank(variables)
        restoring.done_at = run.steps()
    run.standing.stage += 1
    restoring.wanted = None
    if found["error"] and (run.stopped or restoring.is_last):
        # No step follows: the program would take the model for the restored one. Its state is saved before the error.
        restoring.error = f"{asked['rule']} wants the checkpoint {asked['name']!r} restored: {found['error']}"
        run.checkpoints.request(CheckpointRequest(asked["rule"]))
    if peers.leads:
        stop_s = round(time.monotonic() - started, 6)
        _report(run, RestoredEvent(**asked, **found, at_step=run.steps(), stop_s=stop_s))


def refuse_other_model(run: Run, peers: PeerGroup) -> None:
    """Ends a run that could not restore its model before the end of training, once its state is in a checkpoint.

    Without that checkpoint the program keeps the only copy, and goes on.

    Raises:
        UsageError: The model was not restored; raised on all peers.
    """
    error = run.pending.restoring.error
    if not error:
        return
    path = peers.from_rank_0(lambda: run.checkpoints.wait().encode()).decode()
    if path:
        raise UsageError(f"{error}; training has ended without it, with the state that is in {path}")
    run.pending.restoring.error = ""


def _packed(wanted: Asked | None) -> bytes:
    if wanted is None or not isinstance(wanted.what, RestoreCheckpoint):
        return b""
    saw = {name: float(value) for name, value in wanted.inputs.items()}
    return json.dumps({"name": wanted.what.name, "rule": wanted.by, "step": wanted.step, "saw": saw}).encode()


def _read(run: Run, name: str) -> tuple[dict[str, Any], list[Any]]:
    """Rank 0: where the checkpoint is, and its values; without values, the reason."""
    try:
        path, manifest, values = run.checkpoints.read_named(name)
    except (UsageError, OSError) as error:
        return {"path": "", "saved_step": None, "error": str(error)}, []
    return {"path": str(path), "saved_step": manifest.step, "error": ""}, values


def _report(run: Run, event: RestoredEvent) -> None:
    if event.error:
        print(f"kungfu: {event.one_line()}", file=sys.stderr)
    run.membership.record("events", event)
