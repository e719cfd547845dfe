"""SIGTERM shuts down the runs of the process that it was sent to, and of no other (G13)."""

import asyncio
import multiprocessing
import os
import signal
import sys
import time

import pytest

from stoppable import Supervisor
from stoppable.supervisor import signals

from .kept_agents import forever

# A fork of a process with threads is what this is about.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


def sleep(up):
    up.set()
    time.sleep(60)  # until it is terminated


@pytest.mark.skipif(sys.platform == "darwin", reason="multiprocessing forks nothing there")
async def test_a_forked_child_that_is_terminated_stops_no_run_of_its_parent(store):
    fork = multiprocessing.get_context("fork")
    async with Supervisor(store) as supervisor, asyncio.timeout(60):
        assert signal.getsignal(signal.SIGTERM) is signals._terminate
        handle = await supervisor.start(forever, isolation="process")
        up = fork.Event()
        child = fork.Process(target=sleep, args=(up,))
        child.start()
        await asyncio.to_thread(up.wait)
        child.terminate()
        await asyncio.to_thread(child.join, 30)
        code = child.exitcode
        child.kill()
        child.join(60)
        # Whatever the child told the worker came before this stop, which goes the same way.
        await supervisor.stop(handle.id, reason="by the test")
        record = await settled(supervisor, handle.id)
    assert code == -signal.SIGTERM
    assert record.outcome.reason.message == "by the test"


def test_a_forked_child_handles_sigterm_as_if_nobody_did():
    async def main():
        async with Supervisor():
            pid = os.fork()
            if not pid:
                os._exit(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and not signals._cores)
            return os.waitpid(pid, 0)[1]

    assert os.waitstatus_to_exitcode(asyncio.run(main())) == 1


async def settled(supervisor, run_id):
    while not (record := await supervisor.get(run_id)).over:
        await asyncio.sleep(0.005)
    return record
