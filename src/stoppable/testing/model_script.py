"""The script of a model: what it answers, and when."""

from __future__ import annotations

import asyncio
import re
import threading
from asyncio import AbstractEventLoop, Event
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias


class Gate:
    """Holds back the tokens of replies until the test releases them, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._permits = 0
        self._is_open = False
        self._waiting: dict[Event, AbstractEventLoop] = {}

    def release(self, tokens: int = 1) -> None:
        """Release a number of tokens."""
        with self._lock:
            self._permits += tokens
        self._wake()

    def open(self) -> None:
        """Release all tokens, now and later."""
        with self._lock:
            self._is_open = True
        self._wake()

    async def passed(self) -> None:
        """Wait for a token to be released, or for the end of the server."""
        woken = Event()
        with self._lock:
            self._waiting[woken] = asyncio.get_running_loop()
        try:
            while not self._take():
                await woken.wait()
                woken.clear()
        finally:
            with self._lock:
                del self._waiting[woken]

    def _take(self) -> bool:
        with self._lock:
            if self._permits and not self._is_open:
                self._permits -= 1
                return True
            return self._is_open

    def _wake(self) -> None:
        with self._lock:
            waiting = list(self._waiting.items())
        for woken, loop in waiting:
            loop.call_soon_threadsafe(woken.set)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A tool that the model asks for; the arguments are JSON."""

    name: str
    arguments: str = "{}"
    id: str = "call"


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: a text, which is sent word by word, or its tokens; then the tool calls.

    Tokens are sent at once, at ``rate`` per second, or when ``gate`` releases them. The answer begins after ``delay``
    seconds. After ``drop_after`` tokens the connection is reset, which may overtake them.
    """

    text: str | Sequence[str] = ""
    tool_calls: Sequence[ToolCall] = ()
    rate: float | None = None
    gate: Gate | None = None
    delay: float = 0.0
    drop_after: int | None = None

    @property
    def tokens(self) -> list[str]:
        """The text in pieces."""
        return re.findall(r"\s*\S+|\s+", self.text) if isinstance(self.text, str) else list(self.text)

    async def pace(self) -> None:
        """Wait until the next token may go."""
        if self.rate is not None:
            await asyncio.sleep(1 / self.rate)
        if self.gate is not None:
            await self.gate.passed()


@dataclass(frozen=True, slots=True)
class Stuck:
    """The model server never answers."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An error response of the model server."""

    status: int = 500
    message: str = "the server had an error"
    headers: Mapping[str, str] = field(default_factory=dict)


Turn: TypeAlias = Reply | Stuck | Failure
