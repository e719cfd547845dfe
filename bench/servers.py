"""The servers that are measured: each a real uvicorn in a process of its own, driven over sockets."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from connection import usage
from workloads import A2a, Adk, Floor, Stoppable, Workload

HERE = Path(__file__).parent
PEERS = HERE.parent / ".venv-bench" / "bin" / "python"
STDERR_LINES = 30

Act = Callable[[], Awaitable[int]]
"""Does something some times, and returns how often."""


@contextmanager
def server(command: tuple[str, ...]) -> Iterator[int]:
    """Run a server, and yield its port; if something fails meanwhile, show what the server wrote to stderr."""
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, "it has ended before it had a port"
            yield int(line)
        except BaseException:
            errors.seek(0)
            print(f"stderr of {' '.join(command)}:\n{''.join(errors.readlines()[-STDERR_LINES:])}", file=sys.stderr)
            raise
        finally:
            process.kill()
            process.wait()


def ours(*options: str) -> tuple[str, ...]:
    return (sys.executable, str(HERE / "server_under_test.py"), *options)


def is_installed(command: tuple[str, ...]) -> bool:
    return Path(command[0]).exists()


WORKLOADS: dict[Workload, tuple[str, ...]] = {
    Floor(): ours("memory", "plain"),
    Stoppable(): ours("memory"),
    A2a(): (str(PEERS), str(HERE / "peer_a2a.py")),
    Adk(): (str(PEERS), str(HERE / "peer_adk.py")),
}


def peers() -> str:
    """Return the versions of the peers."""
    if not PEERS.exists():
        return "not installed"
    code = (
        "from importlib.metadata import version as v; print('a2a-sdk', v('a2a-sdk') + ', google-adk', v('google-adk'))"
    )
    return subprocess.run([PEERS, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


async def interleaved(rounds: int, contenders: Mapping[str, tuple[int, Act]]) -> dict[str, float]:
    """Return the best microseconds of CPU per operation; a contender is a server's port and what is asked of it."""
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(rounds):
        for name, (port, act) in contenders.items():
            before, _ = await usage(port)
            count = await act()
            after, _ = await usage(port)
            best[name] = min(best[name], (after - before) / count / 1000)
    return best
