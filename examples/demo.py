"""The main job, end to end: a policy grows a real training run from 2 peers to 4, and removes a peer near the end.

Ends with the decisions and changes, a picture, and a summary as JSON, in ``runs/demo``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from kungfu.cli.draw.picture import draw_command
from kungfu.cli.report.narrative import paragraph
from kungfu.cli.report.reader import read_events
from kungfu.event_log.events import DecisionEvent, RecoveredEvent, RefusedEvent, RescaleEvent
from kungfu.extras import missing

DEVICE_MS, THREE_FROM = 40.0, 900


def run(folder: Path, *, attachment: str, epochs: int) -> float:
    """Trains under kungfu-run, exactly like a user; returns the seconds of the run."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "results").mkdir(parents=True)
    launcher = [sys.executable, "-m", "kungfu.cli.run", "-np", "2", "--min", "1", "--max", "4"]
    options = ["--attachment", attachment, "--logdir", str(folder)]
    program = [sys.executable, "-m", "examples.digits", "--epochs", str(epochs), "--device-ms", str(DEVICE_MS)]
    more = ["--three-from", str(THREE_FROM), "--results", str(folder / "results")]
    started = time.monotonic()
    code = subprocess.run([*launcher, *options, *program, *more], check=False).returncode
    if code:
        sys.exit(code)
    return time.monotonic() - started


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file with one JSON object per line."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def summarise(folder: Path, *, attachment: str, epochs: int, seconds: float) -> dict[str, Any]:
    """The summary of the run, from its record and from the step counters of every peer."""
    events = read_lines(folder / "events.jsonl")
    results = [np.load(path) for path in sorted((folder / "results").glob("peer-*.npz"))]
    rescales = [event for event in events if event["event"] == "rescale"]
    sizes = [event["size"] for event in events if event["event"] == "started"]
    seen = np.sum([result["seen"] for result in results], axis=0)
    return {
        "accuracy": next(float(result["accuracy"]) for result in results if str(result["rank"]) == "0"),
        "sizes": sizes + [rescale["to"] for rescale in rescales],
        "traces": max(event["traces"] for event in events if event["event"] == "finished"),
        "epochs_exact": bool(np.all(seen == epochs)),
        "too_late": sum(event["event"] == "dismissed" for event in events),
        "rescales": [
            {name: rescale[name] for name in ("step", "rule", "from", "to", "stop_s", "parts")} for rescale in rescales
        ],
        "attachment": attachment,
        "emulated_device_ms": DEVICE_MS,
        "peers": len(results),
        "seconds": round(seconds, 1),
    }


def main() -> None:
    """Runs the demo and shows its results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attachment", choices=("local", "horovod"), default="local")
    parser.add_argument("--epochs", type=int, default=40, help="more where peers take long to start (40)")
    given = parser.parse_args()
    attachment, epochs = given.attachment, given.epochs
    folder = Path("runs") / ("demo" if attachment == "local" else f"demo-{attachment}")
    print(
        f"Digits on 2 to 4 peers; the {DEVICE_MS:.0f} ms that a step takes on a device are emulated by a sleep.",
        flush=True,
    )
    seconds = run(folder, attachment=attachment, epochs=epochs)
    summary = summarise(folder, attachment=attachment, epochs=epochs, seconds=seconds)
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    console = Console(soft_wrap=True)
    for event in read_events(folder).events:
        if isinstance(event, DecisionEvent | RescaleEvent | RecoveredEvent | RefusedEvent):
            told = paragraph(event, None)
            console.print("\n  - ".join([told.headline, *told.details]), markup=False)
    console.print(
        f"accuracy {summary['accuracy']:.4f} on the held-out fifth, sizes {summary['sizes']}, "
        f"{summary['traces']} trace, every sample once an epoch: {summary['epochs_exact']}"
    )
    if summary["too_late"]:
        console.print(
            f"training was over before {summary['too_late']} more could join, so slowly do peers start here now: "
            f"--epochs {4 * epochs} trains for longer"
        )
    console.print("picture  ", end="")
    if advice := missing("plots"):
        console.print(f"none: it {advice}", markup=False)
    else:
        draw_command(folder, None, signals=None)
    console.print(f"summary  {folder / 'summary.json'}")
    console.print(f"report   kungfu why {folder}")


if __name__ == "__main__":
    main()
