"""The cost of reading a long record: ``python -m benchmarks.long_records [--steps 3000000] [--rescale-every 10000]``.

Writes the record of a job of `--steps` steps of 20 ms, with a rescale every `--rescale-every` steps, a learning rate
set by a rule every 50 steps, and one lost peer. Each command that reads records then reads it in a separate process.
Prints the processor seconds and the peak memory of each, and as its last line the same as JSON. A record of 3 million
steps needs 0.7 GB of disk; ``--steps 500000 --rescale-every 20`` has 200,000 events of decisions.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from kungfu.event_log.codec import event_to_line
from kungfu.event_log.events import (
    RECORD_VERSION,
    DecisionEvent,
    FinishedEvent,
    LoggedEvent,
    OfferedEvent,
    PeerEndedEvent,
    RecordEvent,
    RecoveredEvent,
    RescaleEvent,
    SetEvent,
    SpanEvent,
    SpanPart,
    SpawnedEvent,
    StartedEvent,
    ViewEvent,
)

STEP_S, SET_EVERY, BEGAN_S = 0.02, 50, 1.7e9
_COMMAND = (sys.executable, "-m", "kungfu.cli.main")
# For commands that need a running job: the part of them that reads.
_PARTS: Mapping[str, str] = {
    "page": "from kungfu.cli.page.feed import PageFeed; PageFeed(folder).follow(lambda seconds: True)",
    "resize --plan": "from kungfu.cli.job.plan_forecast import read_measured; assert read_measured(folder).speeds",
    "chaos": "from kungfu.testing.faults import JobWatcher; assert JobWatcher(folder).look().steps",
    "top": "from kungfu.cli.top.row import last_decision; assert last_decision(folder)",
}


@dataclass(frozen=True)
class Read:
    """The cost of a command that reads a record."""

    command: str
    cpu_s: float
    memory_mb: float


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints a table and a line of JSON."""
    parser = argparse.ArgumentParser(description="processor seconds and memory to read a long record")
    parser.add_argument("--steps", type=int, default=3_000_000, help="steps of the record (%(default)s)")
    parser.add_argument("--rescale-every", type=int, default=10_000, help="steps between two (%(default)s)")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        events = write_record(folder, steps=given.steps, rescale_every=given.rescale_every)
        measured = [_read(command, line, folder) for command, line in _lines(folder).items()]
    table = Table("command", "cpu s", "memory MB")
    for one in measured:
        table.add_row(one.command, f"{one.cpu_s:.1f}", f"{one.memory_mb:.0f}")
    Console().print(table)
    print(json.dumps({"steps": given.steps, "events": events, "read": [asdict(one) for one in measured]}))


def write_record(folder: Path, *, steps: int, rescale_every: int) -> int:
    """Writes the record of a job of ``steps`` steps, and returns the number of its events."""
    with (folder / "metrics.jsonl").open("w") as file:
        file.writelines(json.dumps(_row(step, rescale_every)) + "\n" for step in range(1, steps + 1))
    count = 0
    with (folder / "events.jsonl").open("w") as file:
        for event in _events(steps, rescale_every):
            count += 1
            file.write(event_to_line(event) + "\n")
    return count


def _row(step: int, rescale_every: int) -> dict[str, Any]:
    size = _size(step, rescale_every)
    loss = 4.0 / math.sqrt(1 + step / 100) * (1 + 0.2 * math.sin(step))
    return {
        "time": BEGAN_S + STEP_S * step, "step": step, "epoch": step // 1000, "size": size, "batch": 32 * size,
        "loss": loss, "samples_per_s": 1600.0 * size + step % 7, "learning_rate": 0.1, "noise_scale": 3.0 * (step % 99),
    }  # fmt: skip


def _size(step: int, rescale_every: int) -> int:
    return 2 + (step // rescale_every) % 2


def _events(steps: int, rescale_every: int) -> Iterator[LoggedEvent]:
    yield RecordEvent(version=RECORD_VERSION)
    yield StartedEvent(time=BEGAN_S, job="long", size=2, command=("python", "train.py"))
    yield ViewEvent(time=BEGAN_S, version=1, peers=(0, 1))
    for step in range(1, steps):
        at = BEGAN_S + STEP_S * step
        if (step + 1) % rescale_every == 0:
            yield from _rescale(step, at, rescale_every)
        if step % SET_EVERY == 0:
            yield SetEvent(
                time=at, step=step, rule="decay", saw={"loss": 0.5}, what="learning rate", to=0.1, over=0, unit="steps"
            )  # fmt: skip
        if step == steps // 2:
            yield RecoveredEvent(
                time=at, step=step, before=2, after=2, view=9, lost={"1": "killed by SIGKILL"}, stop_s=0.2, parts={},
                noticed_by="", state_of=0, redone=1, target=2, global_batch_size=64, noticed_s=0.1, regrouped_s=0.1,
                step_s=0.02,
            )  # fmt: skip
    yield FinishedEvent(time=BEGAN_S + STEP_S * steps, peer=0, leaving=False, steps=steps, traces=1)


def _rescale(step: int, at: float, rescale_every: int) -> Iterator[LoggedEvent]:
    """The recorded lines of one rescale: a third peer joins, or leaves again."""
    before, after, turn = _size(step, rescale_every), _size(step + 1, rescale_every), (step + 1) // rescale_every
    grows, third = after > before, 1 + (turn + 1) // 2
    yield DecisionEvent(
        time=at, step=step, rule="gns_batch", saw={"noise_scale": 50.7, "size": float(before), "target": float(after)},
        size=before, asked=after, done="1 more is being prepared" if grows else "1 peer leaves at once",
    )  # fmt: skip
    if grows:
        yield SpawnedEvent(time=at, peer=third, pid=third)
        yield OfferedEvent(time=at, peers=(third,))
    else:
        yield FinishedEvent(time=at, peer=third, leaving=True, steps=step, traces=1)
        yield PeerEndedEvent(time=at, peer=third, how="exit code 0")
    yield ViewEvent(time=at, version=1 + turn, peers=(0, 1, third) if grows else (0, 1))
    parts = {"barrier_s": 0.01, "attach_s": 0.005, "state_s": 0.005}
    yield RescaleEvent(
        time=at, step=step, rule="gns_batch", decided_at=step, before=before, after=after, view=1 + turn,
        joined=(third,) if grows else (), left=() if grows else (third,), global_batch_size=32 * after, stop_s=0.02,
        parts=parts,
    )  # fmt: skip
    spans = tuple(SpanPart(name.removesuffix("_s"), seconds) for name, seconds in parts.items())
    for peer in (0, 1):
        yield SpanEvent(time=at, what="rescale", peer=peer, view=1 + turn, step=step, s=0.02, parts=spans)


def _lines(folder: Path) -> Mapping[str, Sequence[str]]:
    """The command lines of all commands that read the record, by name."""
    where = str(folder)
    whole = {
        "why": ["why", where],
        "draw": ["draw", where, "--to", f"{where}/run.png"],
        "compare": ["compare", where, where, "--to", f"{where}/compare.png"],
    }
    begin = f"from pathlib import Path; folder = Path({where!r}); "
    return {
        **{name: [*_COMMAND, *words] for name, words in whole.items()},
        **{name: [sys.executable, "-c", begin + part] for name, part in _PARTS.items()},
    }


def _read(name: str, line: Sequence[str], folder: Path) -> Read:
    """Runs a command to its end, and returns its cost; the memory is the peak."""
    with (folder / "output").open("w") as output:
        process = subprocess.Popen(line, stdout=output, stderr=output)
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"{name}: {(folder / 'output').read_text()[-2000:]}"
    return Read(name, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


if __name__ == "__main__":
    main()
