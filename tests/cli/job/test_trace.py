"""``kungfu profile --trace``: which peers are asked, and what is told of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from kungfu.cli.main import main
from kungfu.runtime.core.view import Peer, View
from kungfu.runtime.ipc import rpc
from kungfu.runtime.ipc.messages_pb2_grpc import add_PeerServiceServicer_to_server
from kungfu.runtime.peer.peer_service import PeerService
from tests.runtime.job_api.served_job import SECRET, serve_job


@contextmanager
def served_peers(folder: Path, errors: Sequence[str]) -> Iterator[None]:
    """A job whose peers answer a request for a trace with these errors."""
    servers = []
    for why in errors:
        peer = PeerService(
            deadline_s=5.0,
            on_offer=lambda: None,
            prepare_attachment=str,
            write_trace=lambda seconds, folder, why=why: why and f"{why} {seconds:g}",
        )
        servers.append(
            rpc.serve((add_PeerServiceServicer_to_server, peer), host="127.0.0.1", secret=SECRET, threads=4)
        )  # fmt: skip
    try:
        with serve_job(folder) as job:
            job.moves(View(4, tuple(Peer(peer, server.address) for peer, server in enumerate(servers))))
            yield
    finally:
        for server in servers:
            server.stop()


def test_all_peers_or_those_that_are_named_are_traced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with served_peers(tmp_path, ["", ""]):
        assert main(["profile", "--trace", str(tmp_path), "--to", str(tmp_path / "traces")]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[:2] == [f"peer {peer}: {tmp_path}/traces/peer-{peer}" for peer in (0, 1)]
        assert "tensorboard-plugin-profile" in lines[2]
        assert main(["profile", "--trace", "--peers", "1", "--json", "--logdir", str(tmp_path)]) == 0
        [peer] = json.loads(capsys.readouterr().out)["peers"]
        assert (peer["id"], peer["error"]) == (1, "")
        assert peer["folder"].startswith(f"{tmp_path}/trace/")


def test_a_peer_that_cannot_be_traced_is_told_and_the_code_is_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with served_peers(tmp_path, ["", "no space left"]):
        assert main(["profile", "--trace", "--seconds", "0.5", str(tmp_path)]) == 1
        assert "peer 1 was not traced: no space left 0.5" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--trace", "--peers", "0", "7"], "--peers 7: not in the view, whose peers are 0"),
        (["--trace", "--seconds", "0"], "--seconds 0: must be above 0"),
        (["--trace", "--seconds", "nan"], "--seconds nan: must be above 0"),
        (["--trace", "1", "4"], "'1 4': give with --trace nothing but LOGDIR"),
        (["1"], "'1': give MIN MAX"),
        (["1", "x"], "'1 x': give MIN MAX"),
    ],
)
def test_what_cannot_be_traced_or_measured_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], text: str
) -> None:
    with served_peers(tmp_path, [""]):
        assert main(["profile", *words, "--logdir", str(tmp_path)]) == 2
        assert text in capsys.readouterr().err
