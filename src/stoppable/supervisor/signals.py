"""Makes SIGTERM a graceful shutdown: the runs of this process are stopped and stored before the signal ends it.

This applies only if the program has no handler for SIGTERM. A second SIGTERM ends the process at once.
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
    if os.getpid() != _pid:  # a forked child that got the signal before _forget() was called
        _forget()
        os.kill(os.getpid(), signal.SIGTERM)
        return
    # The next SIGTERM, such as the one sent at the end below, ends the process as if there were no handler.
    signal.signal(signal.SIGTERM, _exit if os.getpid() == 1 else signal.SIG_DFL)
    cores = [(core, core.shut_down()) for core in list(_cores)]

    def end() -> None:
        for core, seconds in cores:
            with contextlib.suppress(Exception):  # no error may keep the process from ending
                if core.wait_for_end(seconds):
                    core.close()  # only if the ends were stored: otherwise the store would delay this too
        if os.getpid() == 1:
            _exit()  # not with a signal: the main thread, which runs the handlers, may be busy
        os.kill(os.getpid(), signal.SIGTERM)

    # On a thread, because the runs may need the main thread in order to end.
    threading.Thread(target=end, name="stoppable-shutdown", daemon=True).start()


def _exit(*_: object) -> None:
    """End process 1, as in a container: the system ignores signals for which that process has no handler."""
    os._exit(128 + signal.SIGTERM)


def _forget() -> None:
    """Leave the runs of the parent process alone in a forked child (G13)."""
    global _pid
    _pid = os.getpid()
    _cores.clear()
    handler = signal.getsignal(signal.SIGTERM)
    if handler is _terminate or handler is _exit:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


os.register_at_fork(after_in_child=_forget)
