"""The connection between a page and its server, which a test pulls out and plugs in again."""

import asyncio
import contextlib
import threading

from ..ports import held_port


class Cable:
    """Passes bytes on; while it is out, nothing listens and every connection is cut."""

    def __init__(self, url):
        self._upstream = url.rpartition(":")[2]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._writers = set()
        self._server = None
        self._held = contextlib.ExitStack()
        self._port = self._held.enter_context(held_port())

    def __enter__(self):
        self._thread.start()
        self.plug_in()
        self.url = f"http://127.0.0.1:{self._port}"
        return self

    def __exit__(self, *_):
        self.pull_out()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._held.close()

    def plug_in(self):
        self._do(self._listen())

    def pull_out(self):
        self._do(self._close())

    def _do(self, work):
        asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    async def _listen(self):
        self._server = await asyncio.start_server(self._pass_on, "127.0.0.1", self._port)

    async def _close(self):
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0)
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:  # a connection may just be accepted
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0)

    async def _pass_on(self, reader, writer):
        with self._cutting(writer):  # from now on: it may be pulled out before the server is reached
            there, back = await asyncio.open_connection("127.0.0.1", int(self._upstream))
            with self._cutting(back):
                await asyncio.gather(self._pump(reader, back), self._pump(there, writer))

    @contextlib.contextmanager
    def _cutting(self, writer):
        self._writers.add(writer)
        try:
            yield
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _pump(self, reader, writer):
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
            writer.write_eof()
