"""SIGTERM ends a program that is process 1, as in a container: there the system's own way of ending it does nothing."""

import subprocess
import sys

import pytest

from stoppable import sync

NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
PROGRAM = """
import asyncio, os, signal, sys
import stoppable
from stoppable import Policy, Supervisor

async def agent():
    while True:
        try:
            await asyncio.sleep(3600) if "stubborn" in sys.argv else await stoppable.sleep(3600)
        except asyncio.CancelledError:
            pass

async def main():
    assert os.getpid() == 1
    async with Supervisor("sqlite:///" + sys.argv[1]) as supervisor:
        handle = await supervisor.start(agent, run_id="a", policy=Policy(grace=600))
        while handle.status == "pending":
            await asyncio.sleep(0.001)
        for _ in range(2 if "stubborn" in sys.argv else 1):
            os.kill(1, signal.SIGTERM)
            while handle.status == "running":
                await asyncio.sleep(0.001)
        await asyncio.sleep(3600)

asyncio.run(main())
"""


def _namespaces_work():
    try:
        return subprocess.run([*NAMESPACE, "true"], capture_output=True, timeout=60, check=False).returncode == 0
    except OSError:
        return False


pytestmark = pytest.mark.skipif(not _namespaces_work(), reason="it needs a pid namespace, which this user may not make")


def _ends(path, *kind):
    command = [*NAMESPACE, sys.executable, "-c", PROGRAM, str(path), *kind]
    return subprocess.run(command, timeout=60, check=False).returncode


def test_sigterm_writes_the_ends_down_and_then_ends_process_1(tmp_path):
    assert _ends(tmp_path / "runs.db") == 128 + 15
    with sync.Supervisor(f"sqlite:///{tmp_path}/runs.db") as supervisor:
        record = supervisor.get("a")
        assert (record.status, record.stop.reason.kind) == ("stopped", "shutdown")


def test_a_second_sigterm_ends_process_1_at_once(tmp_path):
    assert _ends(tmp_path / "runs.db", "stubborn") == 128 + 15
