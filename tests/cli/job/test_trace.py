"""``kungfu profile --trace``: which peers are asked, and what is told of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from kungfu.runtime.core.view import Peer, View
from kungfu.runtime.ipc import rpc
from kungfu.runtime.ipc.messages_pb2_grpc import add_PeerServiceServicer_to_server
from kungfu.runtime.peer.peer_service import PeerService
from tests.cli.conftest import Printed
from tests.runtime.job_api.served_job import SECRET, serve_job


@contextmanager
def served_peers(folder: Path, errors: Sequence[str]) -> Iterator[None]:
    """A job whose peers answer a request for a trace with these errors."""
    with serve_job(folder) as job, ExitStack() as served:
        peers = []
        for number, why in enumerate(errors):
            peer = PeerService(
                deadline_s=5.0, on_offer=lambda: None, prepare_attachment=str,
                write_trace=lambda seconds, folder, why=why: why and f"{why} {seconds:g}",
            )  # fmt: skip
            service = add_PeerServiceServicer_to_server, peer
            server = rpc.serve(service, host="127.0.0.1", secret=SECRET, threads=4)
            served.callback(server.stop)
            peers.append(Peer(number, server.address))
        job.moves(View(4, tuple(peers)))
        yield


def test_all_peers_or_those_that_are_named_are_traced(tmp_path: Path, printed: Printed) -> None:
    with served_peers(tmp_path, ["", ""]):
        lines = printed("profile", "--trace", tmp_path, "--to", tmp_path / "traces").splitlines()
        assert lines[:2] == [f"peer {peer}: {tmp_path}/traces/peer-{peer}" for peer in (0, 1)]
        assert "tensorboard-plugin-profile" in lines[2]
        [peer] = json.loads(printed("profile", "--trace", "--peers", "1", "--json", "--logdir", tmp_path))["peers"]
        assert (peer["id"], peer["error"]) == (1, "")
        assert peer["folder"].startswith(f"{tmp_path}/trace/")


def test_a_peer_that_cannot_be_traced_is_told_and_the_code_is_1(tmp_path: Path, printed: Printed) -> None:
    with served_peers(tmp_path, ["", "no space left"]):
        text = printed("profile", "--trace", "--seconds", "0.5", tmp_path, code=1)
    assert "peer 1 was not traced: no space left 0.5" in text


PEERS = "give the ids of peers, as kungfu status shows them"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("profile --trace --peers 0 7", "--peers 7: not in the view, whose peers are 0"),
        ("profile --trace --seconds 0", "--seconds 0: must be above 0"),
        ("profile --trace --seconds nan", "--seconds nan: must be above 0"),
        ("profile --trace 1 4", "'1 4': give with --trace nothing but RUN"),
        ("profile 1", "'1': give MIN MAX"),
        ("profile 1 x", "'1 x': give MIN MAX"),
        *((f"scale-in {words}", PEERS) for words in ("one", "nowhere 1", "1 here there")),
    ],
)
def test_what_cannot_be_traced_measured_or_removed_is_refused(
    tmp_path: Path, printed: Printed, words: str, text: str
) -> None:
    with served_peers(tmp_path, [""]):
        assert text in printed(*words.split(), "--logdir", tmp_path, code=2)
