"""What only LlamaIndex has: handoffs, agents that reason in text, contexts, workflows, streams of events."""

import asyncio
import contextlib
import json

import pytest
from llama_index.core.agent.workflow import AgentWorkflow, CodeActAgent, FunctionAgent, ReActAgent
from llama_index.core.memory import ChatMemoryBuffer, Memory
from llama_index.core.storage.chat_store.sql import SQLAlchemyChatStore
from llama_index.core.workflow import Context
from llama_index.llms.openai_like import OpenAILike
from workflows import Workflow, step
from workflows.events import Event, StartEvent, StopEvent, WorkflowCancelledEvent

import stoppable
from stoppable.adapters import _whole_calls
from stoppable.adapters.llama_index import install
from stoppable.adapters.turn import MAY_HAVE_TAKEN_EFFECT, NO_EFFECT
from stoppable.testing import ModelServer, Pause, Reply, ToolCall

DEADLINE = 60
pytestmark = pytest.mark.filterwarnings("ignore")  # of LlamaIndex


@pytest.fixture(autouse=True)
def installed():
    install()


def asking(name, call_id="call-1", **arguments):
    return Reply(tool_calls=[ToolCall(name=name, arguments=json.dumps(arguments), id=call_id)])


def model(server, **options):
    settings = {"is_chat_model": True, "is_function_calling_model": True, **options}
    return OpenAILike(model="small", api_base=server.url, api_key="none", max_retries=0, **settings)


class Booking:
    """A tool that waits until the test lets it go on."""

    def __init__(self):
        self.count = 0
        self.began, self.release = asyncio.Event(), asyncio.Event()

    async def book(self, city: str) -> str:
        """Book a trip."""
        self.count += 1
        self.began.set()
        await self.release.wait()
        return f"booked {city}"


async def stop_in_tool(turn, booking, mode):
    """Stop a turn in its tool, and return its run."""
    async with asyncio.timeout(DEADLINE):
        handle = await stoppable.spawn(turn)
        await booking.began.wait()
        receipt = await handle.stop(mode)
        assert "tool:book" in receipt.in_flight
        if mode == "graceful":
            booking.release.set()
        assert (await handle.outcome()).status is stoppable.Status.STOPPED
        return handle


def texts(messages):
    return [(message.role.value, message.content) for message in messages]


@pytest.mark.parametrize("mode", ["graceful", "immediate"])
async def test_the_agent_that_was_handed_the_conversation_is_stopped_and_the_memory_has_both(mode):
    booking = Booking()
    with ModelServer(
        asking("handoff", "call-0", to_agent="booker", reason="trips"), asking("book", city="Rome")
    ) as server:
        booker = FunctionAgent(name="booker", description="books", llm=model(server), tools=[booking.book])
        desk = FunctionAgent(name="desk", description="talks", llm=model(server), can_handoff_to=["booker"])
        workflow, memory = AgentWorkflow(agents=[desk, booker], root_agent="desk"), ChatMemoryBuffer.from_defaults()

        async def turn():
            await workflow.run("A trip, please.", memory=memory)

        await stop_in_tool(turn, booking, mode)
    said = texts(memory.get_all())
    assert [role for role, _ in said] == ["user", "assistant", "tool", "assistant", "tool"]
    assert said[-1][1] == ("booked Rome" if mode == "graceful" else MAY_HAVE_TAKEN_EFFECT)
    assert booking.count == 1


@pytest.mark.parametrize("mode", ["graceful", "immediate"])
async def test_an_agent_that_reasons_in_text_keeps_its_steps_as_one_message(mode):
    booking = Booking()
    thought = 'Thought: I book.\nAction: book\nAction Input: {"city": "Rome"}'
    with ModelServer(Reply(thought)) as server:
        agent = ReActAgent(llm=model(server, is_function_calling_model=False), tools=[booking.book])
        memory = ChatMemoryBuffer.from_defaults()

        async def turn():
            await agent.run("A trip, please.", memory=memory)

        await stop_in_tool(turn, booking, mode)
    (_, (role, text)) = texts(memory.get_all())
    assert role == "assistant"
    assert text.startswith("Thought: I book.")
    assert text.endswith("Observation: " + ("booked Rome" if mode == "graceful" else MAY_HAVE_TAKEN_EFFECT))


async def test_an_agent_that_writes_code_tells_its_model_what_became_of_it():
    began = asyncio.Event()

    async def execute(code: str) -> str:
        began.set()
        await asyncio.sleep(DEADLINE)
        return code

    with ModelServer(Reply("<execute>book()</execute>")) as server:
        agent = CodeActAgent(code_execute_fn=execute, llm=model(server, is_function_calling_model=False), tools=[])
        memory = ChatMemoryBuffer.from_defaults()

        async def turn():
            await agent.run("A trip, please.", memory=memory)

        async with asyncio.timeout(DEADLINE):
            handle = await stoppable.spawn(turn)
            await began.wait()
            await handle.stop("immediate")
            await handle.outcome()
    said = texts(memory.get_all())
    assert [role for role, _ in said] == ["user", "assistant", "user"]
    assert said[-1][1].endswith(MAY_HAVE_TAKEN_EFFECT)


@pytest.mark.parametrize("mode", ["graceful", "immediate"])
async def test_the_next_turn_in_a_context_does_not_repeat_the_tool(mode):
    booking = Booking()
    with ModelServer(asking("book", city="Rome"), Reply("Done.")) as server:
        agent, memory = FunctionAgent(llm=model(server), tools=[booking.book]), ChatMemoryBuffer.from_defaults()
        ctx = Context(agent)

        async def turn(text="A trip, please."):
            return str(await agent.run(text, ctx=ctx, memory=memory))

        await stop_in_tool(turn, booking, mode)
        async with asyncio.timeout(DEADLINE):
            assert await turn("Still there?") == "Done."  # outside of a run, too
        assert [message["role"] for message in server.requests[-1].messages] == ["user", "assistant", "tool", "user"]
    assert booking.count == 1


async def test_a_tool_that_waits_for_a_free_place_never_begins_and_the_model_is_told():
    booking = Booking()
    calls = [ToolCall(name="book", arguments=json.dumps({"city": str(n)}), id=f"call-{n}") for n in range(6)]
    with ModelServer(Reply(tool_calls=calls)) as server:
        agent, memory = FunctionAgent(llm=model(server), tools=[booking.book]), ChatMemoryBuffer.from_defaults()

        async def turn():
            await agent.run("Six trips, please.", memory=memory)

        await stop_in_tool(turn, booking, "graceful")
    answers = [text for role, text in texts(memory.get_all()) if role == "tool"]
    assert len(answers) == 6
    assert answers.count(NO_EFFECT) == 6 - booking.count
    assert sum(text.startswith("booked") for text in answers) == booking.count


async def test_the_stream_of_events_ends_with_the_text_so_far():
    with contextlib.ExitStack() as stack:
        pause = Pause()
        server = stack.enter_context(ModelServer(Reply("one two three four", pause=pause)))
        agent, memory = FunctionAgent(llm=model(server)), ChatMemoryBuffer.from_defaults()
        said = asyncio.Event()
        last = None

        async def turn():
            nonlocal last
            handler = agent.run("Count.", memory=memory)
            async for last in handler.stream_events():
                if getattr(last, "delta", ""):
                    said.set()
            await handler

        async with asyncio.timeout(DEADLINE):
            handle = await stoppable.spawn(turn)
            pause.release()
            await said.wait()
            await handle.stop()
            pause.release()
            outcome = await handle.outcome()
            assert outcome.status is stoppable.Status.STOPPED
            while server.connections[-1].ending is None:  # the answer is no longer read, nor paid
                await asyncio.sleep(0.01)
    assert isinstance(last, WorkflowCancelledEvent)
    assert texts(memory.get_all())[-1] == ("assistant", outcome.partial)
    assert outcome.partial in {"one", "one two"}


class Middle(Event):
    pass


class Pipeline(Workflow):
    """A workflow of a user, with a step that waits and one that must not begin."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, timeout=None, **kwargs)
        self.began, self.release = asyncio.Event(), asyncio.Event()
        self.steps = []

    @step
    async def first(self, ev: StartEvent) -> Middle:
        self.steps.append(ev.topic)
        self.began.set()
        await self.release.wait()
        return Middle()

    @step
    def second(self, ev: Middle) -> StopEvent:
        self.steps.append("second")
        return StopEvent(result={"steps": self.steps})


async def test_a_workflow_finishes_the_step_in_flight_and_begins_no_other():
    pipeline = Pipeline()
    events = []

    async def turn():
        handler = pipeline.run(topic="tides")
        async for event in handler.stream_events():
            events.append(event)
        await handler

    async with asyncio.timeout(DEADLINE):
        handle = await stoppable.spawn(turn)
        await pipeline.began.wait()
        receipt = await handle.stop()
        assert receipt.in_flight == ("node:Pipeline.first",)
        pipeline.release.set()
        assert (await handle.outcome()).status is stoppable.Status.STOPPED
    assert pipeline.steps == ["tides"]
    assert isinstance(events[-1], WorkflowCancelledEvent)


async def test_outside_a_run_everything_is_as_before():
    booking = Booking()
    booking.release.set()
    with ModelServer(asking("book", city="Rome"), Reply("Done.")) as server:
        agent = FunctionAgent(llm=model(server), tools=[booking.book])
        async with asyncio.timeout(DEADLINE):
            assert str(await agent.run("A trip, please.")) == "Done."


async def test_a_stop_does_not_cut_a_write_of_the_memory_and_the_next_turn_has_it(monkeypatch):
    began, goes_on, cuts = asyncio.Event(), asyncio.Event(), []
    connect = SQLAlchemyChatStore._initialize

    async def connect_slowly(self):
        began.set()
        try:
            await goes_on.wait()
        except asyncio.CancelledError:
            cuts.append(self)
            raise
        return await connect(self)

    memory = Memory.from_defaults(session_id="ann")  # its database in memory does not survive a cut
    with ModelServer(Reply(text="first"), Reply(text="second")) as server:
        agent = FunctionAgent(llm=model(server), streaming=False)

        async def turn(text):
            return await agent.run(user_msg=text, memory=memory)

        monkeypatch.setattr(SQLAlchemyChatStore, "_initialize", connect_slowly)
        async with asyncio.timeout(DEADLINE):
            handle = await stoppable.spawn(turn, "one")
            await began.wait()
            stopping = asyncio.create_task(handle.stop("immediate"))
            while not _whole_calls._cancelled:
                await asyncio.sleep(0)
            goes_on.set()
            await stopping
            assert (await handle.outcome()).status is stoppable.Status.STOPPED
            assert not cuts
            await (await stoppable.spawn(turn, "two")).result()
        assert ("user", "two") in texts(await memory.aget())
    await memory.sql_store._async_engine.dispose()  # LlamaIndex leaves it open
