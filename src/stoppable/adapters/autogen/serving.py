"""Agents and teams of AutoGen as agents of stoppable, for ``stoppable serve``, ``run`` and ``check``."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from autogen_agentchat.messages import BaseChatMessage, StructuredMessage

import stoppable
from stoppable.adapters.autogen.patches import install

_SAVING_SECONDS = 5.0


def as_agent(value: Any, name: str | None = None) -> Callable[..., Any]:
    """Return an agent ``(message, session_id=None)`` whose result is the last message; its partial is the text so far.

    Messages with the same session id are turns of one conversation, which is kept in this process, apart for each owner
    of runs. ``value`` is an agent or a team, which takes one turn at a time, or a function that makes one for each
    conversation: then they do not wait for each other.
    """
    install()
    sessions = _MadeSessions(value) if callable(value) else _SavedSessions(value)

    async def answer(message: str, session_id: str | None = None) -> Any:
        run = stoppable.current_run()
        owner = None if run is None else run.owner
        async with sessions.turn(None if session_id is None else (owner, session_id)) as runner:
            return _content((await runner.run(task=message)).messages)

    own_name = str(name or getattr(value, "name", None) or getattr(value, "__name__", "agent"))
    answer.__name__ = answer.__qualname__ = own_name
    answer.__doc__ = f"The agent {own_name}."
    return stoppable.agent(name=own_name)(answer)


def _content(messages: Any) -> Any:
    """Return what the last message says, as plain JSON."""
    last = next(message for message in reversed(messages) if isinstance(message, BaseChatMessage))
    return last.content.model_dump(mode="json") if isinstance(last, StructuredMessage) else last.to_model_text()


_Key = tuple[str | None, str]


class _MadeSessions:
    """Conversations that have an agent or a team each."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._runners: dict[_Key, tuple[Any, asyncio.Lock]] = {}

    @contextlib.asynccontextmanager
    async def turn(self, key: _Key | None) -> AsyncIterator[Any]:
        """Yield the agent or team of a conversation, or a new one if there is no key."""
        if key is None:
            yield self._make()
            return
        if key not in self._runners:
            self._runners[key] = self._make(), asyncio.Lock()
        runner, lock = self._runners[key]
        async with _held(lock):
            yield runner


class _SavedSessions:
    """Conversations that share an agent or a team, whose state is saved after each turn."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._lock = asyncio.Lock()
        self._states: dict[_Key, Mapping[str, Any]] = {}
        self._first_state: Mapping[str, Any] | None = None

    @contextlib.asynccontextmanager
    async def turn(self, key: _Key | None) -> AsyncIterator[Any]:
        """Yield the agent or team in the state of a conversation, or in its first one if there is no key."""
        async with _held(self._lock):
            if self._first_state is None:
                self._first_state = await self._runner.save_state()
            state = self._first_state if key is None else self._states.get(key, self._first_state)
            await self._runner.load_state(state)
            try:
                yield self._runner
            finally:
                if key is not None:
                    with stoppable.shielded(_SAVING_SECONDS):
                        self._states[key] = await self._runner.save_state()


@contextlib.asynccontextmanager
async def _held(lock: asyncio.Lock) -> AsyncIterator[None]:
    """Hold a lock in the block; a stop ends the wait for it."""
    loop = asyncio.get_running_loop()
    waiting = asyncio.ensure_future(lock.acquire())
    try:
        with stoppable.on_stop(lambda: loop.call_soon_threadsafe(waiting.cancel)):
            await waiting
    except asyncio.CancelledError:
        if waiting.done() and not waiting.cancelled():
            lock.release()
        stoppable.check()
        raise
    try:
        yield
    finally:
        lock.release()
