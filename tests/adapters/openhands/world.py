"""Conversations with a scripted model, and a world that sees what their tools do and holds them until released."""

import asyncio
import json
import threading
from collections.abc import Sequence

from openhands.sdk import Agent, Conversation, Tool, register_tool
from openhands.sdk.event import AgentErrorEvent, InterruptEvent, ObservationEvent
from openhands.sdk.llm import Message, MessageToolCall, TextContent
from openhands.sdk.testing import TestLLM
from openhands.sdk.tool import Action, Observation, ToolDefinition, ToolExecutor

DEADLINE = 60  # a terminal or an MCP server takes long to start on a busy machine
TICK = 0.005


class World:
    """What the tools and models of one test did, on whatever thread, and what holds them."""

    def __init__(self):
        self._changed = threading.Condition()
        self.reset()

    def reset(self):
        self.notes = []
        self.tokens = {}  # by tool call, what it saw of its token
        self.gates = {}
        self.begin_after = []  # what must have happened before sub-agents begin

    def note(self, text):
        with self._changed:
            self.notes.append(text)
            self._changed.notify_all()

    def seen(self, text, times=1):
        with self._changed:
            assert self._changed.wait_for(lambda: self.notes.count(text) >= times, DEADLINE), (text, self.notes)

    async def saw(self, text, times=1):
        async with asyncio.timeout(DEADLINE):
            while self.notes.count(text) < times:
                await asyncio.sleep(TICK)

    def gate(self, name):
        with self._changed:
            return self.gates.setdefault(name, threading.Event())

    def release(self, *names):
        for name in names:
            self.gate(name).set()

    def release_all(self):
        for gate in list(self.gates.values()):
            gate.set()

    def hold(self, name, should_end=lambda: False):
        """Work in small steps, on a thread, until released."""
        gate = self.gate(name)
        self.note(f"enter {name}")
        while not gate.wait(TICK):
            if should_end():
                self.note(f"obeyed {name}")
                return "ended early"
        self.note(f"finish {name}")
        return f"{name} done"


world = World()


class HoldAction(Action):
    name: str
    obeys: bool = False


class HoldObservation(Observation):
    pass


class HoldExecutor(ToolExecutor):
    def __call__(self, action, conversation=None):
        def look():
            token = conversation.cancel_token
            seen = None if token is None else token.is_cancelled
            world.tokens.setdefault(action.name, []).append(seen)
            return bool(seen) and action.obeys

        return HoldObservation.from_text(world.hold(action.name, look))

    def interrupt(self):
        world.note("interrupted hold")


class HoldTool(ToolDefinition[HoldAction, HoldObservation]):
    name = "hold"

    @classmethod
    def create(cls, conv_state=None, **params) -> Sequence["HoldTool"]:
        return [
            cls(
                description="works until it is released",
                action_type=HoldAction,
                observation_type=HoldObservation,
                executor=HoldExecutor(),
            )
        ]

    def declared_resources(self, action):
        from openhands.sdk.tool.tool import DeclaredResources

        return DeclaredResources(keys=(), declared=True)


register_tool("hold", HoldTool)


class Scripted(TestLLM):
    """A model that says what it is scripted to; a provider that refuses a broken history."""

    held: str | None = None  # its first call waits in the world under this name

    def completion(self, messages, *args, **kwargs):
        check_history(messages)
        world.note("model")
        if self.held and self._call_count == 0:
            world.hold(self.held)
        return super().completion(messages, *args, **kwargs)

    async def acompletion(self, messages, *args, **kwargs):
        check_history(messages)
        world.note("model")
        if self.held and self._call_count == 0:
            self._call_count += 1
            world.note(f"enter {self.held}")
            await asyncio.sleep(DEADLINE)
        return TestLLM.completion(self, messages)


def check_history(messages):
    """Fail as a provider does: each tool call has exactly one answer."""
    asked = [call.id for message in messages for call in message.tool_calls or ()]
    answered = [message.tool_call_id for message in messages if message.role == "tool"]
    assert sorted(asked) == sorted(answered), (asked, answered)


_count = iter(range(1_000_000))


def call(tool, _id=None, **arguments):
    identity = _id or f"call_{next(_count)}"
    return MessageToolCall(id=identity, name=tool, arguments=json.dumps(arguments), origin="completion")


def asks(*calls):
    return Message(role="assistant", content=[TextContent(text="")], tool_calls=list(calls))


def hold(name, _id=None, **more):
    return call("hold", _id, name=name, **more)


def says(text):
    return Message(role="assistant", content=[TextContent(text=text)])


def converse(folder, *script, tools=("hold",), at_once=1, held=None, **options):
    """Return a conversation with a message in it that waits to be run."""
    llm = Scripted.from_messages([*script], held=held)
    named = [tool if isinstance(tool, tuple) else (tool, {}) for tool in tools]
    agent = Agent(
        llm=llm, tools=[Tool(name=name, params=params) for name, params in named], tool_concurrency_limit=at_once
    )
    conversation = Conversation(agent=agent, workspace=str(folder), visualizer=None, stuck_detection=False, **options)
    conversation.send_message("go")
    return conversation


def answers(conversation):
    """Return what the tool calls were answered with, by their id."""
    found = {}
    for event in conversation.state.events:
        if isinstance(event, ObservationEvent):
            found[event.tool_call_id] = event.observation.text
        elif isinstance(event, AgentErrorEvent):
            found[event.tool_call_id] = event.error
    return found


def interrupts(conversation):
    return sum(isinstance(event, InterruptEvent) for event in conversation.state.events)


def status(conversation):
    return str(conversation.state.execution_status.value)
