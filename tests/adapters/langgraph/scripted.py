"""A chat model that follows a script and, as providers do, refuses a history whose tool calls have no answer."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

DEADLINE = 30


class DanglingToolCalls(Exception):
    """What a provider answers with status 400."""


class Held:
    """A place that says it was reached, and waits there, in a task or on a thread, until it is let go."""

    def __init__(self) -> None:
        self._reached = threading.Semaphore(0)
        self._go = threading.Event()
        self.count = 0

    async def reached(self, times: int = 1) -> None:
        for _ in range(times):
            async with asyncio.timeout(DEADLINE):
                while not self._reached.acquire(blocking=False):
                    await asyncio.sleep(0.002)

    def release(self) -> None:
        self._go.set()

    def wait(self) -> None:
        self.count += 1
        self._reached.release()
        assert self._go.wait(DEADLINE), "the test never released it"

    async def wait_async(self) -> None:
        self.count += 1
        self._reached.release()
        async with asyncio.timeout(DEADLINE):
            while not self._go.is_set():
                await asyncio.sleep(0.002)


def check_history(messages: list[Any]) -> None:
    open_calls: list[str] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            if message.tool_call_id not in open_calls:
                raise DanglingToolCalls(f"400: {message.tool_call_id} answers no call right before it")
            open_calls.remove(message.tool_call_id)
            continue
        if open_calls:
            raise DanglingToolCalls(f"400: {open_calls} must be followed by tool messages")
        if isinstance(message, AIMessage):
            open_calls = [call["id"] for call in message.tool_calls]
    if open_calls:
        raise DanglingToolCalls(f"400: {open_calls} must be followed by tool messages")


def calls(*names: str, said: str = "") -> AIMessage:
    """Return an answer that asks for tools; the ids are made when it is given."""
    return AIMessage(said, tool_calls=[{"name": name, "args": {}, "id": ""} for name in names])


class Scripted(BaseChatModel):
    """Gives the answers of a script, one per call, and "done" afterwards; ``hold`` is met before each, or each word."""

    script: Any = None
    hold: Any = None
    seen: Any = None
    made: Any = None

    def __init__(self, *script: Any, hold: Held | None = None, **more: Any) -> None:
        super().__init__(script=list(script), hold=hold, seen=[], made=[], **more)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _next(self, messages: list[Any]) -> AIMessage:
        check_history(messages)
        self.seen.append(messages)
        answer = self.script.pop(0) if self.script else "done"
        if isinstance(answer, str):
            return AIMessage(answer)
        self.made.append(1)
        numbered = [{**call, "id": f"call-{len(self.made)}-{i}"} for i, call in enumerate(answer.tool_calls)]
        return AIMessage(answer.content, tool_calls=numbered)

    def _generate(self, messages, stop=None, run_manager=None, **kwargs):
        answer = self._next(messages)
        if self.hold is not None:
            self.hold.wait()
        return ChatResult(generations=[ChatGeneration(message=answer)])

    async def _agenerate(self, messages, stop=None, run_manager=None, **kwargs):
        answer = self._next(messages)
        if self.hold is not None:
            await self.hold.wait_async()
        return ChatResult(generations=[ChatGeneration(message=answer)])


class Streaming(Scripted):
    """Streams its answers word by word, and is held after the second one."""

    def _stream(self, messages, stop=None, run_manager=None, **kwargs):
        for index, chunk in enumerate(_words(self._next(messages))):
            if index == 2 and self.hold is not None:
                self.hold.wait()
            yield chunk

    async def _astream(self, messages, stop=None, run_manager=None, **kwargs):
        for index, chunk in enumerate(_words(self._next(messages))):
            if index == 2 and self.hold is not None:
                await self.hold.wait_async()
            yield chunk


def _words(message: AIMessage):
    if message.tool_calls:
        chunks = [
            {"name": call["name"], "args": "{}", "id": call["id"], "index": i, "type": "tool_call_chunk"}
            for i, call in enumerate(message.tool_calls)
        ]
        yield ChatGenerationChunk(message=AIMessageChunk(message.content, tool_call_chunks=chunks))
        return
    for word in str(message.content).split(" "):
        yield ChatGenerationChunk(message=AIMessageChunk(f"{word} "))
