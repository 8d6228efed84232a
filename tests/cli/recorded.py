"""Events as runs have written them, as values: one that grows and shrinks, one that fails."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kungfu.event_log.codec import event_to_line
from kungfu.event_log.events import RECORD_VERSION, AnyEvent, LoggedEvent, RecordEvent
from tests.event_log.made import made

Events = Sequence[AnyEvent]

GROWN: Events = tuple(made(**fields) for fields in (
    {"time": 100.0, "event": "started", "size": 2, "command": ["python", "digits.py"]},
    {"time": 100.01, "event": "spawned", "peer": 0, "pid": 12784},
    {"time": 100.02, "event": "spawned", "peer": 1, "pid": 12787},
    {"time": 107.3, "event": "view", "version": 1, "peers": [0, 1]},
    {"time": 109.8, "event": "spawned", "peer": 2, "pid": 12893},
    {
        "time": 110.0, "event": "decision", "step": 50, "rule": "gns_batch",
        "saw": {"noise_scale": 50.65517, "local_batch_size": 16.0, "size": 2.0, "target": 3.0},
        "size": 2, "asked": 3, "done": "1 more is being prepared while training continues",
    },
    {"time": 115.3, "event": "view", "version": 2, "peers": [0, 1, 2]},
    {
        "time": 115.4, "event": "rescale", "step": 163, "rule": "gns_batch", "decided_at": 50, "from": 2, "to": 3,
        "view": 2, "joined": [2], "left": [], "global_batch_size": 48, "stop_s": 0.134796,
        "parts": {
            "ready_s": 0.680492, "spawn_s": 4.640343, "barrier_s": 0.034353, "attach_s": 0.012014, "state_s": 0.024376,
            "first_step_s": 0.0463,
        },
    },
    {
        "time": 120.0, "event": "decision", "step": 300, "rule": "at_most(gns_batch, schedule)",
        "saw": {"noise_scale": 83.1, "gns_batch": 4.0, "schedule": 2.0, "size": 3.0, "target": 2.0},
        "size": 3, "asked": 2, "done": "1 peer leaves at once", "won": ["schedule"], "lost": ["gns_batch"],
    },
    {"time": 120.1, "event": "finished", "peer": 2, "leaving": True, "steps": 301, "traces": 1},
    {"time": 120.1, "event": "view", "version": 3, "peers": [0, 1]},
    {
        "time": 120.2, "event": "rescale", "step": 301, "rule": "at_most(gns_batch, schedule)", "decided_at": 300,
        "from": 3, "to": 2, "view": 3, "joined": [], "left": [2], "global_batch_size": 32, "stop_s": 0.065204,
        "parts": {"barrier_s": 0.03, "attach_s": 0.02, "state_s": 0.001, "first_step_s": 0.05},
    },
    {"time": 121.0, "event": "peer ended", "peer": 2, "how": "exit code 0"},
    {"time": 127.2, "event": "finished", "peer": 1, "leaving": False, "steps": 479, "traces": 1},
    {"time": 127.3, "event": "finished", "peer": 0, "leaving": False, "steps": 479, "traces": 1},
    {"time": 131.0, "event": "peer ended", "peer": 0, "how": "exit code 0"},
    {"time": 131.0, "event": "peer ended", "peer": 1, "how": "exit code 0"},
    {"time": 131.0, "event": "ended", "reason": "training is over"},
))  # fmt: skip

FAILED: Events = tuple(made(**fields) for fields in (
    {"time": 10.0, "event": "started", "size": 2, "command": ["python", "bad.py"]},
    {"time": 14.3, "event": "view", "version": 1, "peers": [0, 1]},
    {"time": 16.0, "event": "dismissed", "peer": 2, "reason": "waited 300 s for peer 2 to get ready"},
    {"time": 16.1, "event": "peer ended", "peer": 2, "how": "killed by SIGKILL"},
    {"time": 16.2, "event": "missing", "peers": [2], "reason": "peer 2: waited 300 s"},
    {"time": 16.3, "event": "refused", "rule": "grow", "asked": 3, "size": 2, "reason": "peer 2: waited 300 s"},
    {"time": 16.4, "event": "called", "step": 20, "rule": "hook", "saw": {"loss": None}, "asked": None},
    {"time": 16.5, "event": "dissent", "view": 1, "requests": {"0": "grow asks for 3", "1": ""}},
    {"time": 17.0, "event": "peer ended", "peer": 1, "how": "killed by SIGKILL"},
    {"time": 17.5, "event": "failed", "peer": 1, "error": "rank 1 (peer 1): killed by SIGKILL", "code": 1},
))  # fmt: skip


def measured(step: int, **figures: Any) -> dict[str, Any]:
    """A line of the metrics, with what is not given made up from the step."""
    speed = None if step == 1 else 700.0 + step % 7
    usual = {"epoch": 0, "size": 2, "batch": 32, "loss": 2.0 / step, "samples_per_s": speed, "noise_scale": 3.0 * step}
    return {"time": 100.0 + step, "step": step, **usual, **figures}


def written(folder: Path, events: Iterable[LoggedEvent], *, metrics: Iterable[Mapping[str, Any]] = ()) -> Path:
    """The folder of a run with this record."""
    lines = [event_to_line(one) for one in (RecordEvent(version=RECORD_VERSION), *events)]
    (folder / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
    return folder
