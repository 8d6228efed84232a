"""``kungfu page``, and the process beside a job: where they listen, what they refuse, and how they end."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from kungfu.cli.export.listen_address import ListenAddress, is_known
from kungfu.cli.page.page_command import page_process
from kungfu.cli.page.server import url_of
from kungfu.event_log.codec import event_to_line
from kungfu.event_log.events import RECORD_VERSION, RecordEvent
from kungfu.runtime.job_api.job_file import end_job_file
from tests.cli.conftest import Printed
from tests.cli.recorded import GROWN, measured, written
from tests.jobs.harness import awaited
from tests.runtime.job_api.served_job import SECRET, serve_job

# A shell lets what it starts in the background ignore Ctrl-C, and so everything that is started there.
signal.signal(signal.SIGINT, signal.default_int_handler)


def test_what_cannot_be_served_is_one_message_and_code_2(tmp_path: Path, printed: Printed) -> None:
    def told(*words: object) -> str:
        return printed("page", tmp_path, *words, code=2)

    assert "the folder holds no events.jsonl" in told()
    written(tmp_path, GROWN)
    assert "must be PORT or ADDRESS:PORT" in told("--port", "many")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert "nothing can listen there (Address already in use)" in told("--port", port)
    assert "holds no job.json" in told("--secret")
    (tmp_path / "events.jsonl").write_text(event_to_line(RecordEvent(version=RECORD_VERSION + 1)) + "\n")
    assert f"version {RECORD_VERSION + 1}, and this kungfu reads" in told()


def test_the_secret_is_printed_while_the_job_runs(tmp_path: Path, printed: Printed) -> None:
    with serve_job(tmp_path):
        assert printed("page", "--secret", tmp_path) == f"{SECRET}\n"
        end_job_file(tmp_path, code=0, now=1.0)
        assert "the job is over, and its secret gone" in printed("page", "--secret", tmp_path, code=2)


def test_a_page_for_others_is_known_by_the_names_of_its_machine_and_by_no_other() -> None:
    own = socket.gethostname()
    assert is_known([own], "0.0.0.0")
    assert not is_known([own], "127.0.0.1") or own == "localhost"
    assert is_known(["box.example"], "192.0.2.7", printed_host="Box.example")
    assert not is_known([""], "127.0.0.1", printed_host="")
    assert not is_known(["evil.example"], "0.0.0.0")
    assert url_of(ListenAddress("0.0.0.0", 0), 80) == f"http://{own}:80/"


@pytest.mark.slow
def test_beside_a_job_a_page_says_where_it_is_and_ends_with_it_and_not_by_a_signal(tmp_path: Path) -> None:
    written(tmp_path, GROWN, metrics=[measured(1)])
    told = list[str]()
    with page_process(tmp_path, ListenAddress("127.0.0.1", 0), report=told.append):
        awaited(lambda: told, what="its address", deadline_s=120.0)
        address = re.fullmatch(r"page: (http://127\.0\.0\.1:(\d+)/)", told[0])
        assert address
        with urllib.request.urlopen(address[1], timeout=60) as answer:
            assert b'<h1 id="title">' in answer.read()
        taken: list[str] = []
        with page_process(tmp_path, ListenAddress("127.0.0.1", int(address[2])), report=taken.append):
            awaited(lambda: taken, what="its remark", deadline_s=120.0)
        place = f"127.0.0.1:{address[2]}"
        assert taken == [f"page: no page is served at {place} (Address already in use); training continues without it"]
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(address[1], timeout=60)
    assert len(told) == 1, "its end is no remark"


@pytest.mark.slow
@pytest.mark.parametrize(("folder", "document"), [("runs/a", "run.json"), ("runs", "runs.json")])
def test_a_page_of_a_recorded_run_or_of_several_is_served_until_ctrl_c(
    tmp_path: Path, folder: str, document: str
) -> None:
    (tmp_path / "runs" / "a").mkdir(parents=True)
    written(tmp_path / "runs" / "a", GROWN, metrics=[measured(1)])
    command = [sys.executable, "-m", "kungfu.cli.main", "page", str(tmp_path / folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            found = re.search(r"http://\S+/", line)
            assert found, line
            with urllib.request.urlopen(f"{found[0]}{document}", timeout=60) as answer:
                assert answer.status == 200
        finally:
            process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "")
