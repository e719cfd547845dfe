"""What one owner may use of a server at the same time, so that no owner uses up all of it."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from starlette.types import Scope

from stoppable.server.limits import ServerLimits
from stoppable.server.responses import Problem

IN_RESERVE = "stoppable.in_reserve"
"""Set in the scope of a request whose connection is one of those that are reserved for stops."""


CUT = "stoppable.cut"
"""In the scope of a stream: a function that closes its connection at once."""


def is_stop(scope: Scope) -> bool:
    """Return whether a request is a stop, which is taken even if the server or the share of its owner is full."""
    path: str = scope["path"]
    return scope["method"] == "POST" and path.endswith(("/stop", "/stops"))


class Shares:
    """The requests in progress of each owner: how many there are, and how many of them wait for the end of a stop.

    However large its limits are, one owner gets at most half of the connections. Callers without an owner see all runs;
    they have no share, only the limits of the server.
    """

    def __init__(self, limits: ServerLimits) -> None:
        self.connections: int = limits.connections
        self._limits = limits
        self._requests: Counter[str] = Counter()
        self._waits: Counter[str] = Counter()

    @contextlib.contextmanager
    def request(self, owner: str | None, scope: Scope) -> Iterator[None]:
        """Count a request while it is in progress, or refuse it; a stop is never refused."""
        most = self._share(self._limits.owner_connections)
        if owner is not None and self._requests[owner] >= most and not is_stop(scope):
            message = (
                f"owner {owner!r} has {self._requests[owner]} requests in progress, which is the limit here: "
                "close some streams, or try later; stops are still taken"
            )
            raise Problem(429, "too_many_requests", message, {"Retry-After": "1"})
        with _counted(self._requests, owner):
            yield

    @contextlib.contextmanager
    def wait(self, owner: str | None, scope: Scope, seconds: float) -> Iterator[float | None]:
        """Yield how long a stop may wait for the end of its runs; None if it is answered once it is stored.

        A stop that waits keeps its connection. In the reserve, or beyond the share of its owner, it would keep other
        stops from getting through.
        """
        is_full = owner is not None and self._waits[owner] >= self._share(self._limits.owner_waits)
        if not seconds or is_full or IN_RESERVE in scope:
            yield None
            return
        with _counted(self._waits, owner):
            yield seconds

    def _share(self, limit: int) -> int:
        return max(1, min(limit, self.connections // 2))


@contextlib.contextmanager
def _counted(counter: Counter[str], owner: str | None) -> Iterator[None]:
    if owner is None:
        yield
        return
    counter[owner] += 1
    try:
        yield
    finally:
        counter[owner] -= 1
        if not counter[owner]:
            del counter[owner]  # owners come and go
