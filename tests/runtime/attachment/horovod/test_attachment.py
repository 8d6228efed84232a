"""Real processes on Horovod's Gloo: joins, leaves, deaths and delays under one traced graph."""

from __future__ import annotations

import functools
import itertools
import math
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kungfu.errors import UsageError
from kungfu.runtime.attachment.horovod import HorovodAttachment
from kungfu.runtime.ipc.handshake import Credentials
from tests.runtime.attachment.peer_process import DEADLINE_S, PeerProcess
from tests.runtime.expiring import expired_at

pytest.importorskip(
    "horovod.tensorflow", reason="horovod is not installed; `python -m kungfu.native.horovod` builds it"
)

pytestmark = pytest.mark.slow
WITHOUT = ("matplotlib", "sklearn")  # not Keras: Horovod derives a class from one of its classes
HERE, THERE = "127.0.0.1", "127.0.0.2"  # both are this machine, and two hosts to the attachment
ME = Credentials("job", view=5, rank=0, size=2, secret=b"secret")  # of a view that no test opens
ARGUMENTS: dict[str, Any] = {"deadline_s": 0.5, "addresses": ["127.0.0.1:1", "127.0.0.1:2"]}
BREAKS = 12
Answers = list[dict[str, Any]]


def ask(peers: Sequence[PeerProcess], do: str, **arguments: Any) -> Answers:
    for peer in peers:
        peer.tell(do, **arguments)
    return [peer.hear() for peer in peers]


VIEWS = itertools.count(1)


def open_view(peers: Sequence[PeerProcess], *, deadline_s: float = DEADLINE_S, of_two_hosts: bool = False) -> Answers:
    (store,) = ask(peers[:1], "prepare", size=len(peers))
    addresses = [f"{peer.words[0] if of_two_hosts else HERE}:{4000 + rank}" for rank, peer in enumerate(peers)]
    place = {"size": len(peers), "view": next(VIEWS), "addresses": addresses, "rendezvous": store["given"]}
    for rank, peer in enumerate(peers):
        peer.tell("open", rank=rank, deadline_s=deadline_s, **place)
    return [peer.hear() for peer in peers]


class Cluster:
    """Three processes for all tests of this file, of one host for all but one; the last test kills one."""

    def __init__(self) -> None:
        program = Path(__file__).with_name("peer.py")
        self.peers = [PeerProcess(program, host, without=WITHOUT) for host in (HERE, THERE, HERE)]

    @functools.cached_property
    def history(self) -> dict[str, Answers]:
        """What 2 -> 3 -> 2 peers answered; the leaver of the end is alone afterwards."""
        peers = self.peers
        alone = ask(peers, "mixture", prescale=0.5)
        opened = open_view(peers[:2])
        two = {do: ask(peers[:2], do) for do in ("eager", "constants", "gated", "normal")}
        two["mixture"] = ask(peers[:2], "mixture", prescale=1.0)
        two["halved"] = ask(peers[:2], "mixture", prescale=0.5)
        opened += open_view(peers)
        three = {do: ask(peers, do) for do in ("constants", "gated", "normal", "norms", "mismatch")}
        three["mixture"] = ask(peers, "mixture", prescale=1.0)
        left = ask(peers[1:2], "close")
        opened += open_view([peers[2], peers[0]])
        again = {do: ask([peers[2], peers[0]], do) for do in ("constants", "normal")}
        again["mixture"] = ask([peers[2], peers[0]], "mixture", prescale=1.0)
        left += ask(peers[1:2], "constants")
        named = {f"{name} {do}": a for name, d in (("2", two), ("3", three), ("again", again)) for do, a in d.items()}
        return {"alone": alone, "opened": opened, "left": left, **named}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    started = Cluster()
    try:
        yield started
    finally:
        for peer in started.peers:
            peer.kill()


DTYPES = ["float32", "float16", "float64", "int32", "bfloat16", "float32", "float64", "int64", "float32"]


def mixture(size: int, *, factor: float = 1.0) -> list[Any]:
    """What the peers' mixtures of values 1, 2, ... add up to, computed by hand from the tests' peer."""
    total = size * (size + 1) / 2
    scaled = total * factor
    counts = sum(2**40 + rank for rank in range(size))
    return [
        [[scaled] * 3] * 2,
        scaled,
        [],
        [total, -total],
        [scaled] * 2,
        [scaled] * 3,
        [scaled / 3] * 2,
        [counts] * 2,
        [total, total * 10],
    ]


@pytest.mark.parametrize(
    ("when", "size"), [("2 eager", 2), ("2 mixture", 2), ("2 halved", 2), ("3 mixture", 3), ("again mixture", 2)]
)
def test_every_dtype_and_shape_is_added_over_the_peers_of_the_view(when: str, size: int, cluster: Cluster) -> None:
    expected = _flat(mixture(size, factor=0.5 if when == "2 halved" else 1.0))
    answers = cluster.history[when]
    assert len(answers) == size
    for answer in answers:
        assert [pytest.approx(want, rel=1e-12) for want in expected] == _flat(answer["sums"])
        assert answer["dtypes"] == DTYPES
        assert answer.get("traces", 1) == 1, "one trace serves all views"


def test_before_the_first_view_and_after_the_last_the_op_is_the_identity(cluster: Cluster) -> None:
    for answer in cluster.history["alone"]:
        assert _flat(answer["sums"]) == pytest.approx(_flat(mixture(1, factor=0.5)))
    assert cluster.history["left"][-1]["sums"] == [[1.0, 2.0], [1.0, 2.0]]


@pytest.mark.parametrize(("when", "size"), [("2 constants", 2), ("3 constants", 3), ("again constants", 2)])
def test_messages_of_constants_are_neither_folded_nor_merged(when: str, size: int, cluster: Cluster) -> None:
    for answer in cluster.history[when]:
        assert answer["sums"] == [[1.0 * size, 2.0 * size]] * 2
        assert answer["traces"] == 1


@pytest.mark.parametrize(("when", "size"), [("2 gated", 2), ("3 gated", 3)])
def test_messages_in_gates_and_inner_functions_run_in_the_order_of_the_program(
    when: str, size: int, cluster: Cluster
) -> None:
    in_order = [f"kungfu_{tag}_float32" for tag in ("flat", "gate_one", "gate_two", "inner")]
    for answer in cluster.history[when]:
        assert answer["values"] == [1.0 * size, 2.0 * size, 3.0 * size, 4.0 * size, 8.0]
        assert answer["begun"] == in_order


@pytest.mark.parametrize(("when", "size"), [("2 normal", 2), ("3 normal", 3), ("again normal", 2)])
def test_the_sum_is_bit_for_bit_equal_on_all_peers(when: str, size: int, cluster: Cluster) -> None:
    answers = cluster.history[when]
    assert len(answers) == size
    assert len({answer["digest"] for answer in answers}) == 1
    assert all(answer["finite"] for answer in answers)


def test_norms_have_the_bits_of_the_oracle_and_travel_in_their_placeholders(cluster: Cluster) -> None:
    answers = cluster.history["3 norms"]
    assert [answer["norms"][0] for answer in answers[:2]] == [answer["oracle"][0] for answer in answers[:2]]
    assert math.isnan(answers[2]["norms"][0]), "it has no samples"
    assert [answer["norms"][1] for answer in answers] == [answers[0]["oracle"][1]] * 3
    for answer in answers:
        assert answer["rider"] == pytest.approx([answers[0]["oracle"][0] + answers[1]["oracle"][0], 6.0], rel=1e-6)


def test_peers_whose_tensors_differ_hear_of_it(cluster: Cluster) -> None:
    for answer in cluster.history["3 mismatch"]:
        assert answer["error"] == "FailedPreconditionError"
        assert "Mismatched ALLREDUCE tensor shapes" in answer["text"]


def test_peers_of_two_hosts_meet_at_the_host_of_rank_0(cluster: Cluster) -> None:
    peers = cluster.peers
    open_view(peers, of_two_hosts=True)
    three = ask(peers, "mixture", prescale=1.0)
    moved = open_view(peers[1:], of_two_hosts=True)
    two = ask(peers[1:], "mixture", prescale=1.0)
    assert ask(peers[1:2], "prepare", size=2)[0]["given"].startswith(f"{THERE}:")
    ask(peers[1:], "close")
    assert [answer.get("error") for answer in moved] == [None, None]
    for answers, size in ((three, 3), (two, 2)):
        for answer in answers:
            assert _flat(answer["sums"]) == pytest.approx(_flat(mixture(size)))
            assert answer["traces"] == 1


def test_nothing_is_left_in_the_environment(cluster: Cluster) -> None:
    assert [answer["left_behind"] for answer in cluster.history["opened"]] == [[]] * 7


def test_a_peer_that_does_not_come_to_a_message_is_named_after_the_deadline(cluster: Cluster) -> None:
    peers = cluster.peers
    open_view(peers)
    ask(peers, "wait_at_most", deadline_s=2.0)
    for peer in (peers[0], peers[2]):
        peer.tell("constants")
    for peer in (peers[0], peers[2]):
        answer = peer.hear()
        assert answer["error"] == "UnknownError"
        assert 1.5 < answer["seconds"] < 60
    answers = ask([peers[0], peers[2]], "reason")
    named = [answer for answer in answers if "s in a message for rank 1" in answer["reason"]]
    assert named
    assert all(answer["ranks"] == [1] for answer in named)
    ask(peers, "close")


def test_a_connection_that_breaks_in_the_middle_of_a_message_ends_it_on_both_sides(cluster: Cluster) -> None:
    two = cluster.peers[:2]
    for attempt in range(BREAKS):
        open_view(two, deadline_s=120.0)
        two[attempt % 2].tell("stream", abort_after_s=0.02 + 0.007 * attempt)
        two[1 - attempt % 2].tell("stream", abort_after_s=None)
        for answer in [peer.hear() for peer in two]:
            assert answer["error"] in ("UnknownError", "FailedPreconditionError")
            assert answer["seconds"] < 60, "an engine may wait for 120 s for a connection"
    ask(two, "close")


def test_a_killed_peer_ends_the_message_and_the_others_go_on_in_a_new_view(cluster: Cluster) -> None:
    peers = cluster.peers
    open_view(peers)
    for peer in peers[:2]:
        peer.tell("constants")
    peers[2].process.send_signal(signal.SIGKILL)
    # One engine meets the closed connection; the other one, which may wait for that, hears of it when that one ends.
    for answer in [peer.hear() for peer in peers[:2]]:
        assert answer["error"] == "UnknownError"
        assert "Horovod has been shut down" in answer["text"]
        assert answer["seconds"] < 60
    assert [answer["error"] for answer in ask(peers[:2], "constants")] == ["UnknownError"] * 2
    open_view(peers[:2])
    assert [answer["sums"] for answer in ask(peers[:2], "constants")] == [[[2.0, 4.0]] * 2] * 2
    broken = ask(peers[:2], "break_pipe")
    assert [one["error"] for one in broken] == ["BrokenPipeError"] * 2, "no peer dies of the death of another one"
    ask(peers[:2], "close")  # an engine that waits for messages is busy


def test_a_peer_that_does_not_come_to_a_view_is_named_after_the_deadline_of_open() -> None:
    attachment = HorovodAttachment()
    given = {"addresses": ARGUMENTS["addresses"], "rendezvous": attachment.prepare(2)}
    try:
        _, error = expired_at(
            "for rank 1 of 2 to come to view 5", lambda deadline_s: attachment.open(ME, deadline_s=deadline_s, **given)
        )
        assert error.waited_s < 60
    finally:
        attachment.close()


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"me": replace(ME, rank=2)}, "rank 2, size 2 was given"),
        ({"me": replace(ME, secret=b"")}, "a rank in 0..size-1 and a secret"),
        ({"rendezvous": ""}, "2 and '' were given"),
        ({"addresses": ["a:1"]}, "1 and 'a:9' were given"),
        ({"addresses": ["a:1", "b"]}, "'b'; expected is HOST:PORT"),
    ],
)
def test_a_view_that_cannot_be_is_refused(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        HorovodAttachment().open(**{"me": ME, "rendezvous": "a:9", **ARGUMENTS, **wrong})


def test_a_view_of_one_needs_nobody() -> None:
    attachment = HorovodAttachment()
    assert attachment.prepare(1) == ""
    attachment.open(replace(ME, size=1), deadline_s=0.5, addresses=["127.0.0.1:1"])
    attachment.close()
    attachment.close()


def _flat(nested: Any) -> list[Any]:
    return [leaf for part in nested for leaf in _flat(part)] if isinstance(nested, list) else [nested]
