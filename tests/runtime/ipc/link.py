"""A network between the clients and a server of this machine, which delays, loses and refuses like a real one.

What is sent while the link is down is sent again after 0.2, 0.6, 1.4, 3.0 ... s, and a connection is asked for again
after 1, 3, 7 ... s, as TCP does: a link that is back is not used again at once.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

_RESENT_S, _ASKED_AGAIN_S = 0.2, 1.0


class Link:
    """Clients connect to ``address``; every byte takes ``delay_s`` each way, and nothing passes while it is down.

    ``reached`` is set once a client has asked for a connection."""

    def __init__(self, target: str, loop: asyncio.AbstractEventLoop, *, delay_s: float) -> None:
        self._target, self._loop, self._delay_s = target, loop, delay_s
        self._passes = True
        self._tasks: set[asyncio.Task[None]] = set()
        self.address = ""
        self.reached = threading.Event()

    def down(self) -> None:
        """From now on nothing passes."""
        self._passes = False

    def cut(self) -> None:
        """Ends every connection; new ones come about."""
        self._loop.call_soon_threadsafe(self._end_connections)

    def _end_connections(self) -> None:
        for task in self._tasks:
            task.cancel()

    def up(self) -> None:
        """What is sent from now on passes; what was lost is sent again when its time comes."""
        self._passes = True

    async def serve(self, host: str, began: threading.Event, over: asyncio.Event) -> None:
        """Carries what clients and server say until it is ``over``."""
        with socket.create_server((host, 0)) as listening, ExitStack() as connections:
            listening.setblocking(False)
            self.address = f"{host}:{listening.getsockname()[1]}"
            began.set()
            self._loop.add_reader(listening, self._accept, listening, connections)
            await over.wait()
            self._loop.remove_reader(listening)
            self._end_connections()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for _ in range(5):  # turns of the loop, in which it forgets them
                await asyncio.sleep(0)

    def _accept(self, listening: socket.socket, connections: ExitStack) -> None:
        connection = connections.enter_context(listening.accept()[0])
        self.reached.set()
        self._tasks.add(asyncio.ensure_future(self._connected(connection)))

    async def _connected(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection)
        try:
            await self._passed(_ASKED_AGAIN_S)
            await asyncio.sleep(2 * self._delay_s)  # the caller of a real network is not connected before
            host, _, port = self._target.rpartition(":")
            there, back = await asyncio.open_connection(host, int(port))
            try:
                await asyncio.gather(self._carried(reader, back), self._carried(there, writer))
            finally:
                back.close()
        except OSError:
            pass  # nobody listens, or one of the two has hung up
        finally:
            writer.close()

    async def _passed(self, again_s: float) -> None:
        while not self._passes:
            await asyncio.sleep(again_s)
            again_s *= 2

    async def _carried(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sent: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        delivering = asyncio.ensure_future(self._delivered(sent, writer))
        try:
            while True:
                with suppress(ConnectionError):
                    data = await reader.read(1 << 16)
                sent.put_nowait((asyncio.get_running_loop().time(), data))
                if not data:
                    break
            await delivering
        finally:
            delivering.cancel()

    async def _delivered(self, sent: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        while True:
            at, data = await sent.get()
            await self._passed(_RESENT_S)
            await asyncio.sleep(max(0.0, at + self._delay_s - asyncio.get_running_loop().time()))
            if not data:
                writer.close()
                return
            writer.write(data)


@contextmanager
def link(target: str, *, delay_s: float = 0.0, host: str = "127.0.0.1") -> Iterator[Link]:
    """A link in front of the server at ``target``, carried by a thread of its own."""
    loop = asyncio.new_event_loop()
    made, began, over = Link(target, loop, delay_s=delay_s), threading.Event(), asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(made.serve(host, began, over),), name="link")
    thread.start()
    try:
        assert began.wait(180.0)
        yield made
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(10.0)
        loop.close()
