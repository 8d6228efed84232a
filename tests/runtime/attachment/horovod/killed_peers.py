"""Views of peers that are forked from this process, one of which dies while their engines connect.

A JSON line on standard input asks for a view: its ``size``, the rank that is the ``victim``, after how many ``ms`` of
its engine's start it is killed, the ``deadline_s``, and whether the others are ``told`` of it, as by an agent. The
answer is what each of the others got from that view, and what it summed in the next one under the same traced graph.
"""

from __future__ import annotations

import json
import os
import select
import signal
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import tensorflow as tf

from kungfu.errors import KungfuError, PeerFailure
from kungfu.runtime.attachment.horovod import HorovodAttachment, engine
from kungfu.runtime.ipc.handshake import Credentials
from tests.runtime.attachment.peer_process import serve

HANGS_AFTER_S = 200.0
ADDRESS_BYTES = 128


class Forked:
    """One of the peers, in a process of its own."""

    def __init__(self, rank: int, *, size: int, deadline_s: float) -> None:
        self._rank, self._size, self._deadline_s = rank, size, deadline_s
        self._attachment, self._order = HorovodAttachment(), tf.Variable(0, dtype=tf.int64)
        self.sum = tf.function(self._sum, autograph=False)
        self.sum()

    def _sum(self) -> Any:
        (total,) = self._attachment.all_reduce([tf.constant(1.0)], prescale=1.0, order=self._order, tag="sum")
        return total

    def enter(self, view: int, *, ranks: list[int], pipe: tuple[int, int], **abandoned: Any) -> float:
        """Opens a view of these, of which the first keeps the store, and sums up a one of each."""
        rank, size = ranks.index(self._rank), len(ranks)
        if rank == 0:
            store = self._attachment.prepare(size)
            os.write(pipe[1], store.encode().ljust(ADDRESS_BYTES) * (size - 1))
        else:
            store = os.read(pipe[0], ADDRESS_BYTES).decode().strip()
        addresses = [f"127.0.0.1:{4000 + one}" for one in ranks]
        me = Credentials("test", view, rank, size, b"secret")
        self._attachment.open(me, deadline_s=self._deadline_s, addresses=addresses, rendezvous=store, **abandoned)
        try:
            return float(self.sum())
        except tf.errors.OpError as error:
            raise self._attachment.failure_of(error) or error from None


def die_after(seconds: float) -> None:
    """From now on the start of an engine in this process ends it after so many seconds."""
    start: Callable[..., None] = engine.start

    def dying(*arguments: Any, **named: Any) -> None:
        def kill() -> None:
            time.sleep(seconds)
            os.kill(os.getpid(), signal.SIGKILL)

        threading.Thread(target=kill, daemon=True).start()
        start(*arguments, **named)
        signal.pause()

    engine.start = dying


def survive(peer: Forked, asked: dict[str, Any], *, pipes: list[tuple[int, int]], victim_lives: int) -> dict[str, Any]:
    """What a survivor got from the view, after how long, and what the next one gave."""
    size, victim = asked["size"], asked["victim"]

    def abandoned() -> PeerFailure | None:
        is_gone = bool(select.select([victim_lives], [], [], 0)[0])
        return PeerFailure(f"rank {victim} was killed", ranks=[victim]) if is_gone else None

    started = time.monotonic()
    try:
        told = {"abandoned": abandoned} if asked["told"] else {}
        first: Any = peer.enter(1, ranks=list(range(size)), pipe=pipes[0], **told)
    except KungfuError as error:
        first = f"{type(error).__name__}: {error}"
    seconds = time.monotonic() - started
    following = peer.enter(2, ranks=[one for one in range(size) if one != victim], pipe=pipes[1])
    return {"first": first, "seconds": seconds, "next": following}


def run_forked(rank: int, asked: dict[str, Any], *, pipes: list[tuple[int, int]], life: tuple[int, int]) -> NoReturn:
    try:
        peer = Forked(rank, size=asked["size"], deadline_s=asked["deadline_s"])
        if rank == asked["victim"]:
            die_after(asked["ms"] / 1000)
            peer.enter(1, ranks=list(range(asked["size"])), pipe=pipes[0])
        os.close(life[1])
        answer = survive(peer, asked, pipes=pipes, victim_lives=life[0])
        os.write(pipes[2][1], json.dumps(answer).encode() + b"\n")
        os._exit(0)
    except BaseException:  # noqa: BLE001 - whatever it was, a fork must not go on as its parent
        traceback.print_exc()
    finally:
        os._exit(1)


def run_view(asked: dict[str, Any]) -> dict[str, Any]:
    """The answers of all survivors, and the exit codes of all peers."""
    engine.load()  # once, before the forks
    pipes, life = [os.pipe() for _ in range(3)], os.pipe()
    processes = []
    for rank in range(asked["size"]):
        if (pid := os.fork()) == 0:
            run_forked(rank, asked, pipes=pipes, life=life)
        processes.append(pid)
    for end in (*life, pipes[2][1]):
        os.close(end)
    hung = threading.Timer(HANGS_AFTER_S, lambda: [os.kill(pid, signal.SIGABRT) for pid in processes])
    hung.start()
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in processes]
    hung.cancel()
    with os.fdopen(pipes[2][0]) as answers:
        said = [json.loads(line) for line in answers]
    for end in (*pipes[0], *pipes[1]):
        os.close(end)
    return {"codes": codes, "survivors": said}


if __name__ == "__main__":
    serve(lambda do, **asked: run_view(asked))
