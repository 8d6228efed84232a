"""A desk behind a real gRPC server, in this process: an agent without peers, whose cluster the test moves."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from kungfu.event_log.events import RequestEvent
from kungfu.runtime.core.cluster.cluster import Cluster, JobLimits
from kungfu.runtime.core.cluster.events import ViewStarted
from kungfu.runtime.core.request import Asked
from kungfu.runtime.core.requests.admission import Scaling
from kungfu.runtime.core.view import Peer, View
from kungfu.runtime.ipc import rpc
from kungfu.runtime.ipc.messages_pb2_grpc import add_JobServiceServicer_to_server
from kungfu.runtime.job_api.job_file import JobFile, identify_process, write_job_file
from kungfu.runtime.job_api.job_service import JobService
from kungfu.runtime.job_api.request_handler import RequestHandler
from kungfu.runtime.settings import Deadlines, Limits, Settings

SECRET = "5ec2e7"


def view(version: int, *peers: int) -> View:
    return View(version, tuple(Peer(peer, f"127.0.0.1:{9000 + peer}") for peer in peers))


@dataclass
class ServedJob:
    """``put`` is the agent's queue; ``told`` is what the coordinator heard, ``journal`` what was written down."""

    folder: Path
    cluster: Cluster
    queue: queue.SimpleQueue[Any] = field(default_factory=queue.SimpleQueue)
    told: list[Asked] = field(default_factory=list)
    journal: list[RequestEvent] = field(default_factory=list)

    def moves(self, after: View) -> None:
        """Another view is in force."""
        self.put(ViewStarted(after))

    def put(self, event: Any) -> None:
        self.queue.put(event)

    def work(self, handler: RequestHandler) -> None:
        """The agent's thread; ``None`` ends it."""
        while (event := self.queue.get()) is not None:
            if isinstance(event, ViewStarted):
                self.cluster = with_view(self.cluster, event.view)
            self.told += handler.handle(event, self.cluster, time.monotonic())
            handler.send_replies()


def with_view(cluster: Cluster, after: View) -> Cluster:
    """All peers of the view run, and nobody else does."""
    return replace(cluster, view=after, processes=replace(cluster.processes, alive=frozenset(after.ids)))


@contextmanager
def serve_job(folder: Path, *, scaling: Scaling = "elastic", secret: str = SECRET) -> Iterator[ServedJob]:
    """A job of peers 0 and 1 in view 3, which takes 1 to 4; its file in ``folder`` holds ``secret``."""
    settings = Settings("job", -1, "127.0.0.1:0", SECRET, "local", Limits(1, 4), Deadlines(60.0, 20.0))
    place = ServedJob(folder, with_view(Cluster(JobLimits(settings.deadlines)), view(3, 0, 1)))
    handler = RequestHandler(settings, scaling=scaling, record=place.journal.append, process_of=lambda peer: 100 + peer)
    service = JobService(place.put)
    server = rpc.serve((add_JobServiceServicer_to_server, service), host="127.0.0.1", secret=SECRET, threads=4)
    process = identify_process(os.getpid())
    patience = pytest.MonkeyPatch()  # who answers late on a busy machine is waited for
    patience.setattr("kungfu.runtime.job_api.job_service._ANSWER_S", 60.0)
    patience.setattr("kungfu.runtime.job_api.client.DEADLINE_S", 60.0)
    write_job_file(folder, JobFile("job", server.address, secret, os.getpid(), time.time(), process=process))
    worker = threading.Thread(target=place.work, args=(handler,))
    worker.start()
    try:
        yield place
    finally:
        place.put(None)
        worker.join(timeout=180.0)
        server.stop()
        patience.undo()
