"""The ends of the peers' logs: a hundred lines of text, no control characters, no secret, and no other file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kungfu.cli.page.peer_log import LINES, PeerLogs
from kungfu.errors import UsageError
from kungfu.runtime.job_api.job_file import end_job_file
from tests.runtime.job_api.served_job import serve_job

SECRET = "0123456789abcdef" * 4


def logged(folder: Path, text: str | bytes, *, peer: int = 0) -> PeerLogs:
    (folder / "peers").mkdir(exist_ok=True)
    (folder / "peers" / f"peer-{peer}.log").write_bytes(text.encode() if isinstance(text, str) else text)
    return PeerLogs(folder)


def test_the_end_is_a_hundred_lines_as_a_terminal_shows_them(tmp_path: Path) -> None:
    lines = [f"line {number}" for number in range(300)]
    assert logged(tmp_path, "\n".join(lines) + "\n").end("0").split("\n") == lines[-LINES:]
    assert logged(tmp_path, "10%\r\x1b[31m100%\x1b[0m done\n\nlast, without an end", peer=1).end("1") == (
        "100% done\n\nlast, without an end"
    )
    assert logged(tmp_path, b"\xff\xfe broken\n").end("0") == "�� broken"
    assert logged(tmp_path, "").end("0") == ""
    noise = "2026-01-31 12:00:00.123456: I tensorflow/core/util/port.cc:153] oneDNN custom operations are on.\n"
    assert logged(tmp_path, f"{noise}mine\n{noise}").end("0") == "mine"


def test_of_long_lines_the_end_is_whole_lines_and_of_one_its_end(tmp_path: Path) -> None:
    wide = logged(tmp_path, "".join(f"{number} {'w' * 9_000}\n" for number in range(200))).end("0").split("\n")
    assert 1 < len(wide) < LINES
    assert all(line.endswith("w" * 9_000) for line in wide)
    assert set(logged(tmp_path, "x" * 1_000_000).end("0")) == {"x"}


def test_the_secret_of_the_job_is_not_shown_even_after_its_end(tmp_path: Path) -> None:
    settings = f'environ({{"KUNGFU_SETTINGS": "{{\\"secret\\": \\"{SECRET}\\", \\"peer\\": 1}}"}})'
    logs = logged(tmp_path, f"{settings}\nKUNGFU_SECRET={SECRET}\nbare {SECRET.upper()}, sha1 {'ab' * 20}\n")
    with serve_job(tmp_path, secret=SECRET):
        before = logs.end("0")
        assert SECRET not in before.lower()
        assert before.endswith(f"sha1 {'ab' * 20}"), "another long number is no secret"
        end_job_file(tmp_path, code=0, now=1.0)
        assert logs.end("0") == before
    labelled = PeerLogs(tmp_path).end("0").split("\n")[:2]
    assert not any(SECRET in line for line in labelled), "the page of a job that is over"


@pytest.mark.parametrize("peer", ["7", "../0", "²", "", "9" * 5_000, "-1", "0.log"])
def test_what_is_no_log_of_a_peer_on_this_host_is_refused(tmp_path: Path, peer: str) -> None:
    with pytest.raises(UsageError, match="holds no log of peer"):
        logged(tmp_path, "x").end(peer)


def test_a_link_out_of_the_record_and_a_pipe_are_refused(tmp_path: Path) -> None:
    (tmp_path / "private").write_text("mine")
    record = tmp_path / "record"
    record.mkdir()
    logs = logged(record, "x")
    (record / "peers" / "peer-1.log").symlink_to(tmp_path / "private")
    os.mkfifo(record / "peers" / "peer-2.log")
    for peer in ("1", "2"):
        with pytest.raises(UsageError, match="holds no log"):
            logs.end(peer)
