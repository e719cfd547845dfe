"""A TCP proxy that misbehaves when a test tells it to."""

import asyncio
import contextlib
import socket
import struct
import threading

_RESET = struct.pack("ii", 1, 0)  # closing a socket that does not linger sends RST


class Proxy:
    """Passes bytes between clients and a server on the loopback interface.

    Faults hit the connections that are open. What ``black_hole`` has swallowed stays swallowed: ``heal`` is for new
    connections, as after a firewall has forgotten the old ones.
    """

    def __init__(self, upstream):
        self._upstream = upstream
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy")
        self._links = set()
        self._delay = 0.0
        self._is_hole = False
        self._cut_at = None
        self.port = 0

    def __enter__(self):
        self._thread.start()
        self._server = self._do(self._listen())
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_):
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def connections(self):
        """How many are open."""
        return len(self._links)

    @property
    def has_cut(self):
        """Whether there is no answer left to cut a connection at."""
        return self._cut_at is None

    def delay(self, seconds):
        """Pass every packet on so much later."""
        self._delay = seconds

    def black_hole(self):
        """Take what comes and pass nothing on, on connections that are made meanwhile too."""
        self._do(self._swallow())

    def half_close(self):
        """Tell clients that the server sends nothing more, and go on taking what they send."""
        self._do(self._each(lambda link: link.half_close()))

    def reset(self):
        """Cut every connection, on both sides."""
        self._do(self._each(lambda link: link.reset()))

    def cut_at(self, answer, turn=1):
        """Cut a connection instead of passing on the answer of the server that contains this, the first or a later."""
        self._cut_at, self._turn = answer, turn

    def heal(self):
        """Pass everything on at once again."""
        self._delay, self._is_hole = 0.0, False

    def _do(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _listen(self):
        return await asyncio.start_server(self._pass_on, "127.0.0.1", 0)

    async def _close(self):
        self._server.close()
        for link in list(self._links):
            link.reset()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _each(self, do):
        for link in list(self._links):
            do(link)

    async def _swallow(self):
        self._is_hole = True
        for link in self._links:
            link.is_hole = True

    async def _pass_on(self, reader, writer):
        link = _Link(self, writer)
        self._links.add(link)
        try:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                there, link.back = await asyncio.open_connection("127.0.0.1", self._upstream)
                await asyncio.gather(link.pump(reader, link.back), link.pump(there, writer))
        finally:
            self._links.discard(link)
            link.reset()

    @property
    def later(self):
        """The seconds by which packets come late now."""
        return self._delay

    def is_cut_at(self, answer):
        """Whether a connection is cut because of what the server says."""
        if self._cut_at is None or self._cut_at not in answer:
            return False
        self._turn -= 1
        if self._turn > 0:
            return False
        self._cut_at = None
        return True

    @property
    def is_hole(self):
        """Whether new connections lead nowhere."""
        return self._is_hole


class _Link:
    """One connection on its way through."""

    def __init__(self, proxy, writer):
        self._proxy = proxy
        self._writer = writer
        self._is_half = False
        self.back = None
        self.is_hole = proxy.is_hole

    async def pump(self, reader, writer):
        try:
            while data := await reader.read(65536):
                if self._proxy.later:
                    await asyncio.sleep(self._proxy.later)
                if self.is_hole or (self._is_half and writer is self._writer):
                    continue
                if writer is self._writer and self._proxy.is_cut_at(data):
                    self.reset()
                    return
                writer.write(data)
                await writer.drain()
            if not (self.is_hole or writer.is_closing()):
                writer.write_eof()
        except OSError:
            if not self.is_hole:
                self.reset()  # what one side has cut, the other must see

    def half_close(self):
        self._is_half = True
        with contextlib.suppress(OSError):
            self._writer.write_eof()

    def reset(self):
        for writer in filter(None, (self._writer, self.back)):
            with contextlib.suppress(OSError):
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()
