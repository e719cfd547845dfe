"""Agents of every shape with a scripted model, and a world that sees what they do and holds it until it is released."""

import asyncio
import contextlib
import subprocess
import sys
import threading
import warnings

from google.adk.agents.llm_agent import LlmAgent
from google.adk.cli.utils.base_agent_loader import BaseAgentLoader
from google.adk.models.base_llm import BaseLlm
from google.adk.models.base_llm_connection import BaseLlmConnection
from google.adk.models.llm_response import LlmResponse
from google.adk.tools.agent_tool import AgentTool
from google.genai import types
from pydantic import Field

from stoppable.adapters.adk import names

DEADLINE = 30
TICK = 0.01


class World:
    """What the agents of one test did, on whatever thread, and what holds them."""

    def __init__(self):
        self._changed = threading.Condition()
        self._lock = threading.Lock()
        self.reset()

    def reset(self):
        """Begin anew, for the next test."""
        self.notes = []  # appending to a list is atomic
        self.ticks = {}  # how much work each effect did
        self.requests = []  # what the model was shown, a list of contents for each call
        self.processes = []  # what tools have started
        self._released = {}

    def note(self, text):
        with self._changed:
            self.notes.append(text)
            self._changed.notify_all()

    def seen(self, text, times=1):
        """Wait until something happened."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.notes.count(text) >= times, DEADLINE), (text, self.notes)

    async def saw(self, text, times=1):
        async with asyncio.timeout(DEADLINE):
            while self.notes.count(text) < times:
                await asyncio.sleep(0.002)

    def gate(self, name):
        with self._lock:
            return self._released.setdefault(name, threading.Event())

    def release(self, *names):
        for name in names:
            self.gate(name).set()

    def release_all(self):
        with self._lock:
            for gate in self._released.values():
                gate.set()

    async def hold(self, name):
        """Work in small steps, in a task, until released."""
        gate = self.gate(name)
        self.note(f"enter {name}")
        try:
            while not gate.is_set():
                self.ticks[name] = self.ticks.get(name, 0) + 1
                await asyncio.sleep(TICK)
            self.note(f"finish {name}")
        except asyncio.CancelledError:
            self.note(f"cancelled {name}")
            raise
        return f"{name} done"

    def hold_blocking(self, name, should_end=lambda: False):
        """Work in small steps, on a thread, until released."""
        gate = self.gate(name)
        self.note(f"enter {name}")
        while not gate.wait(TICK):
            self.ticks[name] = self.ticks.get(name, 0) + 1
            if should_end():
                self.note(f"saw the stop in {name}")
                return "ended early"
        self.note(f"finish {name}")
        return f"{name} done"


class Scripted(BaseLlm):
    """A model that asks for the tool of its script, then answers; a provider that refuses a broken history."""

    model: str = "scripted"
    asks: list = Field(default_factory=list)  # the names of the tools that it asks for, at once
    turns: int = 1  # how often it does so
    chunks: int = 0  # it streams so many, each held as "chunk N"
    world: object = None

    async def generate_content_async(self, llm_request, stream=False):
        self.world.requests.append(llm_request.contents)
        check_history(llm_request.contents)
        self.world.note(f"model {self.model}")
        if "again" in last_text(llm_request.contents):
            yield answer("hello again")
        elif self.chunks and stream:
            async for response in self._streamed():
                yield response
        elif self.asks and answers(llm_request.contents) < len(self.asks) * self.turns:
            yield LlmResponse(content=types.Content(role="model", parts=[call(name) for name in self.asks]))
        else:
            yield answer("all done")

    async def _streamed(self):
        said = ""
        for number in range(self.chunks):
            if number:
                await self.world.hold(f"chunk {number}")
            said += f"part{number} "
            yield LlmResponse(
                content=types.Content(role="model", parts=[types.Part(text=f"part{number} ")]), partial=True
            )
        yield answer(said)

    @contextlib.asynccontextmanager
    async def connect(self, llm_request):
        connection = Connection(self.world)
        try:
            yield connection
        finally:
            self.world.note("live closed")


class Connection(BaseLlmConnection):
    """A live model that answers each message with a word, and then speaks on until released."""

    def __init__(self, world):
        self._world = world
        self._heard = asyncio.Queue()

    async def send_history(self, history):
        pass

    async def send_content(self, content):
        self._heard.put_nowait(content)

    async def send_realtime(self, blob):
        pass

    async def receive(self):
        await self._heard.get()
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text="hello ")]), partial=True)
        await self._world.hold("speech")
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text="goodbye")]), turn_complete=True)
        await asyncio.Event().wait()

    async def close(self):
        pass


def answer(text):
    return LlmResponse(content=types.Content(role="model", parts=[types.Part(text=text)]))


def call(name):
    return types.Part(function_call=types.FunctionCall(name=name, args={"request": "go"} if "agent" in name else {}))


def parts(contents):
    return [part for content in contents for part in content.parts or []]


def answers(contents):
    """Return how many calls were answered since the user last spoke."""
    count = 0
    for part in parts(contents):
        if part.function_response:
            count += 1
        elif part.text and "go" in part.text:
            count = 0
    return count


def last_text(contents):
    found = [part.text for content in contents if content.role == "user" for part in content.parts or [] if part.text]
    return found[-1] if found else ""


def check_history(contents):
    """Refuse what a provider refuses with a 400: a call without an answer."""
    called = [part.function_call for part in parts(contents) if part.function_call]
    answered = [part.function_response for part in parts(contents) if part.function_response]
    for one in called:
        if not any((one.id and one.id == other.id) or (not one.id and one.name == other.name) for other in answered):
            raise ValueError(f"400: the call {one.name} has no answer")
    if len(called) != len(answered):
        raise ValueError(f"400: {len(called)} calls and {len(answered)} answers")


class Tools:
    """One tool of each kind."""

    def __init__(self, world):
        self._world = world

    async def async_tool(self) -> str:
        """Work in a task."""
        return await self._world.hold("async_tool")

    async def other_tool(self) -> str:
        """Work in a task."""
        return await self._world.hold("other_tool")

    def sync_tool(self) -> str:
        """Work and block."""
        return self._world.hold_blocking("sync_tool")

    async def thread_tool(self) -> str:
        """Work on a thread of the default executor."""
        return await asyncio.to_thread(self._world.hold_blocking, "thread_tool")

    def process_tool(self) -> str:
        """Start a command and leave it running, without a word to anybody."""
        process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        self._world.processes.append(process)
        self._world.note("enter process_tool")
        return f"exit code {process.wait()}"

    async def blocking_tool(self) -> str:
        """Block the event loop, as no async tool should."""
        return self._world.hold_blocking("blocking_tool")

    async def stubborn_tool(self) -> str:
        """Swallow every cancel."""
        while True:
            try:
                return await self._world.hold("stubborn_tool")
            except asyncio.CancelledError:
                continue

    async def quick_tool(self) -> str:
        """Return at once."""
        self._world.note("quick_tool")
        return "quick"

    def polling_tool(self, tool_context) -> str:
        """Work on a thread and ask ADK whether to go on."""
        return self._world.hold_blocking("polling_tool", lambda: tool_context.is_aborted)


def agent(world, name, *tools, asks=None, **script):
    asks = [getattr(tool, "name", None) or tool.__name__ for tool in tools] if asks is None else asks
    return LlmAgent(
        name=name, model=Scripted(model=f"model of {name}", asks=asks, world=world, **script), tools=list(tools)
    )


def shapes(world):
    """Return the makers of a root agent of each shape, by name."""
    from google.adk.agents.loop_agent import LoopAgent
    from google.adk.agents.parallel_agent import ParallelAgent
    from google.adk.agents.sequential_agent import SequentialAgent

    tools = Tools(world)

    def agent_tool(**options):
        return agent(world, "outer", AgentTool(agent(world, "inner_agent", tools.async_tool), **options))

    def sequence():
        branches = [agent(world, "left", tools.async_tool), agent(world, "right", tools.other_tool)]
        return SequentialAgent(
            name="sequence", sub_agents=[ParallelAgent(name="both", sub_agents=branches), agent(world, "after")]
        )

    def workflow():
        from google.adk.workflow import START, FunctionNode, Workflow

        async def first() -> str:
            """Work in a task."""
            return await world.hold("async_tool")

        def second() -> str:
            """Come after it."""
            world.note("second node")
            return "second"

        one, two = FunctionNode(func=first), FunctionNode(func=second)
        return Workflow(name="flow", edges=[(START, one), (one, two)])

    made = {
        "stream": lambda: agent(world, "stream", chunks=4),
        "async_tool": lambda: agent(world, "async_agent", tools.async_tool),
        "sync_tool": lambda: agent(world, "sync_agent", tools.sync_tool),
        "thread_tool": lambda: agent(world, "thread_agent", tools.thread_tool),
        "process_tool": lambda: agent(world, "process_agent", tools.process_tool),
        "blocking_tool": lambda: agent(world, "blocking_agent", tools.blocking_tool),
        "stubborn_tool": lambda: agent(world, "stubborn_agent", tools.stubborn_tool),
        "polling_tool": lambda: agent(world, "polling_agent", tools.polling_tool),
        "two_tools": lambda: agent(world, "two_agent", tools.async_tool, tools.other_tool),
        "quick_tool": lambda: agent(world, "quick_agent", tools.quick_tool),
        "quick_sequence": lambda: SequentialAgent(
            name="quick_sequence", sub_agents=[agent(world, "quick_agent", tools.quick_tool)]
        ),
        "agent_tool": agent_tool,
        "agent_tool_without_plugins": lambda: agent_tool(include_plugins=False),
        "sequence": sequence,
        "loop": lambda: LoopAgent(name="again", sub_agents=[agent(world, "step", tools.async_tool)], max_iterations=3),
        "live": lambda: agent(world, "live"),
    }
    if names.WORKFLOW is not None:
        made["workflow"] = workflow
    return made


class Loader(BaseAgentLoader):
    """Hands the server the agents of a test."""

    def __init__(self, world):
        self._makers = shapes(world)

    def load_agent(self, agent_name):
        if agent_name not in self._makers:
            raise ValueError(f"Agent not found: {agent_name}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # 2.x prefers Workflow to the agents that compose others
            return self._makers[agent_name]()

    def list_agents(self):
        return sorted(self._makers)
