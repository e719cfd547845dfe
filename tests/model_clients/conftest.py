"""A scripted model, and agents that talk to it through real client libraries."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import stoppable
from stoppable.testing.model_server import ModelServer, Pause, Reply

DEADLINE = 30.0  # of waits that end at once unless a claim is broken


class Scene:
    """One model, and the runs that ask it; each reply has a pause of its own, in the order of the requests."""

    def __init__(self, server: ModelServer) -> None:
        self.server = server
        self.pauses: list[Pause] = []
        self.received: list[str] = []

    def expect(self, *texts: str, **options: Any) -> None:
        """Add replies to the script whose tokens wait to be released."""
        for text in texts:
            self.pauses.append(Pause())
            self.server.script(Reply(text, pause=self.pauses[-1], **options))

    def release(self, tokens: int = 1) -> None:
        """Release so many tokens of every reply."""
        for pause in self.pauses:
            pause.release(tokens)

    def open(self) -> None:
        """Release everything."""
        for pause in self.pauses:
            pause.end()

    def keep(self, token: str | None) -> None:
        """Keep what an agent received, in the run and here; on any thread."""
        if token:
            stoppable.append_partial(token)
            self.received.append(token)

    async def until_received(self, count: int) -> None:
        """Wait until the agents have received so many tokens."""
        async with asyncio.timeout(DEADLINE):
            while len(self.received) < count:  # it happens on another thread
                await asyncio.sleep(0.001)

    async def stop(self, handle: stoppable.RunHandle[Any], *args: Any, **options: Any) -> stoppable.Receipt:
        """Stop a run, and count the tokens from here."""
        self.server.mark_stop()
        return await handle.stop(*args, **options)

    async def outcome(self, handle: stoppable.RunHandle[Any]) -> stoppable.Outcome[Any]:
        """Wait for the end of a run."""
        async with asyncio.timeout(DEADLINE):
            return await handle.outcome()


@pytest.fixture
def scene():
    with ModelServer() as server:
        scene = Scene(server)
        yield scene
        scene.open()


@pytest.fixture
def fates() -> Callable[[stoppable.RunHandle[Any]], list[tuple[str, str]]]:
    """Return what became of what was in flight."""

    def fates(handle: stoppable.RunHandle[Any]) -> list[tuple[str, str]]:
        return [(node.name, str(node.fate)) for node in handle.run.receipt.entries if node.kind == "llm"]

    return fates


@pytest.fixture
async def closing():
    """Close clients at the end, whatever they are."""
    clients: list[Any] = []

    def closing(client: Any) -> Any:
        clients.append(client)
        return client

    yield closing
    for client in clients:
        closed: Awaitable[None] | None = (getattr(client, "aclose", None) or client.close)()
        if closed is not None:
            await closed
