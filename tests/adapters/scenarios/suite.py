"""What a stop does to an agent of a framework that has an adapter: the same scenarios for every framework.

A framework is a subclass of `Chat` that makes its agent, mostly the one of `bench/frameworks_unmodified`, and a
subclass of `AdapterScenarios`, in `tests/adapters/<framework>/test_scenarios.py`:

    from bench.frameworks_unmodified.with_toy import Toy
    from tests.adapters.scenarios.suite import AdapterScenarios

    from stoppable.adapters import toy

    class TestToy(AdapterScenarios):
        chat = Toy                       # ask() and ask_streamed() take a message of the user

        def install(self):               # once per test: what a user of the adapter does
            toy.install()

`Chat.open` makes the agent with the tools of `self.tools` and, if `self.delegates`, with another agent as its tool
`helper`. The session is an attribute, so that calling `ask` again is the next turn of the user. Class attributes of the
subclass say what is different in a framework; each has its docstring below.

Every scenario is executed against the real framework and a real HTTP server with a scripted model, graceful and
immediate, asked in one piece and streamed. What is in flight is held by a barrier, so nothing depends on time: the
model by a `Pause`, a tool by the `World`. After the end it is checked that nothing was begun after the stop and no tool
has effects after the end; that the receipt names what was in flight, with its fate; that the next turn of the user
completes, with a history that a strict provider takes, in which text and finished results are kept.

`Chat.open` may change what the base class has made: a framework that cannot take plain functions wraps `self.tools`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tests.adapters.scenarios.chat import Chat
from tests.adapters.scenarios.history import answers_in, is_valid, shape, texts_of
from tests.waiting import until

import stoppable
from stoppable import Fate, Outcome, Receipt, RunHandle
from stoppable.adapters.turn import MAY_HAVE_TAKEN_EFFECT, NO_EFFECT
from stoppable.testing import ModelServer, Pause, Reply, ToolCall

_DEADLINE = 100.0  # only a test that hangs takes so long
_PATIENT = stoppable.Policy(grace=_DEADLINE, cancel=_DEADLINE)  # a stop never gets harder because a machine is slow
_TURNS_OF_THE_LOOP = 200
FIRST, NEXT = "Book a trip, please.", "Are you still there?"
_CUT = frozenset({Fate.CANCELLED, Fate.INTERRUPTED, Fate.CLOSED})


class World:
    """Tools with effects that are counted; those in `held` wait in the middle until they are released."""

    def __init__(self, path: Path, held: tuple[str, ...]) -> None:
        self.path = path
        self.held = held
        self.begun: list[str] = []
        self.waiting: list[str] = []
        self.effects: list[str] = []
        self.ended: list[str] = []
        self._pause, self._released = Pause(), threading.Event()

    def tools(self) -> list[Callable[..., Any]]:
        def book_sync() -> str:
            """Book a trip in blocking code."""
            with self._noted("book_sync"):
                if "book_sync" in self.held:
                    self.waiting.append("book_sync")
                    assert self._released.wait(_DEADLINE), "the test never released it"
                self.effects.append("book_sync")
                return "book_sync done"

        async def book_async() -> str:
            """Book a trip in a task."""
            return await self._perform("book_async")

        async def look_up() -> str:
            """Look up a price in a task."""
            return await self._perform("look_up")

        return [book_sync, book_async, look_up]

    async def _perform(self, name: str) -> str:
        with self._noted(name):
            if name in self.held:
                self.waiting.append(name)
                await self._pause.wait()
            self.effects.append(name)
            return f"{name} done"

    @contextlib.contextmanager
    def _noted(self, name: str) -> Any:
        self.begun.append(name)
        try:
            yield
        finally:
            self.ended.append(name)

    def release(self) -> None:
        """Let the tools that are held go on, now and later."""
        self._pause.end()
        self._released.set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What the model asks for, and which tools are held when the stop comes."""

    name: str
    tools: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    delegates: bool = False

    def __str__(self) -> str:
        return self.name

    def in_flight(self) -> tuple[str, ...]:
        """Return what the receipt must name."""
        return tuple(f"tool:{name}" for name in self.held) or ("llm:",)


MODEL = Scenario(name="a model call", tools=("book_async",))
STREAM = Scenario(name="b stream")
SYNC_TOOL = Scenario(name="c sync tool", tools=("book_sync",), held=("book_sync",))
ASYNC_TOOL = Scenario(name="d async tool", tools=("book_async",), held=("book_async",))
PARALLEL = Scenario(
    name="e parallel tools", tools=("look_up", "book_sync", "book_async"), held=("book_sync", "book_async")
)
IN_ORDER = Scenario(name="e tools in order", tools=("look_up", "book_async"), held=("book_async",))
SUB_AGENT = Scenario(name="e sub-agent", tools=("book_async",), held=("book_async",), delegates=True)
TOOLS = (SYNC_TOOL, ASYNC_TOOL, PARALLEL, SUB_AGENT)


@dataclass(slots=True)
class Stopped:
    """A turn that was stopped."""

    handle: RunHandle[Any]
    receipt: Receipt
    outcome: Outcome[Any]
    requests: int
    """Those until the stop."""

    def fates(self) -> dict[str, Fate | None]:
        final = self.handle.run.receipt
        assert final is not None
        assert final.final
        return {f"{entry.kind}:{entry.name}": entry.fate for entry in final.entries}


class AdapterScenarios:
    """The tests; subclass it for a framework."""

    chat: ClassVar[type[Chat]]
    always_streams: ClassVar[bool] = False
    """Whether the framework reads its models as streams, also if it is asked in one piece."""
    is_parallel: ClassVar[bool] = True
    """Whether it executes the tools that a model asked for together at once."""
    no_effect: ClassVar[str] = NO_EFFECT
    """What the history says of a call that never began; a framework may have its own words."""
    may_have_taken_effect: ClassVar[str] = MAY_HAVE_TAKEN_EFFECT
    """What it says of a call that was cut."""
    keeps_text_beside_calls: ClassVar[bool] = True
    """Whether it keeps what a model says in an answer that asks for tools."""
    merges_users: ClassVar[bool] = False
    """Whether it sends messages of the user that follow each other as one."""
    fine: ClassVar[Reply] = Reply("Fine.")
    """The answer of a model that has nothing else to say."""

    def reply(self, text: str, calls: list[ToolCall], **options: Any) -> Reply:
        """Return the answer of a model that asks for tools; some frameworks let it write code."""
        return Reply(text, tool_calls=calls, **options)

    def answers_in(self, messages: list[dict[str, Any]]) -> dict[str, str]:
        """Return the text of each answer to a tool call, by the name of the tool; some have their own form."""
        return answers_in(messages)

    def install(self) -> None:
        """Do what a user of the adapter does once per process."""

    async def start(self, chat: Chat, text: str, *, is_streamed: bool) -> RunHandle[Any]:
        """Start a turn as a run."""
        return await stoppable.spawn(chat.ask_streamed if is_streamed else chat.ask, text, policy=_PATIENT)

    # The scenarios

    @pytest.mark.parametrize("mode", ["graceful", "immediate"])
    async def test_a_model_call_in_flight(self, mode: str, tmp_path: Path) -> None:
        pause, call = Pause(), ToolCall(name="book_async", id="call-1")
        reply = self.reply("Booking", [call], pause=pause)
        async with self._open(MODEL, tmp_path, reply) as (chat, world, server):
            handle = await self.start(chat, FIRST, is_streamed=False)
            await server.wait_for_request_async(within=_DEADLINE)
            await until(lambda: any(label.startswith("llm:") for label in handle.run.in_flight), _DEADLINE)
            receipt = await handle.stop(mode)
            if mode == "graceful":
                pause.end()
            stopped = await self._end(handle, receipt, world, server, requests=1)
            self._is_right(MODEL, mode, stopped, world)
            assert world.begun == []
            messages = await self._ask_again(chat, server)
            if mode == "graceful" and self.keeps_text_beside_calls:  # its answer is paid for, and kept
                assert any(text.startswith("Booking") for text in texts_of(messages, "assistant"))
            if mode == "graceful" and not self.always_streams:
                assert self.answers_in(messages) == {"book_async": self.no_effect}

    @pytest.mark.parametrize("mode", ["graceful", "immediate"])
    async def test_a_stream(self, mode: str, tmp_path: Path) -> None:
        pause = Pause()
        async with self._open(STREAM, tmp_path, Reply("one two three four", pause=pause)) as (chat, world, server):
            handle = await self.start(chat, FIRST, is_streamed=True)
            pause.release(2)
            await until(lambda: "two" in partial_of(handle), _DEADLINE)
            # It wants the next token.
            await until(lambda: any(label.startswith("llm:") for label in handle.run.in_flight), _DEADLINE)
            receipt = await handle.stop(mode)
            pause.release()
            stopped = await self._end(handle, receipt, world, server, requests=1)
            self._is_right(STREAM, mode, stopped, world)
            await server.wait_for_closed_async(within=_DEADLINE)
            assert partial_of(handle).startswith("one two")
            assert "four" not in partial_of(handle)
            messages = await self._ask_again(chat, server)
            [said] = texts_of(messages, "assistant")
            assert said == partial_of(handle)

    @pytest.mark.parametrize("is_streamed", [False, True], ids=["in one piece", "streamed"])
    @pytest.mark.parametrize("mode", ["graceful", "immediate"])
    @pytest.mark.parametrize("scenario", TOOLS, ids=str)
    async def test_a_tool(self, scenario: Scenario, mode: str, is_streamed: bool, tmp_path: Path) -> None:
        if scenario is PARALLEL and not self.is_parallel:
            scenario = IN_ORDER
        if scenario.delegates and self.chat.HELPER is None:
            pytest.skip("the framework has no agents that are tools")
        async with self._open(scenario, tmp_path, *self._script(scenario)) as (chat, world, server):
            handle = await self.start(chat, FIRST, is_streamed=is_streamed)
            await self._until_tools_are_held(handle, scenario, world)
            requests = len(server.requests)
            receipt = await handle.stop(mode)
            if mode == "immediate":
                await self._let_it_end_what_it_can(handle, scenario, world)
            world.release()
            stopped = await self._end(handle, receipt, world, server, requests=requests)
            self._is_right(scenario, mode, stopped, world)
            answers = self.answers_in(await self._ask_again(chat, server))
            assert set(answers) == {"helper"} if scenario.delegates else set(scenario.tools)
            for name, answer in answers.items():
                self._is_answered(name, answer, scenario, mode)

    # What they have in common

    @contextlib.asynccontextmanager
    async def _open(
        self, scenario: Scenario, path: Path, *script: Reply
    ) -> AsyncIterator[tuple[Chat, World, ModelServer]]:
        self.install()
        world = World(path / "effects", scenario.held)
        with ModelServer(*script, default=self.fine) as server:
            chat = self.chat(server.url, world, delegates=scenario.delegates)
            await chat.open()
            try:
                yield chat, world, server
            finally:
                world.release()
                await chat.close()

    def _script(self, scenario: Scenario) -> list[Reply]:
        calls = [ToolCall(name=name, id=f"call-{name}") for name in scenario.tools]
        replies = [self.reply("", calls)]
        if scenario.delegates:
            task = json.dumps({self.chat.HELPER: "book a trip"})
            replies.insert(0, self.reply("", [ToolCall(name="helper", arguments=task, id="call-helper")]))
        return replies

    @staticmethod
    async def _until_tools_are_held(handle: RunHandle[Any], scenario: Scenario, world: World) -> None:
        """Wait until only the tools that are held are in flight, and the framework has the results of the others."""
        others = {f"tool:{name}" for name in scenario.tools if name not in scenario.held}
        await until(lambda: set(world.waiting) == set(scenario.held) or handle.run.outcome, _DEADLINE)
        # A tool has its effect before it returns: a stop in between would cut the call that brings the result.
        await until(lambda: len(world.ended) == len(others) or handle.run.outcome, _DEADLINE)
        await until(lambda: others.isdisjoint(handle.run.in_flight) or handle.run.outcome, _DEADLINE)
        for _ in range(_TURNS_OF_THE_LOOP):  # some frameworks pass the result on from task to task
            await asyncio.sleep(0)
        assert handle.run.outcome is None
        assert len(world.effects) == len(others)

    @staticmethod
    async def _let_it_end_what_it_can(handle: RunHandle[Any], scenario: Scenario, world: World) -> None:
        """Wait until the stop has cut what can be cut; a thread goes on, so the run must not end before it."""
        if "book_sync" not in scenario.held:
            await ended(handle)
            return
        await until(lambda: handle.run.rung is not None and handle.run.rung >= stoppable.Rung.CANCEL, _DEADLINE)
        # A framework of blocking code executes each async tool in a loop of its own.
        await until(lambda: {*scenario.held} - {"book_sync"} <= {*world.ended}, _DEADLINE)
        for _ in range(_TURNS_OF_THE_LOOP):
            await asyncio.sleep(0)
        assert handle.run.outcome is None, "it ended while a thread of it was at work"

    @staticmethod
    async def _end(
        handle: RunHandle[Any], receipt: Receipt, world: World, server: ModelServer, *, requests: int
    ) -> Stopped:
        """Wait for the end of a run, after which its tools must have no effects."""
        outcome = await ended(handle)
        effects = list(world.effects)
        world.release()
        await until(lambda: len(world.ended) == len(world.begun), _DEADLINE)
        assert world.effects == effects, "a tool had an effect after the end"
        assert len(server.requests) == requests, "a model call began after the stop"
        return Stopped(handle, receipt, outcome, requests)

    def _is_right(self, scenario: Scenario, mode: str, stopped: Stopped, world: World) -> None:
        assert (stopped.outcome.status, stopped.outcome.error) == ("stopped", None)
        final = stopped.handle.run.receipt
        assert final is not None
        assert final.entered_after == ()
        for label in scenario.in_flight():
            assert any(each.startswith(label) for each in stopped.receipt.in_flight), (label, stopped.receipt.in_flight)
            # More than one: the request of a stream is listed beside its model call, if the stop cuts that one first.
            fates = {fate for each, fate in stopped.fates().items() if each.startswith(label)}
            assert fates
            is_stream = scenario is STREAM or (scenario is MODEL and self.always_streams)
            is_cut = is_stream or (mode == "immediate" and label != "tool:book_sync")
            assert fates <= _CUT if is_cut else fates == {Fate.FINISHED}, (label, fates)
        assert sorted(world.begun) == sorted(scenario.tools if scenario.held else ())

    def _is_answered(self, name: str, answer: str, scenario: Scenario, mode: str) -> None:
        result = f"{name} done"
        if name == "helper":
            assert answer == self.may_have_taken_effect
        elif mode == "graceful" or name not in scenario.held:
            assert answer == result
        elif name == "book_sync":  # its thread has ended, but the task that waited for it was cut
            assert answer in (result, self.may_have_taken_effect)
        else:
            assert answer == self.may_have_taken_effect

    async def _ask_again(self, chat: Chat, server: ModelServer) -> list[dict[str, Any]]:
        """Let the user write again, and return the messages that the model got."""
        handle = await self.start(chat, NEXT, is_streamed=False)
        outcome = await ended(handle)
        assert outcome.status == "completed", outcome
        messages = server.requests[-1].messages
        assert is_valid(messages), (shape(messages), messages)
        users = texts_of(messages, "user")
        assert [FIRST in users[0], NEXT in users[-1]] == [True, True], users
        assert len(users) == 2 or (self.merges_users and len(users) == 1), users
        return messages


def partial_of(handle: RunHandle[Any]) -> str:
    """Return what a run has said so far."""
    return str(handle.run.partial or "")


async def ended(handle: RunHandle[Any]) -> Outcome[Any]:
    """Return the outcome of a run, which ends at once unless the test fails."""
    async with asyncio.timeout(_DEADLINE):
        return await handle.outcome()
