"""The end of a stopped turn is in its session, or the next turn writes it."""

import asyncio
import contextlib
import sys

import pytest
from google.adk.runners import Runner
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.adk.tools.function_tool import FunctionTool
from google.adk.tools.long_running_tool import LongRunningFunctionTool
from google.genai import types

import stoppable
from stoppable.adapters import _whole_calls
from stoppable.adapters.adk import runners, wrap

from . import world as worlds
from .processes import process
from .test_reading import listed
from .world import DEADLINE, Loader, Tools, World, agent

MAY_HAVE_HAPPENED = "it may have taken effect"


class Talks:
    """A session of a wrapped runner."""

    def __init__(self, root, service, supervisor, world):
        self.world, self.service, self.supervisor = world, service, supervisor
        self.runner = wrap(Runner(agent=root, app_name="app", session_service=service), supervisor)

    def run(self, message="go"):
        if isinstance(message, str):
            message = types.Content(role="user", parts=[types.Part(text=message)])
        return self.runner.run_async(user_id="ann", session_id="s", new_message=message)

    async def say(self, message="go"):
        return [event async for event in self.run(message)]

    @contextlib.asynccontextmanager
    async def asked(self, message="go"):
        """Ask, go on with the block, and wait at its end for the end of the answer."""
        task = asyncio.create_task(self.say(message))
        try:
            yield task
            async with asyncio.timeout(DEADLINE):
                await asyncio.wait([task])
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def stop(self, mode="immediate"):
        for run in await self.supervisor.find("adk:app/ann/s"):
            await self.supervisor.stop(run.id, mode, wait=DEADLINE)

    async def events(self):
        return (await self.service.get_session(app_name="app", user_id="ann", session_id="s")).events

    async def answers(self):
        """Return the last answer to each call, by its tool, and None for a call without one."""
        events = await self.events()
        told = {one.id: one.response for event in events for one in event.get_function_responses()}
        return {one.name: told.get(one.id) for event in events for one in event.get_function_calls()}


@contextlib.asynccontextmanager
async def talking(root, service=None, store=None, **options):
    """Yield a session with an agent, by its shape or made by a function of the world."""
    world = World()
    service = service or InMemorySessionService()
    made = Loader(world).load_agent(root) if isinstance(root, str) else root(world)
    if await service.get_session(app_name="app", user_id="ann", session_id="s") is None:
        await service.create_session(app_name="app", user_id="ann", session_id="s")
    async with stoppable.Supervisor(store, **options) as supervisor:
        talks = Talks(made, service, supervisor, world)
        try:
            yield talks
        finally:
            world.release_all()
            await talks.runner.close()


class Failing(InMemorySessionService):
    """A session service that can be down."""

    is_down = False

    async def append_event(self, session, event):
        if self.is_down:
            raise ConnectionError("the database is down")
        return await super().append_event(session=session, event=event)


async def test_an_end_that_cannot_be_written_is_told_and_written_by_the_next_turn():
    service = Failing()
    async with talking("two_tools", service) as talks:
        async with talks.asked() as answer:
            await talks.world.saw("enter async_tool")
            await talks.world.saw("enter other_tool")
            talks.world.release("async_tool")
            await talks.world.saw("finish async_tool")
            service.is_down = True
            await talks.stop()
        assert answer.result()[-1].error_code == "INVOCATION_ABORTED"
        assert set((await talks.answers()).values()) == {None}
        service.is_down = False
        assert "hello again" in str(await talks.say("again"))
        answers = await talks.answers()
        assert answers["async_tool"] == {"result": "async_tool done"}
        assert MAY_HAVE_HAPPENED in answers["other_tool"]["error"]
        count = len(await talks.events())
        await talks.say("again")
        assert len(await talks.events()) == count + 2, "it is repaired once"


async def test_a_write_that_fails_once_is_repeated():
    class Once(Failing):
        async def append_event(self, session, event):
            try:
                return await super().append_event(session, event)
            finally:
                self.is_down = False

    service = Once()
    async with talking("async_tool", service) as talks:
        async with talks.asked() as answer:
            await talks.world.saw("enter async_tool")
            service.is_down = True
            await talks.stop()
        assert [event.error_code for event in answer.result()].count("INVOCATION_ABORTED") == 1
        assert MAY_HAVE_HAPPENED in (await talks.answers())["async_tool"]["error"]


class Slow(InMemorySessionService):
    """A database that takes its time for some events, and may stay locked if it is cut off meanwhile."""

    def __init__(self, is_slow):
        super().__init__()
        self.is_slow = is_slow
        self.cuts = 0
        self.began, self.goes_on = asyncio.Event(), asyncio.Event()

    async def append_event(self, session, event):
        if self.is_slow(event):
            self.began.set()
            try:
                await self.goes_on.wait()
            except asyncio.CancelledError:
                self.cuts += 1
                raise
        return await super().append_event(session=session, event=event)


async def a_call_is_cancelled():
    async with asyncio.timeout(DEADLINE):
        while not _whole_calls._cancelled:
            await asyncio.sleep(0)


async def test_a_stop_does_not_cut_a_write_and_the_turn_is_complete_with_it():
    service = Slow(lambda event: event.get_function_calls())
    async with talking("async_tool", service) as talks:
        async with talks.asked() as answer:
            await service.began.wait()
            stopping = asyncio.create_task(talks.stop())
            await a_call_is_cancelled()
            service.goes_on.set()
            await stopping
        assert service.cuts == 0
        assert answer.result()[-1].error_code == "INVOCATION_ABORTED"
        assert "it had no effect" in (await talks.answers())["async_tool"]["error"]
        assert "hello again" in str(await talks.say("again"))


async def test_the_write_of_an_end_that_takes_too_long_is_not_cut_and_not_repeated(monkeypatch):
    monkeypatch.setattr(runners, "_SEAL_SECONDS", 0.05)
    monkeypatch.setattr(_whole_calls, "PATIENCE_SECONDS", 0.05)
    service = Slow(lambda event: event.get_function_responses())
    async with talking("async_tool", service) as talks:
        async with talks.asked() as answer:
            await talks.world.saw("enter async_tool")
            await talks.stop()
        assert answer.result()[-1].error_code == "INVOCATION_ABORTED"
        assert service.cuts == 0
        service.goes_on.set()
        assert "hello again" in str(await talks.say("again"))
        answers = [one for event in await talks.events() for one in event.get_function_responses()]
        assert len(answers) == 1


async def test_an_error_of_a_write_that_was_cancelled_is_logged(caplog):
    class Broken(Slow):
        async def append_event(self, session, event):
            await super().append_event(session, event)
            if event.get_function_calls():
                raise ConnectionError("the database is down")

    service = Broken(lambda event: event.get_function_calls())
    async with talking("async_tool", service) as talks:
        async with talks.asked():
            await service.began.wait()
            stopping = asyncio.create_task(talks.stop())
            await a_call_is_cancelled()
            service.goes_on.set()
            await stopping
    assert "the database is down" in caplog.text


class Meeting(SqliteSessionService):
    """A database in which both turns of a session read it before either writes its end."""

    barrier = None

    async def get_session(self, **names):
        session = await super().get_session(**names)
        if self.barrier is not None and self.barrier.n_waiting < self.barrier.parties and not self.barrier.broken:
            with contextlib.suppress(asyncio.BrokenBarrierError):
                await self.barrier.wait()
                await self.barrier.abort()
        return session


async def test_two_turns_that_are_stopped_at_once_are_both_complete(tmp_path, monkeypatch):
    monkeypatch.setattr(worlds, "check_history", lambda contents: None)  # the second turn sees the call of the first
    service = Meeting(str(tmp_path / "sessions.db"))
    async with talking("async_tool", service) as talks:
        async with talks.asked() as first:
            await talks.world.saw("enter async_tool")
            async with talks.asked() as second:
                await talks.world.saw("enter async_tool", 2)
                service.barrier = asyncio.Barrier(2)
                runs = await talks.supervisor.find("adk:app/ann/s")
                await asyncio.gather(*(talks.supervisor.stop(run.id, "immediate", wait=DEADLINE) for run in runs))
        assert [one.result()[-1].error_code for one in (first, second)] == ["INVOCATION_ABORTED"] * 2
        events = await talks.events()
        called = [call.id for event in events for call in event.get_function_calls()]
        answered = [answer.id for event in events for answer in event.get_function_responses()]
        assert len(called) == 2
        assert sorted(called) == sorted(answered)
        monkeypatch.undo()
        assert "hello again" in str(await talks.say("again"))


@pytest.mark.parametrize("mode", ["graceful", "immediate"])
async def test_a_sub_agent_that_is_stopped_by_its_id_leaves_a_complete_session(mode):
    async with talking("sequence") as talks:
        async with talks.asked() as answer:
            await talks.world.saw("enter async_tool")
            await talks.world.saw("enter other_tool")
            left = await listed(talks.supervisor, "left")
            stopping = asyncio.create_task(talks.supervisor.stop(left.id, mode, wait=DEADLINE))
            if mode == "graceful":
                async with asyncio.timeout(DEADLINE):
                    while (await talks.supervisor.get(left.id)).status != "stopping":
                        await asyncio.sleep(0.005)
                talks.world.release("async_tool")
            assert (await stopping).status == "stopped"
        assert isinstance(answer.exception(), stoppable.RunStopped), "the agent above it fails"
        answers = await talks.answers()
        if mode == "graceful":
            assert answers["async_tool"] == {"result": "async_tool done"}
        else:
            assert MAY_HAVE_HAPPENED in answers["async_tool"]["error"]
        assert MAY_HAVE_HAPPENED in answers["other_tool"]["error"], "it was cut with the agent above it"
        assert "hello again" in str(await talks.say("again"))


TTL = 8  # short, because the test waits for it; longer than any pause of a busy machine
CRASHING = """
import asyncio, os, signal, sys
sys.path.insert(0, {root!r})
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from tests.adapters.adk.test_repair import talking

async def main():
    async with talking("async_tool", SqliteSessionService("sessions.db"), "sqlite:///runs.db", ttl={ttl}) as talks:
        async with talks.asked():
            await talks.world.saw("enter async_tool")
            os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


@pytest.mark.timeout(180)
async def test_a_turn_repairs_what_a_process_that_died_has_left(warm, tmp_path):
    with process("-c", CRASHING.format(root=sys.path[0], ttl=TTL), cwd=tmp_path) as crashing:
        assert crashing.finish()[0] == -9, crashing.finish()[1]
    service = SqliteSessionService(str(tmp_path / "sessions.db"))
    async with talking("async_tool", service, f"sqlite:///{tmp_path}/runs.db", ttl=TTL) as talks:
        async with asyncio.timeout(2 * DEADLINE):
            while not (await talks.supervisor.list()).runs[0].over:
                await asyncio.sleep(0.05)
        assert "hello again" in str(await talks.say("again"))
        assert MAY_HAVE_HAPPENED in (await talks.answers())["async_tool"]["error"]


async def test_a_turn_leaves_the_calls_of_another_that_is_under_way_alone(monkeypatch):
    async with talking("async_tool") as talks:
        async with talks.asked():
            await talks.world.saw("enter async_tool")
            await talks.stop()
        monkeypatch.setattr(worlds, "check_history", lambda contents: None)
        async with talks.asked() as answer:
            await talks.world.saw("enter async_tool", 2)
            await talks.say("again")
            assert (await talks.answers())["async_tool"] is None
            talks.world.release("async_tool")
        assert "all done" in str(answer.result())
        assert (await talks.answers())["async_tool"] == {"result": "async_tool done"}


async def test_a_turn_leaves_calls_alone_that_wait_for_their_client(monkeypatch):
    monkeypatch.setattr(worlds, "check_history", lambda contents: None)

    def order() -> None:
        """Take long, outside."""

    def ordering(world):
        return agent(world, "ordering", LongRunningFunctionTool(order), Tools(world).async_tool, asks=["order"])

    async with talking(ordering) as talks:
        await talks.say()
        talks.runner.agent.model.asks = ["async_tool"]
        async with talks.asked():
            await talks.world.saw("enter async_tool")
            await talks.stop()
        await talks.say("again")
        assert (await talks.answers())["order"] is None
        assert MAY_HAVE_HAPPENED in (await talks.answers())["async_tool"]["error"]


async def test_a_confirmed_call_that_was_stopped_may_have_taken_effect(monkeypatch):
    monkeypatch.setattr(worlds, "check_history", lambda contents: None)  # the question is answered by no tool

    def confirming(world):
        tool = FunctionTool(Tools(world).async_tool, require_confirmation=True)
        return agent(world, "confirming", tool, asks=["async_tool"])

    async with talking(confirming) as talks:
        events = await talks.say()
        [question] = [
            call for event in events for call in event.get_function_calls() if call.name == "adk_request_confirmation"
        ]
        confirmed = types.FunctionResponse(id=question.id, name=question.name, response={"confirmed": True})
        async with talks.asked(types.Content(role="user", parts=[types.Part(function_response=confirmed)])) as answer:
            await talks.world.saw("enter async_tool")
            await talks.stop()
        assert answer.result()[-1].error_code == "INVOCATION_ABORTED"
        await talks.say("again")
        shown = [part.function_response for part in worlds.parts(talks.world.requests[-1]) if part.function_response]
        assert [MAY_HAVE_HAPPENED in one.response["error"] for one in shown] == [True]
