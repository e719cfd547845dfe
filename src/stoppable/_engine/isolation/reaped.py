"""A process with a reaper: its end proves that nothing of what it started is left."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from stoppable._engine.processes.table import Members

_REAPER = Path(__file__).with_name("reaper.py")


class ReapedProcess:
    """An agent process below its reaper (see ``reaper``), which is the process that this one starts and waits for."""

    def __init__(
        self, command: Sequence[str], *, group_id: str, line: int, inherits: Sequence[int], env: Mapping[str, str]
    ) -> None:
        self.members = Members(group_id)
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self.reaper = subprocess.Popen(  # noqa: S603 - our own interpreter and script
                    # -I and -S: it needs no packages, and starts in a fraction of the time.
                    [sys.executable, "-I", "-S", str(_REAPER), str(theirs.fileno()), str(line), *command],
                    pass_fds=[theirs.fileno(), line, *inherits],
                    start_new_session=True,
                    env=env,
                )
            except BaseException:
                ours.close()
                raise
        self.members.session = self.reaper.pid
        self._leash = ours
        self._report = b""

    def alive(self) -> bool:
        """Return whether the process, or any that it started, may be alive."""
        if self.reaper.poll() is None:
            return True
        if self._read_report():
            return False
        # The reaper was killed from outside. The agent process has died with it; the rest may have lost its parent.
        self.members.pids()
        return not self.members.is_gone

    def kill(self) -> None:
        """Kill the process and all that it started; returns at once, and may be repeated."""
        if self.reaper.poll() is None:
            with contextlib.suppress(OSError):
                self._leash.send(b"k", socket.MSG_DONTWAIT)
                self.reaper.send_signal(signal.SIGCONT)  # somebody may have suspended it
        elif not self._read_report():
            for pid in self.members.each():
                self.members.signal(pid, signal.SIGKILL)

    def wait(self, seconds: float) -> int:
        """Return the exit code of the process, when all that it started has ended too; or raise TimeoutExpired."""
        code = self.reaper.wait(seconds)
        report = self._read_report()
        return int(report) if report else code

    def _read_report(self) -> bytes:
        """Return the last word of the reaper, which has ended; empty if it was killed before it could say it."""
        with contextlib.suppress(OSError):  # the socket is closed
            self._report = self._leash.recv(64, socket.MSG_DONTWAIT | socket.MSG_PEEK)  # any thread may read it
        return self._report

    def close(self) -> None:
        """Close the socket to the reaper, which kills everything if it is alive."""
        self._read_report()
        self._leash.close()
