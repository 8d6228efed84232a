"""The command for events: which events it gets, and what becomes of one that fails, hangs or reads nothing."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

from kungfu.cli.export.event_command import (
    EndDeadline,
    EventCommand,
    EventSelector,
    event_command_process,
    parse_event_command,
    run_for_events,
)
from kungfu.errors import UsageError
from kungfu.event_log.codec import event_to_line
from kungfu.event_log.record_follower import NewRecords
from tests.cli.recorded import GROWN, Events, written
from tests.event_log.made import made
from tests.jobs.harness import awaited

GUIDE = (Path(__file__).parents[3] / "docs" / "monitoring.md").read_text()
STARTED = made(event="started", time=1.0, job="ab12", size=2, command=["python", "train.py"])


def ran(
    folder: Path, events: Events, command: str, *, kinds: tuple[str, ...] = (), host: int = 0,
    is_over: Callable[[float], bool] = lambda timeout_s: True, within_s: float = 25.0, limit_s: float = 60.0,
) -> list[str]:  # fmt: skip
    """The remarks of a command that runs for the events of a record in this folder; it runs there."""
    remarks = list[str]()
    asked = EventCommand(f"cd {folder}; {command}", kinds, host)
    record = written(folder, events)
    run_for_events(asked, record, EndDeadline(is_over, within_s), report=remarks.append, limit_s=limit_s)
    return remarks


def lines_in(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_the_command_gets_each_line_of_the_record_with_its_words(tmp_path: Path) -> None:
    assert ran(tmp_path, (STARTED, *GROWN[3:]), 'cat >> all; printf "%s|" "$KUNGFU_EVENT_TEXT" >> words') == []
    assert lines_in(tmp_path / "all") == [event_to_line(one) for one in (STARTED, *GROWN[3:])]
    words = (tmp_path / "words").read_text().split("|")
    assert words[0] == "2 peers start: python train.py"
    assert any(one.startswith("step 163: 2 -> 3 peers; peer 2 joined\nas gns_batch decided") for one in words)


@pytest.mark.parametrize(
    ("given", "kinds"),
    [
        (None, ["started", "rescale", "rescale", "ended"]),
        ("view", ["view"] * 3),
        ("decision, peer ended", ["decision"] * 2 + ["peer ended"] * 3),
    ],
)
def test_kinds_and_groups_of_kinds_select_events(tmp_path: Path, given: str | None, kinds: list[str]) -> None:
    asked = parse_event_command("cat >> some", given, host=0)
    assert asked is not None
    assert ran(tmp_path, GROWN, asked.command, kinds=asked.kinds) == []
    assert [json.loads(one)["event"] for one in lines_in(tmp_path / "some")] == kinds


def test_an_unknown_kind_and_what_is_no_command_are_refused() -> None:
    for command, kinds, said in (
        ("cat", "rescale,failure", "no event is of the kind 'failure'; did you mean 'failed'?"),
        ("cat", ",", "no event is of the kind ''; there are all, "),
        ("cat 'x", None, "sh cannot run it ("),
        (" ", None, "it is empty"),
        (None, "rescale", "give --on-event COMMAND too"),
    ):
        with pytest.raises(UsageError, match=re.escape(said)):
            parse_event_command(command, kinds, host=0)
    usual = parse_event_command("cat", "all", host=0)
    assert usual is not None
    assert replace(usual, since=0.0) == EventCommand("cat", ())
    assert parse_event_command(None, None, host=0) is None


def test_a_command_that_fails_is_told_once_and_counted(tmp_path: Path) -> None:
    first, last = ran(tmp_path, [STARTED] * 5, "cat >> all; echo; echo no network >&2; [ $(wc -l < all) -gt 3 ]")
    assert first.startswith("the command failed for an event 'started' (exit code 1: no network); training continues")
    assert last == "the command failed for 3 of 5 events"
    assert len(lines_in(tmp_path / "all")) == 5


def test_a_command_that_hangs_ends_at_its_limit_with_its_processes(tmp_path: Path) -> None:
    hanging = "echo $$ >> pids; sleep 600 & echo $! >> pids; wait"
    first, last = ran(tmp_path, [STARTED] * 2, hanging, limit_s=0.3)
    assert "(ended after 0 s)" in first
    assert last == "the command failed for 2 of 2 events"
    pids = [*map(int, lines_in(tmp_path / "pids"))]
    assert len(pids) == 4
    awaited(lambda: not any(map(_runs, pids)), what="their ends", deadline_s=30.0)


def _runs(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_a_command_that_reads_nothing_or_leaves_a_process_delays_nothing(tmp_path: Path) -> None:
    wide = made(event="started", time=1.0, job="ab12", size=2, command=["x" * 300_000])
    assert ran(tmp_path, [wide, wide], "echo >> all; yes | head -c 1000000; sleep 2 &") == []
    assert len(lines_in(tmp_path / "all")) == 2


def test_what_does_not_fit_after_the_end_of_the_job_is_left_out_and_counted(tmp_path: Path) -> None:
    ends = iter([False])  # over at the second look, which is while the first command runs
    remarks = ran(
        tmp_path, [STARTED] * 9, "echo >> all; sleep 60", is_over=lambda timeout_s: next(ends, True), within_s=0.2
    )
    assert len(lines_in(tmp_path / "all")) == 1
    assert remarks[1:] == [
        "the command did not run for the last 8 events, which did not fit into the 0 s after the end of the job",
        "the command failed for 1 of 1 event",
    ]


def test_of_several_hosts_the_one_that_leads_runs_it(tmp_path: Path) -> None:
    waits, grown = (
        made(event="host", time=0.5, host=0, name="a"),
        made(event="view", time=15.0, version=2, peers=[0, 1]),
    )
    lost = made(event="host lost", time=21.0, host=0, name="a", why="silent")
    events = [waits, STARTED, grown, made(event="head", time=20.0, host=1, name="b", term=2), lost]
    handed = {}
    for host in (0, 1, 2):
        (folder := tmp_path / str(host)).mkdir()
        assert ran(folder, events, "cat >> all", host=host) == []
        handed[host] = [json.loads(one)["event"] for one in lines_in(folder / "all")]
    assert handed == {0: ["host", "started", "view"], 1: ["view", "head", "host lost"], 2: []}, "the last 10 s twice"
    selector, heads = EventSelector((), host=1), {2: 1, 3: 2, 4: 1}
    elections = [made(event="head", time=20.0 + term, host=one, name="b", term=term) for term, one in heads.items()]
    chosen = [one for event in [grown, *elections] for one in selector.made_of(NewRecords((event,)))]
    assert chosen == [grown, *elections], "each event once, though the host is elected twice"
    later = EventSelector((), host=0, since=20.0)
    assert [*later.made_of(NewRecords((*events,)))] == [], "it was run for them before the job was started again"
    (again := tmp_path / "again").mkdir()
    returned = [made(event="host", host=0, name="a"), made(event="view", version=7, peers=[1, 2])]
    ran(again, returned, "cat >> all", kinds=("view",))
    assert not (again / "all").exists(), "host 0 is back in a job that another host leads"


@pytest.mark.slow
def test_the_process_runs_it_while_the_job_goes_on_and_gives_it_what_kungfu_run_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, remarks = written(tmp_path, [STARTED]), list[str]()
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    command = f"cat >> {tmp_path}/all; echo $PYTHONPATH >> {tmp_path}/path; trap '' USR1; kill -TERM $$; false"
    with event_command_process(record, EventCommand(command, ()), report=remarks.append):
        awaited(lambda: lines_in(tmp_path / "path"), what="a line", deadline_s=60.0)
        with (record / "events.jsonl").open("a") as file:
            file.write(event_to_line(made(event="ended", time=9.0)) + "\n")
    assert [json.loads(one)["event"] for one in lines_in(tmp_path / "all")] == ["started", "ended"]
    assert lines_in(tmp_path / "path") == ["/somewhere"] * 2
    assert "(exit code -15)" in remarks[0], "a signal is not ignored in what it runs"
    assert remarks[1:] == ["on-event: the command failed for 2 of 2 events"]


# ---- recipes ---------------------------------------------------------------------------------------------------------


def recipe(name: str) -> str:
    (program,) = re.findall(rf"```python\n# {name}\n(.*?)```", GUIDE, flags=re.DOTALL)
    return str(program)


def test_the_recipe_for_slack_posts_the_words(tmp_path: Path) -> None:
    posted = list[tuple[str, Any]]()

    class Slack(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            posted.append((self.headers["Content-Type"], json.loads(body)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *given: object) -> None:
            """Prints nothing."""

    (tmp_path / "slack.py").write_text(recipe("slack.py"))
    with HTTPServer(("127.0.0.1", 0), Slack) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        hook = f"SLACK_WEBHOOK=http://127.0.0.1:{server.server_port} NO_PROXY=127.0.0.1"
        assert ran(tmp_path, [STARTED], f"{hook} {sys.executable} -S slack.py") == []
        server.shutdown()
        thread.join()
    assert posted == [("application/json", {"text": "job ab12: 2 peers start: python train.py"})]


def test_the_recipe_for_weights_and_biases_sends_an_alert(tmp_path: Path) -> None:
    (tmp_path / "wandb_alert.py").write_text(recipe("wandb_alert.py"))
    fake = (
        "class Run:\n"
        "    def __enter__(self): return self\n"
        "    def __exit__(self, *error): pass\n"
        "    def alert(self, title, text, level): open('sent', 'a').write(f'{title}|{text}|{level}')\n"
        "def init(project, id, name, resume): open('sent', 'a').write(f'{id}|'); return Run()\n"
    )
    (tmp_path / "wandb.py").write_text(fake)
    lost = made(event="lost", time=2.0, peer=1, how="killed by SIGKILL")
    assert ran(tmp_path, [STARTED, lost], f"{sys.executable} -S wandb_alert.py", kinds=("lost",)) == []
    sent = (tmp_path / "sent").read_text()
    assert re.fullmatch(r"events-ab12\|kungfu: lost\|.*killed by SIGKILL.*\|ERROR", sent, flags=re.DOTALL), sent
