"""The reader of a wrapped runner: the agent goes on only when the reader asks for more, and ends when it leaves."""

import asyncio
import contextlib

import pytest
from google.adk.agents.base_agent import BaseAgent
from google.adk.events.event import Event
from google.adk.runners import InMemoryRunner
from google.genai import types
from pydantic import Field

import stoppable
from stoppable.adapters.adk import wrap

from .test_traps import driven
from .world import DEADLINE

TURNS = 50
"""How many turns of the loop a runner gets in which to run ahead."""


async def idle():
    for _ in range(TURNS):
        await asyncio.sleep(0)


def calls_of(event):
    return [call.name for call in event.get_function_calls()]


@contextlib.asynccontextmanager
async def supervised(shape, **options):
    async with stoppable.Supervisor() as supervisor, driven(shape, supervisor=supervisor, **options) as (world, run):
        yield supervisor, world, run


async def listed(supervisor, name):
    """Wait until a sub-agent is in the store, which is a moment after it has begun, and return it."""
    async with asyncio.timeout(DEADLINE):
        while not (runs := [run for run in (await supervisor.list()).runs if run.name == name]):
            await asyncio.sleep(0.005)
    return runs[0]


async def only_run(supervisor):
    [record] = (await supervisor.list(stoppable.Filter(roots=True))).runs
    return record


@pytest.mark.parametrize("shape", ["quick_tool", "quick_sequence"])
async def test_a_tool_is_not_executed_before_its_reader_asks_for_more(shape):
    async with supervised(shape) as (_, world, run):
        async for event in run():
            if calls_of(event):
                await idle()
                assert "quick_tool" not in world.notes, "the tool ran ahead of its reader"
        assert "quick_tool" in world.notes


@pytest.mark.parametrize("shape", ["quick_tool", "quick_sequence"])
async def test_a_caller_that_refuses_a_call_and_leaves_finds_it_not_executed(shape):
    async with supervised(shape) as (supervisor, world, run):
        async with contextlib.aclosing(run()) as events:
            async for event in events:
                if calls_of(event):
                    break
        record = await supervisor.get((await only_run(supervisor)).id)
        outcome = await supervisor.handle(record.id).outcome()
        assert (outcome.status, outcome.reason.kind) == ("stopped", "disconnect")
        assert "quick_tool" not in world.notes
        assert "hello again" in str([event async for event in run("again")]), "the session is complete"


@pytest.mark.parametrize("mode", ["graceful", "immediate"])
async def test_a_stop_ends_a_run_whose_reader_takes_its_time(mode):
    async with supervised("quick_tool") as (supervisor, world, run):
        async with contextlib.aclosing(run()) as events:
            async for event in events:
                if calls_of(event):
                    receipt = await supervisor.stop((await only_run(supervisor)).id, mode, wait=DEADLINE)
                    assert receipt.status == "stopped"
                last = event
        assert last.error_code == "INVOCATION_ABORTED"
        assert "quick_tool" not in world.notes
        outcome = await supervisor.handle(receipt.run_id).outcome()
        assert outcome.rung == "signal" or mode == "immediate", "it ended by force"


async def test_a_stop_of_a_sub_agent_does_not_wait_for_the_reader():
    async with supervised("quick_sequence") as (supervisor, world, run):
        with pytest.raises(stoppable.RunStopped):
            async for event in run():
                if calls_of(event):
                    child = await listed(supervisor, "quick_agent")
                    receipt = await supervisor.stop(child.id, wait=DEADLINE)
                    assert receipt.status == "stopped"
        assert (await supervisor.handle(child.id).outcome()).rung == "signal", "it ended by force"
        assert "quick_tool" not in world.notes


async def test_a_run_that_is_kept_does_not_wait_for_a_reader_that_left():
    async with supervised("quick_tool", on_disconnect="keep") as (supervisor, world, run):
        async with contextlib.aclosing(run()) as events:
            async for event in events:
                if calls_of(event):
                    break
        outcome = await supervisor.handle((await only_run(supervisor)).id).outcome()
        assert outcome.status == "completed"
        assert "quick_tool" in world.notes


async def test_a_reader_that_is_cancelled_before_its_run_has_begun_leaves_no_run_behind():
    async with supervised("async_tool") as (supervisor, world, run):

        async def read():
            async for _ in run():
                pass

        task = asyncio.create_task(read())
        turns = 0
        while not (runs := (await supervisor.list(stoppable.Filter(roots=True))).runs) and turns < TURNS:
            await asyncio.sleep(0)
            turns += 1
        task.cancel()
        await asyncio.wait([task])
        for one in runs or (await supervisor.list(stoppable.Filter(roots=True))).runs:
            async with asyncio.timeout(DEADLINE):
                assert (await supervisor.handle(one.id).outcome()).status == "stopped"
        assert not world.ticks


class Talking(BaseAgent):
    """An agent that says one thing, works for long, and notes its end."""

    ended: list = Field(default_factory=list)

    async def _run_async_impl(self, ctx):
        try:
            text = types.Content(role="model", parts=[types.Part(text="one")])
            yield Event(author=self.name, invocation_id=ctx.invocation_id, content=text)
            await asyncio.sleep(DEADLINE * 10)
        finally:
            self.ended.append(True)


@pytest.mark.parametrize("is_supervised", [False, True])
async def test_closing_the_generator_returns_when_the_agent_is_torn_down(is_supervised):
    agent = Talking(name="talking", ended=[])
    async with stoppable.Supervisor() as supervisor:
        runner = wrap(InMemoryRunner(agent=agent, app_name="app"), supervisor if is_supervised else None)
        await runner.session_service.create_session(app_name="app", user_id="ann", session_id="s")
        message = types.Content(role="user", parts=[types.Part(text="go")])
        events = runner.run_async(user_id="ann", session_id="s", new_message=message)
        assert (await anext(events)).content.parts[0].text == "one"
        async with asyncio.timeout(DEADLINE):
            await events.aclose()
        assert agent.ended, "aclose() returned before the agent had ended"
        await runner.close()


async def test_closing_the_generator_cuts_a_parallel_branch_at_once_as_plain_adk_does():
    async with supervised("sequence") as (supervisor, world, run):
        async with contextlib.aclosing(run()) as events:
            async for event in events:
                if "async_tool" in calls_of(event):
                    break
            else:
                pytest.fail("no call")
            # The right branch may have begun its call or not; either way nothing works on afterwards.
        ticks = dict(world.ticks)
        await idle()
        assert world.ticks == ticks
        assert (await supervisor.handle((await only_run(supervisor)).id).outcome()).status == "stopped"
