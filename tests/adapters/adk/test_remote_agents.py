"""Agents on other A2A servers, each a real one on a socket: a stop of the run here reaches their tasks there."""

import asyncio
import contextlib
import os
import signal

import pytest

import stoppable
from stoppable.adapters.adk import names

from .talks import CARD, remotes, talk, until
from .world import DEADLINE

if names.WORKFLOW is None:
    pytest.skip("google-adk 1.x needs an a2a-sdk of its own", allow_module_level=True)

from tests.adapters.a2a.executors import Scripted
from tests.adapters.a2a.serving import card_for, served
from tests.adapters.a2a.test_remote import process

MODES = ["graceful", "immediate"]


@contextlib.asynccontextmanager
async def remote():
    """Serve an executor with a supervisor of its own; yield it, its server and that supervisor."""
    inner = Scripted()
    async with stoppable.Supervisor() as supervisor, served(inner, supervisor) as server:
        yield inner, server, supervisor


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", ["root", "sub-agent", "tool", "workflow"])
async def test_a_stop_cancels_the_task_of_an_agent_on_another_server(shape, mode):
    async with remote() as (inner, server, there), talk(shape, CARD.format(server.url)) as here:
        async with here.asked():
            await until(inner.working)
            receipt = await here.stop(mode, "enough")
        assert receipt.status == "stopped"
        assert remotes(receipt) == [("far_agent", "cancelled")]
        assert await server.state(inner.tasks[0]) == "CANCELED"
        [run] = (await there.list(stoppable.Filter(roots=True))).runs
        told = (await there.get(run.id)).receipt
        assert (told.mode, told.reason.message) == (mode, "enough")
        assert inner.effects == 0
        assert here.told[-1].error_code == "INVOCATION_ABORTED"

        inner.go.set()
        events = await here.say("again")
        assert not any(event.error_code or event.error_message for event in events), events
        assert shape == "tool" or await server.state(inner.tasks[1]) == "COMPLETED"


async def test_without_stoppable_the_agent_on_the_other_server_works_on():
    """What the adapter is for: ADK sends no cancel when its run is cancelled."""
    async with remote() as (inner, server, _), talk("sub-agent", CARD.format(server.url), is_wrapped=False) as here:
        task = asyncio.create_task(here.say("go"))
        await until(inner.working)
        task.cancel()
        await asyncio.wait([task])
        assert await server.state(inner.tasks[0]) == "WORKING"
        inner.go.set()


@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
async def test_a_server_that_does_not_answer_a_stop_leaves_the_run_lost_and_the_session_works_on(how):
    with process() as (url, pid):
        async with talk("tool", CARD.format(url.rstrip("/"))) as here:
            async with here.asked():
                await here.knows_the_task()
                os.kill(pid, signal.SIGSTOP)
                stopping = asyncio.create_task(here.stop("kill"))
                await here.acknowledged()
                os.kill(pid, how)
                receipt = await stopping
            assert receipt.status == "lost"
            assert remotes(receipt) == [("far_agent", "unreachable")]
            assert here.told[-1].error_code == "INVOCATION_ABORTED"
            assert "hello again" in str(await here.say("again"))


async def test_a_server_that_is_not_there_is_an_error_as_in_plain_adk_and_the_run_has_ended():
    async with talk("root", card_for("http://127.0.0.1:1/")) as here:
        await here.say("go")
        assert "A2A request failed" in here.told[-1].error_message
        [run] = (await here.supervisor.list(stoppable.Filter(roots=True))).runs
        async with asyncio.timeout(DEADLINE):
            assert (await here.supervisor.handle(run.id).outcome()).status == "completed"


async def test_a_server_that_dies_without_a_stop_is_an_error_as_in_plain_adk_and_its_task_is_lost():
    with process() as (url, pid):
        async with talk("root", CARD.format(url.rstrip("/"))) as here:
            async with here.asked():
                await here.knows_the_task()
                os.kill(pid, signal.SIGKILL)
            assert "A2A request failed" in here.told[-1].error_message
            [root] = (await here.supervisor.list(stoppable.Filter(roots=True))).runs
            async with asyncio.timeout(DEADLINE):
                assert (await here.supervisor.handle(root.id).outcome()).status == "completed"
            assert [run.status for run in await here.runs() if run.id != root.id] == ["lost"]
