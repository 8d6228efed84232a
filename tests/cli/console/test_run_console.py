"""The console of a job from its first line to its last, through real streams and a real pseudo-terminal."""

from __future__ import annotations

import errno
import io
import os
import pty
import signal
import subprocess
import sys
import textwrap
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kungfu.cli.console.run_console import HOLD_S, REPEAT_S, EventLines, RunConsole, make_console
from kungfu.cli.console.screens import PlainScreen, ScreenUpdate
from kungfu.event_log.events import AnyEvent, GapEvent
from kungfu.runtime.agent.agent import Ending
from kungfu.runtime.core.failure import Failure
from tests.cli.console.test_log_filter import NOISE
from tests.cli.recorded import GROWN, measured
from tests.event_log.made import made

PROGRAM = textwrap.dedent(
    """
    import os, signal, sys
    from pathlib import Path
    from kungfu.cli.console.run_console import make_console
    from kungfu.event_log.events import ViewEvent
    from kungfu.runtime.agent.agent import Ending

    with make_console(Path("runs/a")) as console:
        console.event(ViewEvent(version=1, peers=(0, 1)))
        console.status({"step": 7, "size": 2, "loss": None, "samples_per_s": float("nan")})
        console.line("rank 1", "hello")
        if sys.argv[1] == "interrupted":
            raise KeyboardInterrupt
        console.ended(Ending(0))
    """
)


class Gone(io.StringIO):
    """A stream that nobody reads any more."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def in_terminal(how: str, *, kind: str = "xterm-256color") -> tuple[str, int]:
    """What the program above writes to a terminal, and its exit code."""
    agent_side, program_side = pty.openpty()
    environment = {**os.environ, "TERM": kind, "COLUMNS": "80", "LINES": "24", "PYTHONPATH": os.getcwd()}
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, how], stdin=program_side, stdout=program_side, stderr=program_side,
        env=environment,
    )  # fmt: skip
    os.close(program_side)
    output = b""
    try:
        with suppress(OSError):  # Linux's way of saying that the other side is closed
            while True:
                output += os.read(agent_side, 65536)
        return output.decode(), child.wait(timeout=180)
    finally:
        child.kill()
        child.wait()
        os.close(agent_side)


def test_a_job_is_shown_from_its_start_to_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with make_console(tmp_path) as console:
        console.event(GROWN[0])
        for line in (*NOISE, "hello", "10%\r\x1b[2K100%"):
            console.line("rank 0", line)
        console.status(measured(1))
        console.event(GROWN[5])
        console.event(GapEvent(file="metrics.jsonl", since=1.0, until=3.0, lines=5, error="No space left on device"))
        for step in range(1, 51):
            console.event(setting(step))
        console.ended(Ending(0))
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert err == ""
    assert lines[:3] == ["kungfu: 2 peers start: python digits.py", "[rank 0] hello", "[rank 0] 100%"]
    assert "step 50: gns_batch wants 3 peers instead of 2" in out
    assert [line for line in lines if "decay" in line] == [
        "kungfu: step 1: decay sets the learning rate to 1",
        "kungfu: steps 2 to 50: decay sets the learning rate 49 times, from 0.500 to 0.0200",
    ]
    assert lines[-2].startswith("kungfu-run: training is over")
    assert lines[-1].startswith("  the record has a gap: metrics.jsonl lacks 5 lines of 2.0 s, which")


def test_equal_tracebacks_and_late_joiners_are_told_in_a_line_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = ["Traceback (most recent call last):", "  File x, line 1", "ValueError: wrong"]
    with make_console(tmp_path) as console:
        for event in (*GROWN[:4], GROWN[5]):
            console.event(event)
        console.note(GROWN[4])
        for rank in (0, 1):
            for text in error:
                console.line(f"rank {rank}", text)
        console.event(GROWN[-5])
        console.note(GROWN[-1])
        console.ended(Ending(0))
    out, _ = capsys.readouterr()
    lines = out.splitlines()
    assert [line for line in lines if line.startswith("[rank")] == [
        *(f"[rank 0] {text}" for text in error), "[rank 1] the same 3 lines as rank 0: ValueError: wrong"
    ]  # fmt: skip
    assert lines[-1] == ("  gns_batch asked for 3 peers at step 50; peer 2 was not ready when training ended")


def test_a_failure_goes_to_the_error_stream_after_all_other_output(capsys: pytest.CaptureFixture[str]) -> None:
    with make_console(Path("runs/a")) as console:
        console.line("rank 1", "last words")
        console.ended(Ending(1, Failure(1, "rank 1 (peer 1): killed by SIGKILL", 1, ("last words",))))
    out, err = capsys.readouterr()
    assert out == "[rank 1] last words\n"
    assert err.splitlines()[0] == "kungfu-run: failed: rank 1 (peer 1): killed by SIGKILL"


def test_a_job_goes_on_when_nobody_reads_any_more(tmp_path: Path) -> None:
    stream = Gone()
    with RunConsole(tmp_path, PlainScreen(stream), stream=stream) as console:
        console.line("rank 0", "unheard")
        console.event(GROWN[3])


def test_output_to_a_file_goes_on_when_its_disk_has_room_again(tmp_path: Path) -> None:
    full, painted = threading.Event(), threading.Event()

    class Filling(io.FileIO):
        def write(self, data: Any) -> int:
            if full.is_set():
                painted.set()
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data)

    stream = io.TextIOWrapper(io.BufferedWriter(Filling(tmp_path / "out", "w")))
    full.set()
    with RunConsole(tmp_path, PlainScreen(stream), stream=stream) as console:
        console.line("rank 0", "while it is full")
        assert painted.wait(180.0)
        full.clear()
        console.line("rank 0", "when there is room")
    stream.close()
    said = (tmp_path / "out").read_text().splitlines()
    assert said == ["[rank 0] while it is full", "[rank 0] when there is room"]


@pytest.mark.slow
def test_output_that_found_no_room_to_the_last_does_not_change_the_exit_code() -> None:
    with open("/dev/full", "w") as full:
        program = [sys.executable, "-c", PROGRAM, "well"]
        assert subprocess.run(program, stdout=full, stderr=full, timeout=180, check=False).returncode == 0


def test_a_screen_is_closed_once_and_after_the_last_painting(tmp_path: Path) -> None:
    calls: list[str] = []

    class Watched:
        def open(self) -> None:
            calls.append("open")

        def show(self, update: ScreenUpdate) -> None:
            calls.extend(line.text for line in update.lines)

        def close(self) -> None:
            calls.append("close")

    with RunConsole(tmp_path, Watched(), stream=io.StringIO()) as console:
        console.line("rank 0", "hello")
        console.ended(Ending(0))
    assert calls == ["open", "hello", "close"]


@pytest.mark.slow
@pytest.mark.parametrize(("how", "ended"), [("well", 0), ("interrupted", -signal.SIGINT)])
def test_a_terminal_gets_one_live_status_and_its_cursor_back(how: str, ended: int) -> None:
    output, code = in_terminal(how)
    shown = output.rindex("\x1b[?25h")
    assert (code, "rank 1" in output, "\x1b[?25l" in output) == (ended, True, True)
    assert shown > output.rindex("\x1b[?25l")
    assert ("training is over" in output[shown:]) == (how == "well")


@pytest.mark.slow
def test_a_dumb_terminal_gets_plain_lines() -> None:
    output, code = in_terminal("well", kind="dumb")
    assert code == 0
    assert "\x1b" not in output
    assert "[rank 1] hello\r\n" in output


# ---- the lines of events: settings in a row are printed together, and nothing is lost or out of order ----------------


def setting(step: int, *, rule: str = "decay", what: str = "learning rate") -> AnyEvent:
    return made(event="set", step=step, rule=rule, saw={}, what=what, to=1 / step, over=0.0, unit="steps")


class Lines(EventLines):
    """The lines of events, and a clock that only the test moves."""

    def __init__(self, *events: AnyEvent) -> None:
        self.lines: list[str] = []
        self.now = 0.0
        super().__init__(self.lines.append, clock=lambda: self.now)
        self.events(*events)

    def events(self, *events: AnyEvent) -> None:
        for event in events:
            self.event(event)

    def printed(self) -> list[str]:
        """The lines since the last call."""
        lines, self.lines[:] = [*self.lines], []
        return lines


def test_held_settings_are_printed_before_the_next_event_and_a_new_run_begins() -> None:
    lines = Lines(setting(1), setting(2), made(event="view", version=2, peers=[0, 1]), setting(4))
    assert lines.printed() == [
        "step 1: decay sets the learning rate to 1",
        "step 2: decay sets the learning rate to 0.500",
        "view 2: 2 peers train",
        "step 4: decay sets the learning rate to 0.250",
    ]


def test_an_event_without_a_line_ends_no_run() -> None:
    lines = Lines(setting(1), made(event="spawned", peer=3, pid=7), setting(2))
    assert lines.printed() == ["step 1: decay sets the learning rate to 1"]


def test_rules_that_set_things_by_turns_have_a_line_each() -> None:
    lines = Lines()
    for step in range(1, 5):
        lines.events(setting(step), setting(step, rule="grow", what="global batch size"))
    assert len(lines.printed()) == 2
    lines.print_rest()
    assert lines.printed() == [
        "steps 2 to 4: decay sets the learning rate 3 times, from 0.500 to 0.250",
        "steps 2 to 4: grow sets the global batch size 3 times, from 0.500 to 0.250",
    ]
    lines.print_rest()
    assert lines.printed() == []


def test_settings_that_go_on_for_long_are_printed_from_time_to_time() -> None:
    lines = Lines(setting(1))
    lines.printed()
    lines.now = 100.0  # nothing is held yet, so nothing gets due
    lines.print_due()
    lines.event(setting(2))
    lines.now += HOLD_S / 2
    lines.event(setting(3))
    lines.print_due()
    assert lines.printed() == []
    lines.now += HOLD_S / 2
    lines.print_due()
    assert lines.printed() == ["steps 2 to 3: decay sets the learning rate 2 times, from 0.500 to 0.333"]
    lines.event(setting(4))
    assert lines.printed() == [], "the run goes on"


def test_a_view_is_printed_only_if_its_peers_are_others() -> None:
    views = (
        made(event="view", version=at, peers=peers) for at, peers in enumerate(([0, 1], [0, 1], [0, 1, 2]), start=1)
    )
    assert Lines(*views).printed() == ["view 1: 2 peers train", "view 3: 3 peers train"]
    assert Lines(made(event="phase", phase=2, view=2, peers=[0, 1])).printed() == []


def test_an_error_that_ends_several_peers_is_written_once() -> None:
    def ends(peer: int, error: str = "ValueError: wrong") -> AnyEvent:
        return made(event="program ended", peer=peer, rank=peer, step=7, others=1, how="ValueError", error=error)

    def lost(peer: int) -> AnyEvent:
        return made(event="lost", peer=peer, rank=peer, how="exit code 1", error="ValueError: wrong")

    lines = Lines(ends(0), ends(1), ends(2, "KeyError: 3"), lost(0), lost(1))
    assert lines.printed() == [
        "the program of rank 0 (peer 0) ends after step 7: ValueError: wrong",
        "the program of rank 1 (peer 1) ends after step 7: the same",
        "the program of rank 2 (peer 2) ends after step 7: KeyError: 3",
        "rank 0 (peer 0) is lost: exit code 1 (ValueError: wrong)",
        "rank 1 (peer 1) is lost: exit code 1 (the same)",
    ]
    lines.now += HOLD_S
    lines.event(lost(3))
    assert lines.printed() == ["rank 3 (peer 3) is lost: exit code 1 (ValueError: wrong)"], "it may have scrolled away"


def test_the_end_of_training_is_printed_at_once() -> None:
    lines = Lines(setting(1, what="stop"), setting(2, what="stop"))
    assert lines.printed() == ["step 1: decay ends training", "step 2: decay ends training"]


# ---- what a rule says again and again is printed once, and then counted ----------------------------------------------


def called(step: int, *, asked: int | None = None) -> AnyEvent:
    return made(event="called", step=step, rule="hook", saw={"loss": 1 / step}, asked=asked)


def test_a_hook_that_is_called_in_every_step_is_printed_once_and_counted() -> None:
    lines = Lines(*(called(step) for step in range(1, 100)))
    assert lines.printed() == ["step 1: hook was called with loss 1; it wants no change of size"]
    lines.now = REPEAT_S - 1
    lines.print_due()
    assert lines.printed() == []
    lines.now += 1
    lines.print_due()
    said = "step 99: hook was called with loss 0.0101; it wants no change of size; 97 more like this since step 2"
    assert lines.printed() == [said]
    lines.event(called(100))
    lines.print_rest()
    lines.print_rest()
    assert lines.printed() == ["step 100: hook was called with loss 0.0100; it wants no change of size"]


def test_another_answer_of_a_hook_and_its_decision_are_printed_at_once() -> None:
    decided = {"event": "decision", "rule": "hook", "saw": {}, "size": 2, "done": "1 more"}
    lines = Lines(called(1), called(2), setting(2), setting(3), called(3), setting(4))
    lines.events(called(4, asked=3), made(step=4, asked=3, **decided), called(5), made(step=5, asked=3, **decided))
    assert lines.printed() == [
        "step 1: hook was called with loss 1; it wants no change of size",
        "step 2: decay sets the learning rate to 0.500",
        "step 3: hook was called with loss 0.333; it wants no change of size; 1 more like this since step 2",
        "steps 3 to 4: decay sets the learning rate 2 times, from 0.333 to 0.250",
        "step 4: hook was called with loss 0.250; it wants 3 peers",
        "step 4: hook wants 3 peers instead of 2; 1 more",
        "step 5: hook was called with loss 0.200; it wants no change of size",
        "step 5: hook wants 3 peers instead of 2; 1 more",
    ]


def test_a_size_out_of_reach_that_is_asked_for_in_every_step_is_counted() -> None:
    lines = Lines(*(called(step, asked=9 + step % 3) for step in range(1, 8)))
    by = {"event": "superseded", "rule": "hook", "saw": {}, "by": "grow"}
    idle = {"event": "decision", "rule": "hook", "saw": {}, "size": 2, "has_no_effect": True}
    lines.events(*(made(step=step, asked=9, **by) for step in (8, 9)))
    lines.events(*(made(step=step, asked=step, done=f"{step} is out of reach", **idle) for step in (10, 11)))
    assert [line.partition(":")[0] for line in lines.printed()] == ["step 1", "step 7", "step 8", "step 9", "step 10"]
    lines.print_rest()
    assert lines.printed() == ["step 11: hook wants 11 peers instead of 2; 11 is out of reach"]


def test_a_hook_that_sets_a_rate_in_every_step_is_counted_with_its_settings() -> None:
    lines = Lines()
    for step in range(1, 9):
        hooked = made(event="called", step=step, rule="decay", saw={}, asked=None, also=[f"set_learning_rate({step})"])
        lines.events(hooked, setting(step))
    assert [line.partition(": decay ")[2] for line in lines.printed()] == [
        "was called; it asks for set_learning_rate(1)", "sets the learning rate to 1"
    ]  # fmt: skip
    lines.print_rest()
    assert lines.printed() == [
        "steps 2 to 8: decay sets the learning rate 7 times, from 0.500 to 0.125",
        "step 8: decay was called; it asks for set_learning_rate(8); 6 more like this since step 2",
    ]


def test_what_was_not_said_for_a_minute_is_printed_at_once_again() -> None:
    lines = Lines(called(1))
    lines.now = REPEAT_S
    lines.print_due()
    lines.event(called(2))
    assert [line.partition(":")[0] for line in lines.printed()] == ["step 1", "step 2"]
