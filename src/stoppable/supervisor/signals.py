"""SIGTERM as a graceful shutdown: the runs of this process are stopped and written down before it ends by the signal.

Only where nobody else handles SIGTERM. A second one ends the process at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stoppable.supervisor.core import SupervisorCore

_cores: set[SupervisorCore] = set()
_pid = os.getpid()


@contextlib.contextmanager
def shutdown_on_sigterm(core: SupervisorCore) -> Iterator[None]:
    """Shut a supervisor down on SIGTERM while the block lasts."""
    _cores.add(core)
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        _cores.discard(core)
        if is_main and not _cores and signal.getsignal(signal.SIGTERM) is _terminate:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(_signum: int, _frame: FrameType | None) -> None:
    if os.getpid() != _pid:  # a forked child that is told before it has forgotten
        _forget()
        os.kill(os.getpid(), signal.SIGTERM)
        return
    # The next one, also our own at the end, ends the process as if nobody had handled it.
    signal.signal(signal.SIGTERM, _exit if os.getpid() == 1 else signal.SIG_DFL)
    cores = [(core, core.shut_down()) for core in list(_cores)]

    def end() -> None:
        for core, seconds in cores:
            with contextlib.suppress(Exception):  # nothing may keep the process from ending
                if core.wait_for_end(seconds):
                    core.close()  # a store that does not answer would take its time for that too
        if os.getpid() == 1:
            _exit()  # here: the main thread may be busy, and handlers run on it alone
        os.kill(os.getpid(), signal.SIGTERM)

    # The main thread goes on: it may be what the runs need to end.
    threading.Thread(target=end, name="stoppable-shutdown", daemon=True).start()


def _exit(*_: object) -> None:
    """End process 1, as in a container: the system lets no signal end it that it does not handle itself."""
    os._exit(128 + signal.SIGTERM)


def _forget() -> None:
    """Leave the runs of our parent to it, now that we are a forked child (G13)."""
    global _pid
    _pid = os.getpid()
    _cores.clear()
    handler = signal.getsignal(signal.SIGTERM)
    if handler is _terminate or handler is _exit:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


os.register_at_fork(after_in_child=_forget)
