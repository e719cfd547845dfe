"""A proxy that cuts connections where a test says."""

import contextlib
import selectors
import socket
import struct
import threading
from urllib.parse import urlsplit

_RESET = struct.pack("ii", 1, 0)


class CuttingProxy:
    """Passes requests on; of each connection's answers only so many bytes come through before it is reset.

    ``cuts`` has a number for each connection in turn; when it is used up, nothing is cut any more.
    """

    def __init__(self, url, *cuts):
        parts = urlsplit(url)
        self._upstream = (parts.hostname, parts.port)
        self.cuts = list(cuts)
        self.connections = 0
        self.is_gone = self._is_over = threading.Event()
        self._threads = []

    def __enter__(self):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.05)
        self.url = "http://{}:{}".format(*self._listener.getsockname())
        self._start(self._accept)
        return self

    def __exit__(self, *_):
        self._is_over.set()
        for thread in self._threads:
            thread.join(60)
        self._listener.close()

    def _start(self, target, *args):
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self):
        while not self._is_over.is_set():
            with contextlib.suppress(TimeoutError):
                client, _ = self._listener.accept()
                self.connections += 1
                self._start(self._pass_on, client, self.cuts.pop(0) if self.cuts else None)

    def _pass_on(self, client, left):
        with client, socket.create_connection(self._upstream) as server, selectors.DefaultSelector() as selector:
            selector.register(client, selectors.EVENT_READ, server)
            selector.register(server, selectors.EVENT_READ, client)
            while not self._is_over.is_set():
                for key, _ in selector.select(0.05):
                    try:
                        data = key.fileobj.recv(65536)
                    except ConnectionError:
                        return
                    if not data:
                        return
                    if key.fileobj is server and left is not None:
                        data, left = data[:left], left - len(data)
                    with contextlib.suppress(ConnectionError):
                        key.data.sendall(data)
                    if left is not None and left < 0:
                        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                        return
