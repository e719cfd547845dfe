"""One trip, booked through every framework: the tool, the model's script and the stop are the same everywhere."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import stoppable
from stoppable import AgentStopped, Answer, Fate, Outcome, Receipt, Rung, RunHandle, RunStopped, Status

# Before any framework is imported: whatever the machine has set, nothing is traced, counted or downloaded.
os.environ.update(
    {
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_OFFLINE": "1",
        "LANGCHAIN_TRACING_V2": "false",
        "LANGSMITH_TRACING": "false",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
    }
)

DEADLINE = 30.0  # of waits that end at once unless a claim is broken
REASON = "the user pressed Stop"


class StopAsException(Exception):
    """What AgentStopped would be if it derived from Exception (docs/decisions/0001)."""


class boundary_that_raises_exceptions:  # noqa: N801 - stands in for stoppable.boundary
    """The same boundary, but its stop is an Exception."""

    def __init__(self, kind: str, name: str) -> None:
        self._boundary = stoppable.boundary(kind, name)

    def __enter__(self) -> None:
        try:
            self._boundary.__enter__()
        except AgentStopped as stop:
            raise StopAsException(str(stop)) from stop

    def __exit__(self, *error: object) -> None:
        self._boundary.__exit__(*error)


class Trip:
    """A tool with effects on the world, the script of a model that asks for it, and a record of what both did.

    Whatever is named by ``hold`` (an effect, or ``model``) is held inside its boundary, in a task or on a thread, until
    the test releases it.
    """

    asks = 3  # the turns in which the model asks for the tool; in the next one it answers

    def __init__(
        self,
        *effects: str,
        hold: str = "flight",
        model_is_boundary: bool = False,
        stop_is_exception: bool = False,
    ) -> None:
        self.effects: list[str] = []
        self.prompts: list[str] = []  # what the model was shown, an entry for each turn it got
        self.escaped: BaseException | None = None  # what came out of the framework
        self._plan = effects
        self._calls: list[str] = []  # a list, because appending to it is atomic on every thread
        self._hold = hold
        self._boundary = boundary_that_raises_exceptions if stop_is_exception else stoppable.boundary
        self._model_is_boundary = model_is_boundary
        self._loop = asyncio.get_running_loop()
        self._held = asyncio.Semaphore(0)
        self._released = asyncio.Semaphore(0)
        self._released_threads = threading.Semaphore(0)
        self._left = asyncio.Event()

    # The tool

    @property
    def calls(self) -> int:
        """How often the framework called the tool."""
        return len(self._calls)

    def book(self) -> str:
        """Book the trip, on whatever thread the framework calls a blocking tool."""
        self._calls.append("book")
        for name in self._plan:
            with self._boundary("tool", name):
                self._wait_if_held(name)
                self.effects.append(name)
        return "booked"

    async def book_async(self) -> str:
        """Book the trip, in whatever task the framework calls an async tool."""
        self._calls.append("book")
        for name in self._plan:
            with self._boundary("tool", name):
                await self._wait_if_held_async(name)
                self.effects.append(name)
        return "booked"

    # The model

    def turn(self, prompt: object) -> bool:
        """Be one turn of a blocking model; True if it asks for the tool."""
        with self._turn_boundary():
            self.prompts.append(str(prompt))
            self._wait_if_held("model")
        return len(self.prompts) <= self.asks

    async def turn_async(self, prompt: object) -> bool:
        """Be one turn of an async model; True if it asks for the tool."""
        with self._turn_boundary():
            self.prompts.append(str(prompt))
            await self._wait_if_held_async("model")
        return len(self.prompts) <= self.asks

    def _turn_boundary(self) -> contextlib.AbstractContextManager[object]:
        # None unless the test asks for it: boundaries in the tools alone must do.
        return stoppable.boundary("llm", "model") if self._model_is_boundary else contextlib.nullcontext()

    # Holding it in flight

    def _wait_if_held(self, name: str) -> None:
        if name == self._hold:
            self._loop.call_soon_threadsafe(self._held.release)
            assert self._released_threads.acquire(timeout=DEADLINE), "the test never released it"

    async def _wait_if_held_async(self, name: str) -> None:
        if name == self._hold:
            self._held.release()
            async with asyncio.timeout(DEADLINE):
                await self._released.acquire()

    async def in_flight(self, count: int = 1) -> None:
        """Wait until that many calls are held."""
        async with asyncio.timeout(DEADLINE):
            for _ in range(count):
                await self._held.acquire()
        assert not self._left.is_set(), f"the agent ended before it was in flight, with {self.escaped!r}"

    def release(self, count: int = 1) -> None:
        """Let that many held calls go on, the first one first; later ones are not held."""
        self._hold = ""
        self._released_threads.release(count)
        for _ in range(count):
            self._released.release()

    async def left(self) -> None:
        """Wait until the framework has returned or raised."""
        async with asyncio.timeout(DEADLINE):
            await self._left.wait()

    # Running and stopping it

    async def start(self, agent: Callable[[], Any]) -> RunHandle[Any]:
        """Start the agent as a run, and note what comes out of the framework before the run edge sees it."""

        def blocking() -> Any:
            with self._noted():
                return agent()

        async def in_task() -> Any:
            with self._noted():
                return await agent()

        return await stoppable.spawn(in_task if inspect.iscoroutinefunction(agent) else blocking)

    @contextlib.contextmanager
    def _noted(self) -> Any:
        try:
            yield
        except BaseException as error:
            self.escaped = error
            raise
        finally:
            self._loop.call_soon_threadsafe(self._left.set)
            self._loop.call_soon_threadsafe(self._held.release)  # so that nobody waits for what cannot come

    async def stop_in_flight(self, agent: Callable[[], Any], count: int = 1) -> Stopped:
        """Start the agent, stop it while so many calls are held, release them and wait for the end."""
        handle = await self.start(agent)
        await self.in_flight(count)
        receipt = await handle.stop(reason=REASON)
        self.release(count)
        return Stopped(self, handle, receipt, await self.end(handle))

    async def stop_at_once(self, agent: Callable[[], Any]) -> Stopped:
        """Start the agent and stop it in mode ``immediate`` while a call is held; nothing releases it but the stop."""
        handle = await self.start(agent)
        await self.in_flight()
        receipt = await handle.stop("immediate", reason=REASON)
        return Stopped(self, handle, receipt, await self.end(handle))

    async def end(self, handle: RunHandle[Any]) -> Outcome[Any]:
        """Wait for the end of the run."""
        async with asyncio.timeout(DEADLINE):
            return await handle.outcome()


class Stopped:
    """A run that was stopped, and the claims that hold for it in every framework."""

    def __init__(self, trip: Trip, handle: RunHandle[Any], receipt: Receipt, outcome: Outcome[Any]) -> None:
        self.trip = trip
        self.handle = handle
        self.receipt = receipt
        self.outcome = outcome

    async def came_through(self, *in_flight: str) -> None:
        """Assert that the stop crossed the framework unchanged, and that what was in flight finished."""
        assert self.receipt.answer is Answer.ACCEPTED
        # Besides, a framework's own calls in the loop's executor: those take part in the run too.
        assert tuple(label for label in self.receipt.in_flight if not label.startswith("thread:")) == in_flight
        # Not swallowed, and not an error, a group or a copy in its place.
        escaped = self.trip.escaped
        assert type(escaped) is AgentStopped
        assert (escaped.target, str(escaped.reason), escaped.__cause__) == (self.handle.id, REASON, None)
        assert self.outcome.status is Status.STOPPED
        assert (self.outcome.rung, self.outcome.clean, self.outcome.error) == (Rung.SIGNAL, True, None)
        assert self.fates() == [(label, Fate.FINISHED) for label in in_flight]
        # The model saw nothing of it: no test stops a run later than in its first turn.
        assert len(self.trip.prompts) == 1
        with pytest.raises(RunStopped, match=REASON):
            await self.handle.result()

    def fates(self) -> list[tuple[str, Fate]]:
        """Return what became of what was in flight; nothing may have been entered after the stop."""
        final = self.handle.run.receipt
        assert final is not None
        assert final.final
        assert final.entered_after == ()
        return [(f"{node.kind}:{node.name}", node.fate) for node in final.entries if node.kind not in {"run", "thread"}]

    def was_swallowed(self, error_shown_to_the_model: str) -> None:
        """Assert that the model took the stop for an error of its tool and went on to the end of its script."""
        assert self.trip.escaped is None
        assert error_shown_to_the_model in self.trip.prompts[1]
        assert len(self.trip.prompts) == self.trip.asks + 1
        assert self.trip.calls == self.trip.asks
        # It bought nothing: the boundaries are level-triggered (G5). It cost the turns.
        assert self.trip.effects == ["flight"]


@pytest.fixture
def new_trip() -> type[Trip]:
    """Return the class itself: test modules cannot import from a conftest."""
    return Trip


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse every connection: a framework that calls home fails the test."""

    def refuse(self: socket.socket, address: object) -> None:
        raise AssertionError(f"something connects to {address!r}: these tests are offline")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "connect_ex", refuse)


@pytest.fixture(autouse=True)
async def nothing_left_running() -> AsyncIterator[None]:
    """Fail if a task of the framework is still there when the run is over and had time to unwind."""
    yield
    left = asyncio.all_tasks() - {asyncio.current_task()}
    pending = (await asyncio.wait(left, timeout=DEADLINE))[1] if left else set()
    assert not pending
