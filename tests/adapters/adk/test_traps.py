"""What goes wrong in ADK when a run is cancelled by hand; each was measured on plain google-adk."""

import asyncio
import contextlib
import gc

import pytest
from google.adk.agents.readonly_context import ReadonlyContext
from google.adk.runners import InMemoryRunner
from google.genai import types

import stoppable
from stoppable.adapters.adk import names, wrap

from .serving import Client, asked
from .test_stops import dangling, works_again
from .world import DEADLINE, Loader, World

MAY_HAVE_HAPPENED = "it may have taken effect"
NO_EFFECT = "it had no effect"


async def test_a_branch_that_meets_the_stop_does_not_cut_the_call_of_its_sibling(server):
    world = server.world
    async with Client(server, "sequence") as client:
        async with asked(client) as answer:
            await world.saw("enter async_tool")
            await world.saw("enter other_tool")
            await client.cancel()
            world.release("async_tool")  # the left branch goes on to its next model call, which is refused
            await world.saw("finish async_tool")
            ticks = world.ticks["other_tool"]
            async with asyncio.timeout(DEADLINE):
                while world.ticks["other_tool"] < ticks + 5:
                    await asyncio.sleep(0.01)
            assert not answer.done()
            world.release("other_tool")
        assert "cancelled other_tool" not in world.notes
        await client.cancel(runId=client.run_id, wait=20)  # its stream ends a moment before the run
        assert (await server.record(client.run_id)).outcome.rung == "signal", "it ended by force"
        text = str(await client.events())
        assert "async_tool done" in text
        assert "other_tool done" in text
        await works_again(client)


async def test_what_finished_before_the_stop_is_kept_and_what_was_cut_is_not_called_harmless(server):
    world = server.world
    async with Client(server, "two_tools") as client:
        async with asked(client):
            await world.saw("enter async_tool")
            await world.saw("enter other_tool")
            world.release("async_tool")
            await world.saw("finish async_tool")
            await client.cancel(mode="immediate", wait=20)
        events = await client.events()
        assert not dangling(events)
        answers = {
            part["functionResponse"]["name"]: part["functionResponse"]["response"]
            for event in events
            for part in event.get("content", {}).get("parts", [])
            if "functionResponse" in part
        }
        assert answers["async_tool"] == {"result": "async_tool done"}
        assert MAY_HAVE_HAPPENED in answers["other_tool"]["error"]
        await works_again(client)


async def test_a_sync_tool_blocks_nobody_else(server):
    async with Client(server, "sync_tool") as client, asked(client):
        await server.world.saw("enter sync_tool")
        ticks = server.world.ticks.get("sync_tool", 0)
        assert (await client.http.get("/list-apps")).status_code == 200
        assert (await client.cancel()).status_code == 200
        assert "finish sync_tool" not in server.world.notes
        assert server.world.ticks.get("sync_tool", 0) >= ticks
        server.world.release_all()


@pytest.mark.skipif(not hasattr(ReadonlyContext, "is_aborted"), reason="this google-adk has no is_aborted")
async def test_a_tool_that_asks_adk_whether_to_go_on_hears_a_graceful_stop(server):
    async with Client(server, "polling_tool") as client:
        async with asked(client):
            await server.world.saw("enter polling_tool")
            await client.cancel()
        server.world.seen("saw the stop in polling_tool")
        assert "ended early" in str(await client.events())


async def test_a_second_press_does_not_lose_the_history(server):
    async with Client(server, "async_tool") as client:
        async with asked(client) as answer:
            await server.world.saw("enter async_tool")
            for _ in range(3):
                await client.cancel(mode="immediate")
        assert answer.result()[-1]["errorCode"] == "INVOCATION_ABORTED"
        assert MAY_HAVE_HAPPENED in str(await client.events())
        await works_again(client)


async def test_a_tool_that_swallows_every_cancel_is_reported_and_the_session_works_on(server):
    world = server.world
    async with Client(server, "stubborn_tool") as client:
        async with asked(client) as answer:
            await world.saw("enter stubborn_tool")
            told = (await client.cancel(mode="kill", wait=20)).json()
            assert told["status"] == "lost", "nobody knows that it is dead"
        assert answer.result()[-1]["errorCode"] == "INVOCATION_ABORTED"
        assert MAY_HAVE_HAPPENED in str(await client.events())
        await works_again(client)
        count = len(await client.events())
        world.release_all()
        world.seen("finish stubborn_tool")
        assert len(await client.events()) == count, "a lost run writes nothing"


async def test_after_a_stop_nothing_is_left_in_the_registry(server):
    async with Client(server, "async_tool") as client:
        async with asked(client):
            await server.world.saw("enter async_tool")
            await client.cancel(mode="immediate", wait=20)
        assert await server.live() == []


async def test_a_stop_from_another_thread_is_heard_at_once(server):
    async with Client(server, "async_tool") as client, asked(client) as answer:
        await server.world.saw("enter async_tool")
        [run] = (await server.runs(client)).runs
        # This loop is not the server's, which has nothing to do but wait.
        receipt = await server.supervisor.stop(run.id, "immediate", wait=20)
        assert receipt.status == "stopped"
        async with asyncio.timeout(DEADLINE):
            assert (await answer)[-1]["errorCode"] == "INVOCATION_ABORTED"


async def test_a_stopped_invocation_can_be_resumed_by_its_id(server):
    async with Client(server, "async_tool") as client:
        async with asked(client) as answer:
            await server.world.saw("enter async_tool")
            await client.cancel(mode="immediate", wait=20)
        events = await client.say("again", invocationId=answer.result()[-1]["invocationId"])
        assert not any("errorCode" in event or "error" in event for event in events), events
        assert server.world.notes.count("enter async_tool") == 1, "the call that was cut is not repeated"


# A runner that is driven without a server


@contextlib.asynccontextmanager
async def driven(shape, **options):
    """Yield a world and a function that runs the agent of a shape."""
    world = World()
    runner = wrap(InMemoryRunner(agent=Loader(world).load_agent(shape), app_name="app"), **options)
    await runner.session_service.create_session(app_name="app", user_id="ann", session_id="s")

    def run(text="go"):
        message = types.Content(role="user", parts=[types.Part(text=text)])
        return runner.run_async(user_id="ann", session_id="s", new_message=message)

    try:
        yield world, run
    finally:
        world.release_all()
        await runner.close()


async def test_leaving_the_loop_early_ends_the_run():
    async with stoppable.Supervisor() as supervisor, driven("async_tool", supervisor=supervisor) as (world, run):
        async for _ in run():
            break  # without aclose(), as people write it
        gc.collect()
        [record] = (await supervisor.list(stoppable.Filter(roots=True))).runs
        async with asyncio.timeout(DEADLINE):
            while (await supervisor.get(record.id)).status == "running":
                await asyncio.sleep(0.005)
        world.release("async_tool")  # if it was called before the reader had left: the stop is graceful
        outcome = await supervisor.handle(record.id).outcome()
        assert (outcome.status, outcome.reason.kind) == ("stopped", "disconnect")
        assert world.notes.count("model model of async_agent") == 1, "the model was called once more"


async def test_nothing_of_the_run_leaks_into_the_context_of_its_reader():
    async with driven("quick_tool") as (_, run):
        async for _event in run():
            assert stoppable.current_run() is None
            assert names.SYNC_RUNNER.get() is None


async def test_without_a_supervisor_a_run_belongs_to_the_current_one():
    async with driven("async_tool") as (world, run):
        told = []

        async def body():
            async for event in run():
                told.append(event)

        handle = await stoppable.spawn(body)
        await world.saw("enter async_tool")
        await handle.stop("immediate")
        assert (await handle.outcome()).status == "stopped"
        await world.saw("cancelled async_tool")


async def test_a_runner_that_is_given_an_abort_signal_obeys_it():
    if not names.HAS_ABORT:
        pytest.skip("this google-adk has no abort_signal")
    world = World()
    runner = wrap(InMemoryRunner(agent=Loader(world).load_agent("async_tool"), app_name="app"))
    await runner.session_service.create_session(app_name="app", user_id="ann", session_id="s")
    message = types.Content(role="user", parts=[types.Part(text="go")])
    signal = asyncio.Event()

    async def aborting():
        await world.saw("enter async_tool")
        signal.set()

    async with asyncio.TaskGroup() as group:
        group.create_task(aborting())
        events = [
            event
            async for event in runner.run_async(user_id="ann", session_id="s", new_message=message, abort_signal=signal)
        ]
    assert events[-1].error_code == "INVOCATION_ABORTED"
    await runner.close()
