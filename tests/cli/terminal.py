"""A real terminal: a command on a pseudo-terminal, with a keyboard."""

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from pathlib import Path

DEADLINE = 90  # only a defect takes so long, also where everything else is busy
CTRL_C = b"\x03"
_SEQUENCES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[()][A-Z0-9]|\x1b[=>78]|\r")
TESTS = Path(__file__).parents[1]


class Terminal:
    """A command that believes a person is watching."""

    def __init__(
        self, *arguments, columns=120, rows=40, is_background=False, program=("-m", "stoppable"), **environment
    ):
        variables = {
            name: value for name, value in os.environ.items() if not name.startswith(("STOPPABLE", "COVERAGE"))
        }
        variables |= {"TERM": "xterm-256color", **environment}
        for name in ("NO_COLOR", "COLUMNS", "FORCE_COLOR", "CI"):
            if name not in environment:
                variables.pop(name, None)
        self.raw = b""
        self._read_to = 0
        self._pid, self._fd = pty.fork()
        if self._pid == 0:  # pragma: no cover - the command
            os.chdir(TESTS)
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))  # before it looks
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell ignores it for what runs in the background
            if is_background:
                _stay_in_the_foreground()
            os.execve(sys.executable, [sys.executable, *program, *arguments], variables)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._pid is not None:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        os.close(self._fd)

    @property
    def text(self):
        """Everything that was written, without colours and movements."""
        return _SEQUENCES.sub("", self.raw.decode(errors="replace"))

    def sleeps(self):
        """Wait until the command waits for something. A Ctrl-C between Python's last look for signals and the read of
        an answer would be heard only with the next key."""
        before = None
        while (now := self._switches()) is None or now != before:
            before = now
            time.sleep(0.05)

    def _switches(self):
        """Return how often it has gone to sleep, if it sleeps."""
        status = Path(f"/proc/{self._pid}/status").read_text()
        return re.search(r"^voluntary.*", status, re.MULTILINE)[0] if "State:\tS" in status else None

    def executes(self, program):
        """Return whether a process in the terminal executes a program. A shell that is about to may drop a Ctrl-C."""
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended
                is_here = os.getsid(int(process.name)) == self._pid
                if is_here and (process / "cmdline").read_bytes().startswith(f"{program}\0".encode()):
                    return True
        return False

    def press(self, keys):
        os.write(self._fd, keys if isinstance(keys, bytes) else keys.encode())

    def signal(self, number):
        os.kill(self._pid, number)

    def see(self, pattern, within=DEADLINE):
        """Read on until something appears that was not there before."""
        deadline = time.monotonic() + within
        while True:
            found = re.compile(pattern).search(self.text, self._read_to)
            if found:
                self._read_to = found.end()
                return found
            if not self._read(deadline):
                raise AssertionError(f"{pattern!r} does not appear after:\n{self.text[self._read_to :]}")

    def end(self, within=DEADLINE):
        """Read to the end and return the exit code."""
        deadline = time.monotonic() + within
        while self._read(deadline):
            pass
        if time.monotonic() > deadline:
            raise AssertionError(f"it does not end:\n{self.text}")
        _, status = os.waitpid(self._pid, 0)
        self._pid = None
        return os.waitstatus_to_exitcode(status)

    def _read(self, deadline):
        ready, _, _ = select.select([self._fd], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return False
        try:
            data = os.read(self._fd, 65536)
        except OSError:  # the other side is closed
            return False
        self.raw += data
        return bool(data)


def _stay_in_the_foreground():  # pragma: no cover - in another process
    """Go on in a process of the background; the one before it exits with its code, or 99 if the terminal stops it."""
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        return
    _, status = os.waitpid(pid, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os._exit(99)
    os._exit(os.waitstatus_to_exitcode(status))
