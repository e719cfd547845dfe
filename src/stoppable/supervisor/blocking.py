"""The supervisor for blocking code, and a view of an async one for other threads."""

from __future__ import annotations

import contextlib
from typing import Self

from stoppable.errors import InvalidArgument
from stoppable.supervisor._sync.handles import LocalHandle, RemoteHandle, StoreHandle
from stoppable.supervisor._sync.supervisor import Supervisor
from stoppable.supervisor.core import SupervisorCore


class BlockingView(Supervisor):
    """A view of a supervisor that is opened and closed elsewhere (``Supervisor.blocking``)."""

    def __init__(self, core: SupervisorCore) -> None:
        self._core = core
        self._signals = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Refuse to enter: the view is open as long as its supervisor."""
        raise InvalidArgument("do not enter this view: it is open while its supervisor is")

    def close(self) -> None:
        """Refuse to close: other code uses the supervisor."""
        raise InvalidArgument("do not close this view: close its supervisor")


__all__ = ["BlockingView", "LocalHandle", "RemoteHandle", "StoreHandle", "Supervisor"]
