"""What is asked of every client."""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

ASSISTANT = "research"
SECONDS = 60.0  # only a defect takes so long


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a client was told about its cancel."""

    words: str
    is_end: bool
    """Whether that is the end of the work, as the protocol has it."""


class Conversation(Protocol):
    """An unmodified official client in one conversation with the agent."""

    async def begin(self, text: str) -> None:
        """Send a message whose answer takes long."""

    async def cancel(self) -> Told:
        """Cancel it by the client's own cancel."""

    async def end(self) -> str:
        """Return the end that a cancel without an answer has come to, once it is there; empty if nobody says it."""

    async def ask(self, text: str) -> str:
        """Send the next message of the conversation, and return its answer."""

    async def kept(self) -> str | None:
        """Return what the server has of the cancelled answer; None if the protocol has no way to ask."""


Opened = AbstractAsyncContextManager[Conversation]


async def refused(sending: Awaitable[str]) -> str:
    """Return an answer, or what the client raised instead."""
    try:
        return await sending
    except Exception as error:
        return f"{type(error).__name__}: {error}"
