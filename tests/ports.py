"""A port that a server may listen on, go away from and come back to, and that nobody else is given meanwhile."""

import contextlib
import socket


@contextlib.contextmanager
def held_port(port=0):
    """Yield a free port, which stays this test's: a socket has its address, and never listens.

    Servers may listen there as long as it is held, since both say that the address may be used again. Without a server
    connections are refused.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", port))
        yield holder.getsockname()[1]
